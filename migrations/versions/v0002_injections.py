"""Planned preemptions of jobs under test."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "injections",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job_id", sa.String(length=80), nullable=False),
        sa.Column("vm_id", sa.String(length=64), nullable=True),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.Column("last_vm_id", sa.String(length=64), nullable=True),
        sa.Column("claimed_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_injections_job_id_jobs")),
        sa.ForeignKeyConstraint(["vm_id"], ["vms.id"], name=op.f("fk_injections_vm_id_vms")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_injections")),
    )
    with op.batch_alter_table("injections", schema=None) as batch_op:
        batch_op.create_index(
            "uq_injections_one_under_way",
            ["job_id"],
            unique=True,
            sqlite_where=sa.text("ended_at IS NULL"),
            postgresql_where=sa.text("ended_at IS NULL"),
        )


def downgrade() -> None:
    op.drop_table("injections")
