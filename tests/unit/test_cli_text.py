"""Figures and log lines as people read them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from spothop.cli.text import age, dollars, duration, saved, size
from spothop.cli.views import log_line

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"), (0.0, "0 s"), (0.041, "0.041 s"), (4.2, "4.2 s"), (59.6, "1m"),
        (12.3, "12 s"), (200, "3m 20s"), (3600, "1h"), (3599.7, "1h"), (7500, "2h 5m"),
        (90000, "1d 1h"), (-5, "-5.0 s"),
    ],
)  # fmt: skip
def test_durations_for_people(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0, "$0.00"),
        (0.00001, "<$0.0001"),
        (0.0123, "$0.012"),
        (0.5, "$0.50"),
        (1234.5, "$1,234.50"),
    ],
)
def test_prices_for_people(usd: float, text: str) -> None:
    assert dollars(usd) == text


def test_other_figures_for_people() -> None:
    assert [size(n) for n in (0, 999, 1500, 4_200_000, 5e12)] == [
        "0 B", "999 B", "1.5 kB", "4.2 MB", "5 TB",
    ]  # fmt: skip
    assert (saved(0.3, 1.0), saved(0.0, 0.0)) == ("70%", "-")
    assert age(NOW + timedelta(hours=1), now=NOW) == "0 s"


def test_a_log_line_cannot_move_the_cursor() -> None:
    assert log_line("10%\r50%\r100%\r").plain == "100%"
    assert log_line("\x1b[31mred\x1b[0m \x1b[2J\x07!").plain == "red !"
