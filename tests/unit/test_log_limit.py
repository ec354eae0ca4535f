"""Lines that are alike are written so many times a minute."""

from __future__ import annotations

import logging

from spothop_master.log_limit import KINDS, MOST, SHAPES, WINDOW_S, LogLimit


def record(text: str, *args: object, at: float = 1000.0, line: int = 1) -> logging.LogRecord:
    made = logging.LogRecord("a", logging.ERROR, "a.py", line, text, args, None)
    made.created = at
    return made


def written(limit: LogLimit, *records: logging.LogRecord) -> list[str]:
    return [each.getMessage() for each in records if limit.filter(each)]


def test_of_many_alike_the_first_are_written_and_the_rest_counted() -> None:
    limit = LogLimit()
    flood = [record("connection %d failed", n) for n in range(500)]
    assert written(limit, *flood) == [f"connection {n} failed" for n in range(MOST)]
    later = record("connection %d failed", 500, at=1000.0 + WINDOW_S)
    told = f"connection 500 failed ({500 - MOST} more like this were left out)"
    assert written(limit, later) == [told]
    again = record("connection %d failed", 501, at=1001.0 + WINDOW_S)
    assert written(limit, again) == ["connection 501 failed"]


def test_others_are_not_held_back() -> None:
    limit = LogLimit()
    written(limit, *(record("full") for _ in range(100)))
    others = [record("full", line=2), record("another"), record("full", at=999.0)]
    assert len(written(limit, *others)) == 3  # the last one: the clock went back


def test_what_is_remembered_is_bounded() -> None:
    limit = LogLimit()
    for n in range(3 * KINDS):
        assert limit.filter(record(f"text {n}", line=n))
    assert len(limit._windows) == KINDS


def test_whoever_chooses_how_a_text_begins_does_not_fill_the_log() -> None:
    limit = LogLimit()
    flood = [record(f"{n} is no name") for n in range(5000)]
    assert len(written(limit, *flood)) == SHAPES + MOST
    assert len(written(limit, record("another line of code", line=2))) == 1
    later = written(limit, record("x is no name", at=1000.0 + WINDOW_S))
    assert later == ["x is no name"]
