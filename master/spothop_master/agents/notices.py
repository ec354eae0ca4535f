"""Notices of many VMs, written in one transaction: preemptions come in swarms.

The same as `reports` and `attempts.notice` write of each, for VMs in the plain case that had no
notice yet and whose attempt has none: VM, attempt and job drain, each by a guarded update and with
its event, by one statement a table and state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, update
from sqlalchemy.orm import Session

from spothop.wire import AttemptState, NoticeReport, VmState
from spothop_master.agents import answers, reports
from spothop_master.core.states import AttemptEvent, VmEvent
from spothop_master.store import transitions
from spothop_master.store.schema import Attempt, Place, VmRow
from spothop_master.store.transitions import Step

_VMS = (
    update(VmRow)
    .where(VmRow.id == bindparam("vm"))
    .values(notice_at=bindparam("at"), deadline_at=bindparam("until"))
)
_PLACES = (
    update(Place)
    .where(Place.id == bindparam("place"))
    .values(
        notice_fits=bindparam("fits"),
        notice_at=bindparam("at"),
        deadline_at=bindparam("until"),
        step_at_notice=bindparam("step"),
    )
)


@dataclass(frozen=True, kw_only=True)
class Notice:
    """One report."""

    facts: Any
    """Of the VM and its attempt: a row of `progress`."""
    report: NoticeReport
    at: datetime
    step: int | None
    """The newest that was reported before it."""

    @property
    def left_s(self) -> float:
        return reports.left_s(self.report, self.facts.grace_s)

    @property
    def text(self) -> str:
        return reports.notice_text(self.report, self.facts.zone, self.left_s)


def is_first(facts: Any) -> bool:
    """Of a VM in the plain case: nobody knows of a notice yet. Of an attempt of several VMs only
    the first one's is taken, so that no two of one attempt come together."""
    running = facts.state == VmState.RUNNING.value and not answers.drains(facts)
    return bool(running and facts.notice_at is None and facts.node == 0)


def write(session: Session, notices: Sequence[Notice]) -> None:
    """One for each VM. Raises StaleState where a state is not the one that was read."""
    connection = session.connection()
    moments = [(n, {"at": n.at, "until": n.at + timedelta(seconds=n.left_s)}) for n in notices]
    connection.execute(_VMS, [{"vm": n.facts.vm, **both} for n, both in moments])
    connection.execute(
        _PLACES,
        [
            {"place": n.facts.place, "fits": n.report.fits, "step": n.step, **both}
            for n, both in moments
        ],
    )
    transitions.record_all(session, [_event(notice) for notice in notices])
    running = VmState.RUNNING
    steps = [_step(notice, notice.facts.vm) for notice in notices]
    transitions.change_all(session, VmRow, steps, VmEvent.NOTICE, running)
    steps = [_step(notice, notice.facts.attempt) for notice in notices]
    transitions.change_all(session, Attempt, steps, AttemptEvent.NOTICE, AttemptState.RUNNING)
    texts = {notice.facts.job_id: (notice.text, notice.at) for notice in notices}
    transitions.follow_all(session, texts)


def _step(notice: Notice, row: str | int) -> Step:
    facts = notice.facts
    return Step(
        row=row,
        job=facts.job_id,
        vm=facts.vm,
        attempt=None if row == facts.vm else facts.number,
        at=notice.at,
        text=notice.text,
    )


def _event(notice: Notice) -> dict[str, Any]:
    report, facts = notice.report, notice.facts
    return {
        "at": notice.at,
        "job_id": facts.job_id,
        "vm_id": facts.vm,
        "attempt": facts.number,
        "kind": "notice",
        "text": notice.text,
        "data": {"event": report.event, "left_s": notice.left_s, "fits": report.fits},
    }
