"""Several masters: who there is, which loop runs where, and which jobs changed for the others."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

AT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "masters",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("url", sa.String(length=255), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("loops", sa.Boolean(), nullable=False),
        sa.Column("started_at", AT, nullable=False),
        sa.Column("seen_at", AT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_masters")),
    )
    op.create_table(
        "loops",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("master_id", sa.String(length=36), nullable=True),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("since", AT, nullable=True),
        sa.Column("until", AT, nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_loops")),
    )
    op.create_table(
        "job_changes",
        sa.Column("xid", sa.BigInteger(), nullable=False),
        sa.Column("job_id", sa.String(length=80), nullable=False),
        sa.Column("master_id", sa.String(length=36), nullable=False),
        sa.Column("at", AT, nullable=False),
        sa.PrimaryKeyConstraint("xid", "job_id", name=op.f("pk_job_changes")),
    )
    op.create_index(op.f("ix_job_changes_at"), "job_changes", ["at"])


def downgrade() -> None:
    for table in ("job_changes", "loops", "masters"):
        op.drop_table(table)
