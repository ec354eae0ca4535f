"""The tables of the installation and its masters. Part of `schema`, where their users find them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, String
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
