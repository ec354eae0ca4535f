"""The tables of the installation and its masters. Part of `schema`, where their users find them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from spothop_master.store.columns import Base

ONLY = 1
"""The id of the one row of `installation`."""


class Installation(Base):
    """One row: whose database this is (`store.installation`)."""

    __tablename__ = "installation"
    __table_args__ = (CheckConstraint(f"id = {ONLY}", name="id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(40))
    """In the tags of its VMs."""
    created_at: Mapped[datetime]
    key_id: Mapped[str | None] = mapped_column(String(16))
    """Of the master key that every master's file must have; None: of none yet."""
    ca_pem: Mapped[str | None] = mapped_column(Text)
    """Of several masters with TLS of their own: the authority that all of them use, in PEM."""
    ca_key: Mapped[str | None] = mapped_column(Text)
    """Its key, sealed."""


class Master(Base):
    """A master process that works on this database, or did lately."""

    __tablename__ = "masters"
    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    """Of the process: a restart is another one."""
    name: Mapped[str] = mapped_column(String(255))
    """For people: its machine and port."""
    url: Mapped[str] = mapped_column(String(255))
    """At which other masters reach it."""
    version: Mapped[str] = mapped_column(String(64))
    loops: Mapped[bool]
    """It may run them; False: it only answers."""
    started_at: Mapped[datetime]
    seen_at: Mapped[datetime]


class Loop(Base):
    """A loop that runs in one master at a time (`store.elections`)."""

    __tablename__ = "loops"
    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    master_id: Mapped[str | None] = mapped_column(String(36))
    generation: Mapped[int] = mapped_column(BigInteger, default=0)
    """Grows with each election: a master that was stopped meanwhile knows an older one."""
    since: Mapped[datetime | None]
    until: Mapped[datetime | None]


class JobChange(Base):
    """A job that a transaction changed, for the other masters (`store.feed`). PostgreSQL only."""

    __tablename__ = "job_changes"
    xid: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    """The transaction's id."""
    job_id: Mapped[str] = mapped_column(String(80), primary_key=True)
    master_id: Mapped[str] = mapped_column(String(36))
    """Whose transaction it was."""
    at: Mapped[datetime] = mapped_column(index=True)
