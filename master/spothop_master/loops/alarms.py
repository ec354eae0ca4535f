"""Judges which alarms begin and end, and tells webhooks of them.

Two passes. The first compares what the rules say of each job with the rows, and writes what is new.
The second sends what waits in the outbox: without a session while it sends (I4), so a master that
is killed between the two sends the same again, with the same id.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from spothop.backoff import delay_s
from spothop.jobspec import AlarmsSpec
from spothop.wire import Alarm
from spothop_master.core.alarms import alarms
from spothop_master.loops.snapshot import jobs_to_watch
from spothop_master.settings import MasterSettings
from spothop_master.store import alarms as rows
from spothop_master.store import jobs, sealing, transitions
from spothop_master.store.db import Database
from spothop_master.store.schema import AlarmRow, Delivery, Job, User
from spothop_master.webhooks import Failed, Message, Target, Told

log = logging.getLogger(__name__)

FIRST_S, LONGEST_S = 10.0, 3600.0
"""Between two tries."""
GIVE_UP = timedelta(hours=24)
AT_ONCE = 20
"""Messages of one pass: each may take its whole time limit."""


@dataclass(frozen=True, kw_only=True)
class _Due:
    message: Message
    target: Target | None
    """None: there is no webhook any more."""
    tries: int
    since: datetime


class Alarms:
    """`send` tells a webhook, and raises `Failed`; `rand` is uniform in [0, 1)."""

    def __init__(
        self,
        db: Database,
        settings: MasterSettings,
        clock: Callable[[], datetime],
        *,
        send: Callable[[Target, Message], None],
        rand: Callable[[], float],
        new_id: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._db = db
        self._settings = settings
        self._clock = clock
        self._send = send
        self._rand = rand
        self._new_id = new_id
        self._specs: dict[str, tuple[rows.Retries, frozenset[Alarm], bool]] = {}
        """Of each job: its retries, what it wants to hear nothing of, and whether it has a webhook;
        none of them ever changes."""

    def run_once(self) -> None:
        self.judge()
        self.tell()

    # -- which there are -------------------------------------------------------------------------

    def judge(self) -> None:
        """Compare, and write what is new; a job in a transaction of its own."""
        now = self._clock()
        with self._db.read() as session:
            watched = jobs_to_watch(session)
            self._know(session, watched)
            found = {job: [*kinds] for job, kinds in rows.lasting(session).items()}
        wanted: dict[str, dict[Alarm, str]] = {job: {} for job in found}
        for first in range(0, len(watched), rows.IN_ONE_QUERY):
            some = watched[first : first + rows.IN_ONE_QUERY]
            with self._db.read() as session:
                facts = rows.facts_of(session, some, lambda job: self._specs[job][0], now=now)
            for job, each in facts.items():
                muted = self._specs[job][1]
                wanted[job] = {k: why for k, why in alarms(each).items() if k not in muted}
        for job_id, kinds in wanted.items():
            if {*kinds} != {*found.get(job_id, ())}:
                self._write(job_id, kinds, now)

    def _write(self, job_id: str, kinds: dict[Alarm, str], now: datetime) -> None:
        targets = ["installation"] if self._settings.alarm_webhook else []
        if self._specs.get(job_id, (None, None, False))[2]:
            targets.append("job")
        with self._db.begin() as session:
            job = session.get_one(Job, job_id)
            rows.change(session, job, kinds, targets=targets, new_id=self._new_id, now=now)

    def _know(self, session: Session, watched: list[str]) -> None:
        lasting = [*rows.lasting(session)]
        for job_id in {*watched, *lasting} - self._specs.keys():
            spec = jobs.spec_of(session.get_one(Job, job_id))
            retries = rows.Retries(
                user=spec.retries.user,
                infrastructure=spec.retries.infrastructure,
                hang=spec.retries.hang,
            )
            self._specs[job_id] = (retries, frozenset(spec.alarms.mute), bool(spec.alarms.webhook))
        for job_id in self._specs.keys() - {*watched, *lasting}:
            del self._specs[job_id]

    # -- who hears of them -----------------------------------------------------------------------

    def tell(self) -> None:
        """Send what is due, and write down what came of it."""
        with self._db.read() as session:
            due = self._due(session)
        for delivery_id, each in due.items():
            error = "there is no webhook for it any more" if each.target is None else None
            final = each.target is None
            if each.target is not None:
                try:
                    self._send(each.target, each.message)
                except Failed as failed:
                    error, final = str(failed), failed.final
                    log.info("alarm %s: %s", delivery_id, failed)
            self._note(delivery_id, each, error, final=final)

    def _due(self, session: Session) -> dict[str, _Due]:
        query = (
            select(Delivery, AlarmRow, Job, User.name)
            .join(AlarmRow, AlarmRow.id == Delivery.alarm_id)
            .join(Job, Job.id == AlarmRow.job_id)
            .join(User, User.id == Job.owner_id)
            .where(Delivery.done_at.is_(None), Delivery.next_at <= self._clock())
            .order_by(Delivery.next_at)
            .limit(AT_ONCE)
        )
        return {
            delivery.id: _Due(
                message=Message(
                    id=delivery.id,
                    at=delivery.at,
                    told=Told(
                        job=job.id,
                        name=job.name,
                        owner=owner,
                        alarm=alarm.kind,
                        reason=alarm.why,
                        over=delivery.over,
                        since=alarm.began_at,
                    ),
                ),
                target=self._target(session, job, delivery.target),
                tries=delivery.tries,
                since=delivery.at,
            )
            for delivery, alarm, job, owner in session.execute(query)
        }

    def _target(self, session: Session, job: Job, whose: str) -> Target | None:
        settings = self._settings
        if whose == "installation":
            if not settings.alarm_webhook:
                return None
            return Target(
                url=settings.alarm_webhook,
                secret=settings.alarm_webhook_secret,
                slack=settings.alarm_webhook_format == "slack",
                private=True,
            )
        try:
            spec: AlarmsSpec = jobs.whole_spec_of(session, job).alarms
        except sealing.Unreadable:
            return None
        if not spec.webhook:
            return None
        return Target(
            url=spec.webhook,
            secret=spec.secret,
            slack=spec.format == "slack",
            private=settings.alarm_private_targets,
        )

    def _note(self, delivery_id: str, sent: _Due, error: str | None, *, final: bool) -> None:
        now = self._clock()
        with self._db.begin() as session:
            row = session.get_one(Delivery, delivery_id)
            row.tries, row.error = sent.tries + 1, error or ""
            gives_up = error is not None and (final or now - sent.since >= GIVE_UP)
            if error is None or gives_up:
                row.done_at = now
            else:
                seconds = delay_s(row.tries, base_s=FIRST_S, max_s=LONGEST_S, jitter=self._rand())
                row.next_at = now + timedelta(seconds=seconds)
            if gives_up and sent.target is not None:
                job = session.get_one(Job, sent.message.told.job)
                text = f"the {row.target}'s webhook was not told of an alarm: {error}"
                data = {"level": "warning"}
                transitions.record(session, "message", text, now=now, row=job, data=data)
