"""The tables of alarms and of what is to be told of them; part of `schema`."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from spothop.wire import Alarm
from spothop_master.store.columns import Base, BigId, one_of

TARGETS = ("installation", "job")
"""Whose webhook: of the master's settings, or of the job file."""


class AlarmRow(Base):
    """One alarm of a job, from its beginning to its end. One of a kind at a time."""

    __tablename__ = "alarms"
    __table_args__ = (
        Index(
            "uq_alarms_one_of_a_kind",
            "job_id",
            "kind",
            unique=True,
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
        one_of("kind", Alarm),
    )
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    kind: Mapped[str] = mapped_column(String(16))
    why: Mapped[str] = mapped_column(Text)
    began_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class Delivery(Base):
    """One message to one webhook, written in the transaction that makes what it tells: a master
    that is killed before it was sent loses none."""

    __tablename__ = "deliveries"
    __table_args__ = (
        Index(
            "ix_deliveries_due",
            "next_at",
            sqlite_where=text("done_at IS NULL"),
            postgresql_where=text("done_at IS NULL"),
        ),
        one_of("target", TARGETS),
    )
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    """Goes with each try: who gets it twice knows it by that."""
    alarm_id: Mapped[int] = mapped_column(ForeignKey("alarms.id"), index=True)
    over: Mapped[bool]
    """It tells that the alarm is over, and not that it begins."""
    target: Mapped[str] = mapped_column(String(16))
    at: Mapped[datetime]
    tries: Mapped[int] = mapped_column(default=0)
    next_at: Mapped[datetime]
    done_at: Mapped[datetime | None]
    error: Mapped[str] = mapped_column(Text, default="")
    """Of the newest try; of one that is done: why it was given up."""
