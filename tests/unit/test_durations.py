"""Durations as people read them, and as a job file and the command line write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.durations import (
    MAX_DURATION,
    NotADuration,
    duration,
    format_duration,
    parse_duration,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"), (0.0, "0 s"), (0.0004, "< 1 ms"), (0.041, "41 ms"), (0.0994, "99 ms"),
        (0.0995, "0.10 s"), (0.0999, "0.10 s"), (0.995, "1.0 s"), (9.95, "10 s"),
        (0.41, "0.41 s"), (0.999, "1.0 s"), (4.2, "4.2 s"), (9.94, "9.9 s"), (9.96, "10 s"),
        (42, "42 s"), (59.6, "1 min"), (185, "3 min 5 s"), (3599.7, "1 h"), (3600, "1 h"),
        (7800, "2 h 10 min"), (7859, "2 h 10 min"), (90000, "1 d 1 h"), (-5, "-5.0 s"),
    ],
)  # fmt: skip
def test_durations_for_people_have_at_most_two_units(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_ten_years_are_the_longest() -> None:
    assert parse_duration("3650d") == MAX_DURATION == timedelta(days=3650)
    with pytest.raises(NotADuration) as refused:
        parse_duration("3650d1s")
    assert refused.value.fact == "is not between 0 s and 10 years"
    with pytest.raises(NotADuration, match="is not between 0 s and 10 years"):
        parse_duration("9" * 400 + "d")


def test_nothing_is_written_as_zero_seconds() -> None:
    assert format_duration(timedelta()) == "0s"
    assert format_duration(timedelta(minutes=1)) == "1m"


def test_an_empty_text_is_no_duration_at_all() -> None:
    with pytest.raises(NotADuration, match="is not a duration"):
        parse_duration("")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("5m", 300), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("0.5s", 0.5)],
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["30", "", "1 h", "0s", "9999999d", "9" * 400 + "d", 30])
def test_what_is_no_duration_is_refused_with_the_way_out(text: object) -> None:
    with pytest.raises(NotADuration, match=r"is not .*; write a number with its unit: 30s"):
        parse_duration(text)


@given(st.timedeltas(min_value=timedelta(microseconds=1), max_value=MAX_DURATION))
def test_durations_survive_the_way_through_text(length: timedelta) -> None:
    assert parse_duration(format_duration(length)) == length


def test_a_list_has_seconds_or_durations() -> None:
    assert parse_seconds("600, 20m,1h30m") == [600, 1200, 5400]


@pytest.mark.parametrize("text", ["", "600,", "soon", "0", "-1", "nan", "inf"])
def test_a_time_in_a_list_is_above_zero(text: str) -> None:
    with pytest.raises(ValueError, match="is no time above 0; write seconds or durations"):
        parse_seconds(text)
