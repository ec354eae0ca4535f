"""The life of a notice: any events leave a known state, and the cloud is told only at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.agent_vm import assignment
from spothop.statemachine import IllegalTransition
from spothop.wire import SaveKind
from spothop_agent.notice_states import COVERED, NOTICES, TRANSITIONS, NoticeEvent, NoticeState
from spothop_agent.state import NoticeSeen, State, StateFile

S, E = NoticeState, NoticeEvent

EVENTS = st.lists(st.sampled_from(list(NoticeEvent)), max_size=20)


def notice(state: NoticeState = S.SEEN, request: str | None = None) -> NoticeSeen:
    return NoticeSeen(
        event="e", seen=10.0, deadline=40.0, announced=True, state=state, request=request
    )


def walk(events: list[NoticeEvent]) -> list[NoticeState]:
    """The states that a notice goes through; refused events are left out."""
    now = notice()
    states = [now.state]
    for event in events:
        if not now.takes(event):
            with pytest.raises(IllegalTransition, match=event.value):
                now.after(event)
            continue
        now = now.after(event)
        states.append(now.state)
    return states


def test_every_state_has_its_row_and_every_event_a_use() -> None:
    assert set(TRANSITIONS) == set(NoticeState)
    assert {event for row in TRANSITIONS.values() for event in row} == set(NoticeEvent)
    assert NOTICES.terminal == {S.ACKNOWLEDGED, S.UNACKNOWLEDGED}
    assert {S.COMMITTED, S.NOTHING_LEFT} == COVERED


@given(EVENTS)
def test_any_events_leave_a_known_state_and_refused_ones_change_nothing(
    events: list[NoticeEvent],
) -> None:
    states = walk(events)
    assert states[0] is S.SEEN
    assert all(state in TRANSITIONS for state in states)
    assert len(set(states)) == len(states), "no state comes back"
    assert not NOTICES.terminal & set(states[:-1]), "nothing leaves the end"


@given(EVENTS)
def test_the_cloud_is_told_only_after_the_commit_or_when_nothing_is_left(
    events: list[NoticeEvent],
) -> None:
    """The documented exception: an attempt that is over, whose backups are all dealt with."""
    states = walk(events)
    if states[-1] in NOTICES.terminal:
        assert states[-2] in (S.COMMITTED, S.NOTHING_LEFT)


@given(EVENTS)
def test_a_commit_or_the_end_of_the_attempt_closes_every_open_notice(
    events: list[NoticeEvent],
) -> None:
    last = walk(events)[-1]
    opened = {S.SEEN, S.REQUESTED, S.UNREQUESTED, S.ANSWERED}
    assert NOTICES.sources(E.COMMIT) == NOTICES.sources(E.FINISH) == opened
    assert (last in opened) is (last not in COVERED | NOTICES.terminal)


def test_the_usual_way() -> None:
    events = [E.REQUEST, E.ANSWER, E.COMMIT, E.ACKNOWLEDGE]
    assert walk(events) == [S.SEEN, S.REQUESTED, S.ANSWERED, S.COMMITTED, S.ACKNOWLEDGED]


@pytest.mark.parametrize(
    ("request_", "kind", "made", "began", "covered"),
    [
        (None, SaveKind.PERIODIC, 10.0, None, True),
        (None, SaveKind.PERIODIC, 20.0, 10.0, True),
        (None, SaveKind.PERIODIC, 20.0, 9.9, False),  # begun before, in the background
        (None, SaveKind.PERIODIC, 20.0, 0.0, False),
        (None, SaveKind.EMERGENCY, 9.9, None, False),
        ("r", SaveKind.EMERGENCY, 10.0, 9.9, True),  # asked for, and no step since
        ("r", SaveKind.PERIODIC, 30.0, 30.0, False),
        ("r", SaveKind.EMERGENCY, 9.9, 9.9, False),
    ],
)
def test_what_covers_a_notice(
    request_: str | None, kind: SaveKind, made: float, began: float | None, covered: bool
) -> None:
    assert notice(request=request_).covered_by(kind, made, began=began) is covered


@pytest.mark.parametrize(
    ("flags", "state"),
    [
        ({}, S.UNREQUESTED),
        ({"request": "r"}, S.REQUESTED),
        ({"request": "r", "answered": True}, S.ANSWERED),
        ({"request": "r", "answered": True, "covered": True}, S.COMMITTED),
        ({"covered": True}, S.NOTHING_LEFT),
        ({"request": "r", "answered": True, "covered": True, "acknowledged": True}, S.ACKNOWLEDGED),
    ],
)
def test_an_agent_of_the_version_before_is_upgraded_in_place(
    tmp_path: Path, flags: dict[str, object], state: NoticeState
) -> None:
    """Its state.json holds three booleans, which it always wrote."""
    file = StateFile(tmp_path / "state.json")
    work = assignment(tmp_path / "storage")
    file.put(State(vm="v", session="s", sync_every_s=1.0, assignment=work))
    content = json.loads((tmp_path / "state.json").read_text())
    old = {"request": None, "answered": False, "covered": False, "acknowledged": False, **flags}
    content["notice"] = {"event": "e", "seen": 10.0, "deadline": 40.0, "announced": True, **old}
    (tmp_path / "state.json").write_text(json.dumps(content))

    found = StateFile(tmp_path / "state.json")
    assert found.load()
    assert found.now.notice == notice(state, request=flags.get("request"))  # type: ignore[arg-type]
    found.set(given_up=1)  # and written the new way
    again = StateFile(tmp_path / "state.json")
    assert again.load()
    assert again.now == found.now


def test_the_state_survives_the_agent(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json")
    work = assignment(tmp_path / "storage")
    file.put(State(vm="v", session="s", sync_every_s=1.0, assignment=work))
    for state in NoticeState:
        file.set(notice=notice(state))
        again = StateFile(tmp_path / "state.json")
        assert again.load()
        assert again.now.notice == notice(state)
