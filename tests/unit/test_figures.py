"""Money, sizes, numbers and exits as people read them."""

from __future__ import annotations

import math
import signal as signals
from datetime import datetime, timezone

import pytest

from spothop.figures import exit_text, exits_text, lost_is_least, money, number, saved, size
from spothop.wire import AttemptView, PlaceView

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0, "$0.00"),
        (0.00001, "<$0.0001"),
        (0.0022, "$0.0022"),
        (0.0123, "$0.012"),
        (0.0994, "$0.099"),
        (0.0999, "$0.10"),
        (0.5, "$0.50"),
        (1234.5, "$1,234.50"),
    ],
)
def test_prices_for_people(usd: float, text: str) -> None:
    assert money(usd) == text


def test_savings_say_less_or_more_than_on_demand() -> None:
    assert saved(1.0, 4.0) == "75% less"
    assert saved(5.0, 4.0) == "25% more"
    assert saved(5.0, 4.0, ended=False) == "25% more so far"
    assert saved(0.0, 0.0) == saved(1.0, None) == ""


def attempt(number: int, **facts: object) -> AttemptView:
    exits = {key: facts.pop(key) for key in ("exit_code", "exit_signal") if key in facts}
    return AttemptView.model_validate(
        {
            "number": number, "vm": f"vm-{number}", "state": "ended", "reason": "preempted",
            "detail": "", "started_at": NOW, "ended_at": NOW, "restored_step": 0, "last_step": 7,
            "notice_at": None, "places": [{"node": 0, "vm": f"vm-{number}", **exits}], **facts,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "least"),
    [
        ({}, True),
        ({"exit_code": 0}, False),
        ({"exit_signal": 15}, False),
        ({"last_step": None}, False),
        ({"places": []}, False),
    ],
)
def test_what_a_vm_did_after_its_last_report_is_in_no_figure(
    first: dict[str, object], least: bool
) -> None:
    assert lost_is_least([attempt(1, **first), attempt(2)]) is least
    assert not lost_is_least([attempt(1, **first)]), "nothing was computed again yet"


def test_sizes_in_decimal_units() -> None:
    assert [size(n) for n in (0, 12, 999, 1500, 4_200_000, 498_231_104, 5e12)] == [
        "0 B", "12 B", "999 B", "1.5 kB", "4.2 MB", "498 MB", "5 TB",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (5060, "5,060"),
        (1.94217, "1.942"),
        (9999.4, "9999"),
        (9999.6, "10,000"),
        (32731.5, "32,732"),
        (0.0012345, "0.001234"),
        (2.4e-4, "0.00024"),
        (1.2345e-4, "0.000123"),
        (-5060, "-5,060"),
    ],
)
def test_numbers_as_people_read_them(value: float | None, text: str) -> None:
    assert number(value) == text
    assert not math.isfinite(float(number(math.inf)))


@pytest.mark.parametrize(
    "name",
    [
        "HUP",
        "INT",
        "QUIT",
        "ILL",
        "TRAP",
        "ABRT",
        "BUS",
        "FPE",
        "KILL",
        "USR1",
        "SEGV",
        "USR2",
        "PIPE",
        "ALRM",
        "TERM",
        "XCPU",
        "XFSZ",
        "SYS",
    ],
)
def test_signals_have_the_names_of_linux(name: str) -> None:
    """On the machine of the tests, which is one with Linux."""
    number = signals.Signals["SIG" + name]
    assert exit_text(None, number) == f"signal SIG{name}"


@pytest.mark.parametrize(
    ("code", "signal", "text"),
    [
        (None, None, ""),
        (0, None, ""),
        (3, None, "exit code 3"),
        (None, 9, "signal SIGKILL"),
        (None, 64, "signal 64"),
    ],
)
def test_an_exit_for_people(code: int | None, signal: int | None, text: str) -> None:
    assert exit_text(code, signal) == text


def test_each_way_in_which_the_processes_of_an_attempt_ended_is_said_once() -> None:
    ends = [(None, 9), (1, None), (None, 9), (0, None)]
    places = [
        PlaceView(node=n, vm=f"vm-{n}", exit_code=code, exit_signal=signal)
        for n, (code, signal) in enumerate(ends)
    ]
    assert exits_text(places) == "signal SIGKILL, exit code 1"
