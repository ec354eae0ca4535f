"""The database itself refuses a state, a reason or a kind that the life cycles do not have.

A row that already holds such a value stops the revision, which then changes nothing: which value
was meant is for people to say, and a reader that met it later would fail far from its cause.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_END_REASONS = (
    "succeeded",
    "preempted",
    "user_failure",
    "out_of_memory",
    "hang",
    "infrastructure",
    "fenced",
    "cancelled",
    "paused",
)
_VALUES: dict[str, dict[str, tuple[str, ...]]] = {
    "users": {"role": ("admin", "user", "viewer")},
    "jobs": {
        "state": (
            "queued",
            "allocating",
            "preparing",
            "running",
            "draining",
            "paused",
            "succeeded",
            "failed",
            "cancelled",
        ),
        "wanted": ("running", "paused", "cancelled"),
    },
    "attempts": {
        "state": ("preparing", "running", "draining", "ended"),
        "reason": _END_REASONS,
        "stop_wanted": _END_REASONS,
    },
    "vms": {
        "dialect": ("aws", "azure", "gcp"),
        "state": (
            "requested",
            "booting",
            "ready",
            "running",
            "draining",
            "terminating",
            "terminated",
        ),
        "reason": (
            "preempted",
            "released",
            "launch_failed",
            "never_joined",
            "agent_lost",
            "failed",
            "orphan",
        ),
        "refusal": (
            "CloudError",
            "NoCapacity",
            "QuotaExceeded",
            "PriceTooHigh",
            "Throttled",
            "Unavailable",
            "Ambiguous",
            "BadRequest",
            "AuthFailed",
        ),
    },
    "checkpoints": {"kind": ("periodic", "insurance", "emergency")},
    "observations": {
        "kind": ("life", "allocation", "preparation", "save", "backup", "step", "emergency"),
        "evidence": ("", "notice", "cloud", "silence", "released", "no_notice"),
    },
}


def upgrade() -> None:
    if strange := _strange():
        raise CommandError(
            f"values that no life cycle has: {'; '.join(strange)}. Nothing was changed: correct "
            "those rows, then start the master again"
        )
    for table, columns in _VALUES.items():
        with op.batch_alter_table(table) as batch_op:
            for column, values in columns.items():
                batch_op.create_check_constraint(
                    op.f(f"ck_{table}_{column}"), f"{column} IN ({_listed(values)})"
                )


def downgrade() -> None:
    for table, columns in _VALUES.items():
        with op.batch_alter_table(table) as batch_op:
            for column in columns:
                batch_op.drop_constraint(op.f(f"ck_{table}_{column}"), type_="check")


def _strange() -> list[str]:
    """Values outside, such as `3 rows of jobs.state = 'sleeping'`."""
    found: list[str] = []
    for table, columns in _VALUES.items():
        for name, values in columns.items():
            column: sa.ColumnClause[str] = sa.column(name)
            query = (
                sa.select(column, sa.func.count())
                .select_from(sa.table(table))
                .where(column.not_in(values))
                .group_by(column)
                .order_by(column)
            )
            rows = op.get_bind().execute(query)
            found += [f"{row[1]} rows of {table}.{name} = {row[0]!r}" for row in rows]
    return found


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(f"'{value}'" for value in values)
