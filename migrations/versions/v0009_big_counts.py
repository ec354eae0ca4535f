"""Steps and counters in 64 bits. SQLite's integers have them already."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_COUNTS = (
    ("attempts", "restored_step", True),
    ("places", "step_at_notice", True),
    ("places", "last_step", True),
    ("vms", "acked_seq", False),
    ("checkpoints", "n", False),
    ("checkpoints", "step", False),
    ("metrics", "step", False),
    ("observations", "n", False),
)
"""Table, column, and whether it may be null."""


def upgrade() -> None:
    _change(sa.Integer(), sa.BigInteger())


def downgrade() -> None:
    """PostgreSQL refuses it where a number does not fit any more."""
    _change(sa.BigInteger(), sa.Integer())


def _change(before: sa.types.TypeEngine[int], after: sa.types.TypeEngine[int]) -> None:
    if op.get_bind().dialect.name == "sqlite":
        return
    for table, column, nullable in _COUNTS:
        op.alter_column(
            table, column, existing_type=before, type_=after, existing_nullable=nullable
        )
