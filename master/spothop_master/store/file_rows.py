"""The tables of what masters keep in a bucket: logs, and which code bundles there are. Part of
`schema`, where their users find them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from spothop_master.store.columns import Base


class LogRow(Base):
    """The log of one place; attempt 0 is the job itself (`bucket_logs`). Offsets are bytes."""

    __tablename__ = "logs"
    job_id: Mapped[str] = mapped_column(String(80), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    node: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    size: Mapped[int] = mapped_column(BigInteger)
    """Where the next chunk begins."""
    stored: Mapped[int] = mapped_column(BigInteger)
    """What is before it lies in the bucket, the rest in `log_pieces`."""
    first: Mapped[int] = mapped_column(BigInteger)
    """What is before it is not kept any more."""
    grown_at: Mapped[datetime]
    removed: Mapped[str | None] = mapped_column(Text)
    """Of attempt 0: why the logs of the job are gone."""


class LogPiece(Base):
    """The newest bytes of a log, until they are in the bucket."""

    __tablename__ = "log_pieces"
    job_id: Mapped[str] = mapped_column(String(80), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    node: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    begin: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    data: Mapped[bytes] = mapped_column(LargeBinary)


class BundleFileRow(Base):
    """A code bundle in the bucket (`bucket_bundles`)."""

    __tablename__ = "bundle_files"
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    key: Mapped[str] = mapped_column(String(200))
    """Of the object; never used again."""
    bytes: Mapped[int] = mapped_column(BigInteger)
    used_at: Mapped[datetime]
    """When it was sent or asked for last."""
