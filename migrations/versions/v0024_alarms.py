"""Alarms, what is to be told of them, and since when a process uses next to nothing of its VM."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

KINDS = (
    *("stale", "storage", "unprotected", "hang", "no_capacity", "unconfirmed"),
    *("retries", "idle", "notice_lost"),
)
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _one_of(column: str, values: tuple[str, ...], name: str) -> sa.CheckConstraint:
    allowed = ", ".join(f"'{value}'" for value in values)
    return sa.CheckConstraint(f"{column} IN ({allowed})", name=op.f(name))


def upgrade() -> None:
    op.create_table(
        "alarms",
        sa.Column("id", ID, nullable=False),
        sa.Column("job_id", sa.String(80), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("began_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_alarms_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alarms")),
        _one_of("kind", KINDS, "ck_alarms_kind"),
    )
    op.create_index("ix_alarms_job_id", "alarms", ["job_id"])
    op.create_index(
        "uq_alarms_one_of_a_kind",
        "alarms",
        ["job_id", "kind"],
        unique=True,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("alarm_id", ID, nullable=False),
        sa.Column("over", sa.Boolean(), nullable=False),
        sa.Column("target", sa.String(16), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("done_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["alarm_id"], ["alarms.id"], name=op.f("fk_deliveries_alarm_id_alarms")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
        _one_of("target", ("installation", "job"), "ck_deliveries_target"),
    )
    op.create_index("ix_deliveries_alarm_id", "deliveries", ["alarm_id"])
    op.create_index(
        "ix_deliveries_due",
        "deliveries",
        ["next_at"],
        sqlite_where=sa.text("done_at IS NULL"),
        postgresql_where=sa.text("done_at IS NULL"),
    )
    op.add_column("jobs", sa.Column("alarms", sa.JSON(), nullable=True))
    op.add_column("places", sa.Column("idle", sa.JSON(), nullable=True))


def downgrade() -> None:
    for table, column in (("places", "idle"), ("jobs", "alarms")):
        with op.batch_alter_table(table) as batch_op:
            batch_op.drop_column(column)
    op.drop_table("deliveries")
    op.drop_table("alarms")
