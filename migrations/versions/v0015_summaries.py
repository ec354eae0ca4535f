"""What lists of jobs are made of: summaries, the newest metrics of attempts, and indexes.

The summaries of older jobs are written by the program when it starts (`store/summaries.fill`): what
they say has one formula, and it is there.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

NAMES = 1_000
"""Of one attempt; older releases took any number of them."""

INDEXES = (
    ("ix_jobs_submitted_at_id", "jobs", ["submitted_at", "id"]),
    ("ix_jobs_state_submitted_at_id", "jobs", ["state", "submitted_at", "id"]),
    ("ix_jobs_owner_id_submitted_at_id", "jobs", ["owner_id", "submitted_at", "id"]),
    (
        "ix_jobs_owner_id_state_submitted_at_id",
        "jobs",
        ["owner_id", "state", "submitted_at", "id"],
    ),
    ("ix_jobs_ended_at_submitted_at_id", "jobs", ["ended_at", "submitted_at", "id"]),
    ("ix_vms_requested_at_id", "vms", ["requested_at", "id"]),
    ("ix_vms_state_requested_at_id", "vms", ["state", "requested_at", "id"]),
    ("ix_vms_job_id_requested_at_id", "vms", ["job_id", "requested_at", "id"]),
)

attempts = sa.table(
    "attempts",
    sa.column("id", sa.BigInteger()),
    sa.column("job_id", sa.String()),
    sa.column("number", sa.Integer()),
    sa.column("metrics", sa.JSON()),
)
metrics = sa.table(
    "metrics",
    sa.column("id", sa.BigInteger()),
    sa.column("job_id", sa.String()),
    sa.column("attempt", sa.Integer()),
    sa.column("name", sa.String()),
    sa.column("value", sa.Float()),
)


def upgrade() -> None:
    op.create_table(
        "summaries",
        sa.Column("job_id", sa.String(80), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("vm_id", sa.String(64), nullable=True),
        sa.Column("pool", sa.JSON(), nullable=True),
        sa.Column("starting", sa.Boolean(), nullable=False),
        sa.Column("unprotected", sa.JSON(), nullable=True),
        sa.Column("preemptions", sa.Integer(), nullable=False),
        sa.Column("saves", sa.JSON(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("ran_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("cost", sa.Float(53), nullable=False),
        sa.Column("cost_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("rate", sa.Float(53), nullable=False),
        sa.Column("useful", sa.Float(53), nullable=False),
        sa.Column("start", sa.Float(53), nullable=False),
        sa.Column("ran_rate", sa.Float(53), nullable=False),
        sa.Column("any_spot", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_summaries_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_summaries")),
    )
    op.add_column("attempts", sa.Column("metrics", sa.JSON(), nullable=True))
    _newest_metrics(op.get_bind())
    for name, table, columns in INDEXES:
        op.create_index(name, table, columns)


def _newest_metrics(connection: sa.Connection) -> None:
    newest = sa.select(sa.func.max(metrics.c.id)).group_by(
        metrics.c.job_id, metrics.c.attempt, metrics.c.name
    )
    query = sa.select(metrics).where(metrics.c.id.in_(newest))
    found: dict[tuple[str, int], dict[str, float]] = {}
    for row in connection.execute(query):
        values = found.setdefault((row.job_id, row.attempt), {})
        if len(values) < NAMES:
            values[row.name] = row.value
    for (job_id, number), values in found.items():
        of_attempt = (attempts.c.job_id == job_id) & (attempts.c.number == number)
        connection.execute(sa.update(attempts).where(of_attempt).values(metrics=values))


def downgrade() -> None:
    for name, table, _ in INDEXES:
        op.drop_index(name, table_name=table)
    op.drop_column("attempts", "metrics")
    op.drop_table("summaries")
