"""From the cloud's notice to the acknowledgement. Everything here works without the master (I5)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from spothop.wire import AcknowledgedReport, AtRiskReport, NoticeReport
from spothop_agent.attempt import Attempt
from spothop_agent.context import Context
from spothop_agent.notice_states import COVERED, NOTICES, NoticeEvent, NoticeState
from spothop_agent.state import NoticeSeen
from spothop_agent.tasks import Background, cancel_all, first_end
from spothop_agent.watch import AT_RISK, Notice

_log = logging.getLogger(__name__)

LOOK_S = 0.25
"""How often it is looked whether the cloud may be told."""

Acknowledge = Callable[[Notice], Awaitable[bool]]
FinalSync = Callable[[], Awaitable[None]]
"""Tries to reach the master, for a short time: the acknowledged VM may be gone at once."""


class Notices:
    """One per agent. A notice belongs to the VM; the attempt of the moment answers it."""

    def __init__(
        self,
        source: AsyncIterator[Notice],
        acknowledge: Acknowledge,
        final_sync: FinalSync,
        first: tuple[Context, Attempt],
    ) -> None:
        self._source = source
        self._final_sync = final_sync
        self._acknowledge = acknowledge
        self._context, self._attempt = first
        self._acknowledging = Background()

    def hand_over(self, context: Context, attempt: Attempt) -> None:
        """From now on another attempt answers."""
        self._context, self._attempt = context, attempt

    async def run(self) -> None:
        """Take in what the endpoint says; ends, with its acknowledgements, by cancellation. Raises
        what one of them fails with: the next agent goes on with the same notice."""
        reading = asyncio.create_task(self._read())
        failure = asyncio.create_task(self._acknowledging.failure())
        try:
            await first_end({reading}, {failure})
        finally:
            await cancel_all([reading, failure])
            await self._acknowledging.cancel()

    async def _read(self) -> None:
        async for notice in self._source:
            self.seen(notice)

    def seen(self, notice: Notice) -> None:
        """One event of the endpoint; a restarted agent sees the same one again."""
        if notice.kind == AT_RISK:
            report = AtRiskReport(event=notice.detail)
            self._context.report(report, key=f"at-risk-{notice.event}", urgent=True)
            return
        known = self._context.state.notice
        if known is None or known.event != notice.event:
            known = self._new(notice)
        if known.state is NoticeState.SEEN:
            known = self._decide(notice, known)
        elif known.state is NoticeState.REQUESTED and known.request is not None:
            self._attempt.resume_notice(known.request, known.deadline)
        self._context.retrier.hurry.set()
        if known.state in COVERED:
            self._attempt.covered.set()
        if known.state not in NOTICES.terminal:
            self._acknowledging.start(self._when_covered(notice))

    def _new(self, notice: Notice) -> NoticeSeen:
        """On the disk before the save is asked for: whatever is handed over from now on answers."""
        now = self._context.now()
        announced = notice.deadline_monotonic is not None
        deadline = notice.deadline_monotonic
        if deadline is None:
            deadline = now + self._context.assignment.policy.grace_s
        before_s = self._context.assignment.policy.release_before_s
        known = NoticeSeen(
            event=notice.event,
            seen=now,
            deadline=deadline,
            announced=announced,
            release_at=None if notice.release is None else max(now, deadline - before_s),
        )
        self._context.state_file.set(notice=known)
        return known

    def _decide(self, notice: Notice, known: NoticeSeen) -> NoticeSeen:
        """Ask for an emergency save, or do not; report the reason."""
        context = self._context
        self._attempt.covered.clear()
        answer = self._attempt.on_notice(notice.event, known.deadline)
        if answer.ask is not None:
            known = known.after(NoticeEvent.REQUEST, request=answer.ask.request)
        else:
            known = known.after(NoticeEvent.DECLINE)
        context.state_file.set(notice=known)
        report = NoticeReport(
            event=notice.event,
            deadline_in_s=known.deadline - context.now() if known.announced else None,
            fits=answer.fits,
            reason=answer.reason,
        )
        context.report(report, key=f"notice-{notice.event}", urgent=True)
        context.note(f"notice: {notice.detail}; {answer.reason}")
        return known

    async def _when_covered(self, notice: Notice) -> None:
        """Acknowledge the notice when nothing more is to be saved, and never before."""
        await self._attempt.covered.wait()
        self._advance(notice, NoticeEvent.FINISH)  # refused where a commit has closed it
        await self._until_not_needed()
        await self._final_sync()
        taken = await self._acknowledge(notice)
        if taken:
            report = AcknowledgedReport(event=notice.event)
            self._context.report(report, key=f"acknowledged-{notice.event}", urgent=True)
            self._context.note("the notice is acknowledged: the cloud may take this VM")
        self._advance(notice, NoticeEvent.ACKNOWLEDGE if taken else NoticeEvent.REFUSE)

    async def _until_not_needed(self) -> None:
        """The VM trains on: the cloud takes it seconds after it was told, and the replacement is
        not ready yet. So until the process is over (the master ends it when the replacement is),
        the last save before the deadline is made, or the deadline is near with nothing under way.
        A newer notice has its own deadline and its own save, and this one waits for both.
        """
        while not (attempt := self._attempt).over.is_set():
            known = self._context.state.notice
            if known is None or known.release_at is None:
                return
            near = self._context.now() >= known.release_at and not attempt.saves_for_notice
            if attempt.covered.is_set() and (near or attempt.has_made_its_last_save):
                return
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(attempt.over.wait(), LOOK_S)

    def _advance(self, notice: Notice, event: NoticeEvent) -> None:
        """Nothing where a newer notice has taken this one's place, or its state has no such step:
        a commit may come in between."""
        known = self._context.state.notice
        if known is not None and known.event == notice.event and known.takes(event):
            self._context.state_file.set(notice=known.after(event))
