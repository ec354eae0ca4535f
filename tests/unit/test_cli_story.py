"""What following a job tells by default: of its events and of its log."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.cli_master import NOW, POOL, job, vm
from spothop.cli.follow import status_line
from spothop.cli.joblog import JobLog
from spothop.cli.story import Story
from spothop.eventlog import AGENT_LINE
from spothop.wire import EventView, SaveKind


def event(kind: str, text: str = "words", *, attempt: int | None = 1, **data: Any) -> EventView:
    return EventView(
        id=1, at=NOW, job="j", vm=vm(1).id, attempt=attempt, kind=kind, text=text, data=data
    )


def told(*events: EventView) -> list[str]:
    story = Story()
    return [line for each in events if (line := story.line(each, job())) is not None]


def running(text: str) -> EventView:
    return event("allocated", text, attempt=None, pool=str(POOL), price=0.12)


def committed(
    step: int, kind: SaveKind, *, after_s: float | None = None, attempt: int = 1
) -> EventView:
    data = {"step": step, "save": kind.value, "bytes": 4_200_000, "since_notice_s": after_s}
    return event("committed", "long words", attempt=attempt, **data)


def test_the_story_of_a_hop_is_a_line_for_each_thing() -> None:
    notice = "preemption notice in zone-a: 8 s left; an emergency save fits: step 0.10 s + save"
    assert told(
        running("running in zone-a 1.1 s after the request"),
        event("restored", "attempt 1 restored step 164"),
        event("attempt", "attempt 1 trains, from step 164 on", to="running"),
        event("notice", notice, fits=True),
        committed(170, SaveKind.EMERGENCY, after_s=0.19),
        event("attempt", "attempt 1 ended (preempted): attempt 2 is fenced in", to="ended"),
    ) == [
        "VM up: local/zone-a/small/spot, $0.12/h",
        "restored step 164",
        "trains, from step 164 on",
        "preemption notice in zone-a: 8 s left",
        "saved step 170 (emergency, 4.2 MB), 0.19 s after the notice",
        "ended (preempted): attempt 2 is fenced in; 1 save, $0.012 so far",
    ]


def test_a_notice_says_when_the_save_may_be_late() -> None:
    (line,) = told(event("notice", "preemption notice in z: 1 s left; too short", fits=False))
    assert line == "preemption notice in z: 1 s left; an emergency save may come too late"


def test_of_the_saves_the_first_of_an_attempt_and_those_after_a_notice_are_told() -> None:
    saves = [committed(10 * i, SaveKind.INSURANCE) for i in range(1, 99)]
    lines = told(
        *saves,
        committed(990, SaveKind.EMERGENCY, after_s=1.0),
        event("attempt", "attempt 1 ended (preempted): gone", to="ended"),
        committed(1000, SaveKind.PERIODIC, attempt=2),
    )
    assert lines == [
        "saved step 10 (insurance, 4.2 MB)",
        "saved step 990 (emergency, 4.2 MB), 1.0 s after the notice",
        "ended (preempted): gone; 99 saves, $0.012 so far",
        "saved step 1,000 (periodic, 4.2 MB)",
    ]


def test_the_policys_reason_is_told_once_and_a_wait_when_it_changes() -> None:
    assert told(
        event("insurance", "next insurance save at step 10: tau 3 s"),
        event("insurance", "next insurance save at step 90: tau 4 s"),
        event("wait", "2 pools refused"),
        event("wait", "2 pools refused"),
        event("wait", "3 pools refused"),
    ) == ["next insurance save at step 10: tau 3 s", "2 pools refused", "3 pools refused"]


def test_a_wait_does_not_say_again_why_the_attempt_ended() -> None:
    why = "RuntimeError: no data; see above (the process exited with code 1)"
    assert told(
        event("attempt", f"attempt 1 ended (user_failure): {why}", to="ended"),
        event("wait", f"{why}; next try in 0.9 s", attempt=None),
    ) == [f"ended (user_failure): {why}; 0 saves, $0.012 so far", "next try in 0.9 s"]


@pytest.mark.parametrize(
    "kind",
    ["phase", "prepared", "fenced_in", "started", "save_requested", "vm", "job", "may_fence"],
)
def test_details_are_left_out(kind: str) -> None:
    assert told(event(kind, to="running")) == []


def test_warnings_and_kinds_of_newer_masters_are_told() -> None:
    assert told(
        event("message", "3 files uploaded", level="info"),
        event("message", "the storage refuses", level="warning"),
        event("unprotected", "no save for 10 min"),
        event("something_new", ""),
    ) == ["the storage refuses", "no save for 10 min", "something_new"]


def test_the_status_line_says_that_the_bill_is_not_final() -> None:
    assert "$0.012 (69% less so far than on demand)" in status_line(job())
    assert "$0.012 (69% less than on demand)" in status_line(job(state="succeeded"))
    assert status_line(job()).endswith(" | local/zone-a/small/spot")


# --- the log ------------------------------------------------------------------------------------


def test_a_line_stands_between_the_attempts_of_a_log() -> None:
    log = JobLog()
    shown = [log.feed(1, "a\nb"), log.feed(1, "c"), log.feed(3, "d\n"), log.feed(4, "e\n")]
    assert "".join(shown) == "a\nbc\n---- attempt 3 ----\nd\n---- attempt 4 ----\ne\n"


LOG = f"{AGENT_LINE}bundle: 0.1 s\nspot\nspothop: a warning\n{AGENT_LINE}done\n50%\r90%\nlast: spo"
WITHOUT = "spot\nspothop: a warning\n50%\r90%\nlast: spo"


@given(st.lists(st.integers(0, len(LOG)), max_size=20))
def test_the_agents_lines_are_left_out_wherever_the_pieces_end(cuts: list[int]) -> None:
    edges = sorted({0, *cuts, len(LOG)})
    pieces = [LOG[a:b] for a, b in pairwise(edges)]
    quiet, whole = JobLog(of_agent=False), JobLog()
    assert "".join(quiet.feed(1, piece) for piece in pieces) == WITHOUT
    assert "".join(whole.feed(1, piece) for piece in pieces) == LOG


def test_what_was_held_back_is_not_lost_with_the_next_attempt() -> None:
    log = JobLog(of_agent=False)
    assert log.feed(1, "spothop ag") == ""
    assert log.feed(2, "b\n") == "spothop ag\n---- attempt 2 ----\nb\n"
    assert JobLog(of_agent=False).feed(1, "5% ") == "5% "  # a progress bar is not held back
