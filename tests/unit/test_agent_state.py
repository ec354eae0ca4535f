"""state.json: whole, private, and what a new attempt keeps of the one before."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.agent_vm import assignment
from spothop.wire import CommittedReport, ExitedReport, SaveKind
from spothop_agent.state import NoticeSeen, Phase, State, StateFile


@pytest.fixture
def no_umask() -> Iterator[None]:
    """So that a mode comes from the code and not from the shell."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


def state(path: Path, **changes: object) -> State:
    work = assignment(path.parent / "storage")
    first = State(vm="v", session="secret", sync_every_s=1.0, assignment=work)
    return first.model_copy(update=changes)


@pytest.mark.usefixtures("no_umask")
def test_only_its_user_may_read_the_session(path: Path) -> None:
    file = StateFile(path)
    file.put(state(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    file.set(given_up=1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["state.json"]


def test_a_state_that_cannot_be_read_is_no_first_start(path: Path) -> None:
    """To join again with a used token would lose the VM; the error ends the agent instead."""
    path.write_text("{")
    with pytest.raises(ValueError, match="JSON"):
        StateFile(path).load()


def test_an_unreadable_state_shows_nothing_of_itself(path: Path) -> None:
    """The error is logged, and the file holds the session and the secrets of the storage."""
    file = StateFile(path)
    file.put(state(path))
    text = path.read_text().replace('"secret"', '["secret"]').replace('"v"', "[]")
    path.write_text(text)
    with pytest.raises(ValueError, match="session") as raised:
        StateFile(path).load()
    assert "secret" not in str(raised.value)


def test_before_the_join_there_is_none(path: Path) -> None:
    file = StateFile(path)
    assert not file.load()
    assert not file.known


def test_a_new_attempt_keeps_the_vm_and_its_notice_and_nothing_else(path: Path) -> None:
    notice = NoticeSeen(event="e", seen=1.0, deadline=2.0, announced=True)
    file = StateFile(path)
    file.put(
        state(path, phase=Phase.EXITED, stop="paused", given_up=3, processes={1: 0}, notice=notice)
    )
    file.assign(assignment(path.parent / "storage", attempt=2, fence_now=False))
    again = StateFile(path)
    assert again.load()
    work = assignment(path.parent / "storage", attempt=2, fence_now=False)
    assert again.now == state(path, assignment=work, notice=notice)


def test_an_agent_of_version_0_1_0_can_read_its_assignment(path: Path) -> None:
    """It was started before its master was replaced, and refuses keys that it does not know."""
    known = {
        *("job", "name", "attempt", "bundle", "setup", "run", "env", "data", "storage"),
        *("init_from", "keep", "fence_now", "resumes", "policy"),
    }
    work = assignment(path.parent / "storage")
    assert work.model_dump(mode="json").keys() == known
    asked = work.model_copy(update={"log_max": 1_000_000, "hang_after_s": 0.0})
    assert type(work).model_validate_json(asked.model_dump_json()) == asked
    assert type(work).model_validate_json(work.model_dump_json()) == work


def test_a_master_of_version_0_1_0_can_read_how_a_process_ended() -> None:
    known = {
        *("kind", "code", "signal", "done", "stopped", "out_of_memory", "step", "uncommitted"),
        *("outputs_lost", "message"),
    }
    assert ExitedReport(code=0).model_dump(mode="json").keys() == known
    hung = ExitedReport(signal=9, stopped=True, hang=True)
    assert ExitedReport.model_validate_json(hung.model_dump_json()) == hung


def test_a_master_of_version_0_1_0_can_read_of_a_commit() -> None:
    known = {"kind", "n", "step", "save", "bytes", "delta_s", "beta_s", "since_notice_s"}
    made = CommittedReport(n=1, step=2, save=SaveKind.EMERGENCY, bytes=3, delta_s=4.0, beta_s=5.0)
    assert made.model_dump(mode="json").keys() == known
    bound = made.model_copy(update={"delta_exact": False})
    for report in (made, bound):
        assert CommittedReport.model_validate_json(report.model_dump_json()) == report
