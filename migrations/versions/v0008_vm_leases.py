"""Leases: one for each VM in place of one for each job.

Expands, then contracts. Nothing is copied: a lease is worth nothing without the master that holds
it, and that one has ended before its database is migrated.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _add("vms")
    _drop("jobs")


def downgrade() -> None:
    _add("jobs")
    _drop("vms")


def _add(table: str) -> None:
    with op.batch_alter_table(table) as batch_op:
        batch_op.add_column(sa.Column("lease_token", sa.String(length=64), nullable=True))
        batch_op.add_column(sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True))


def _drop(table: str) -> None:
    with op.batch_alter_table(table) as batch_op:
        batch_op.drop_column("lease_until")
        batch_op.drop_column("lease_token")
