"""Running sums of observations, and indexes for what is asked all the time.

The sums of what was observed before are made here, once.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_ZONE = ("cloud", "region", "vm_type", "spot", "zone", "kind", "censored", "evidence")
_JOB = ("job_id", "kind", "censored")
_ZONE_KINDS = ("life", "allocation", "preparation", "emergency")
_JOB_KINDS = ("save", "backup")
_EVIDENCE = ("", "notice", "cloud", "silence", "released", "no_notice")
_NEW = {
    "ix_vms_not_ended": ("vms", ["cloud", "region", "vm_type", "spot", "zone", "running_at"]),
    "ix_checkpoints_job_id_attempt_n": ("checkpoints", ["job_id", "attempt", "n"]),
    "ix_checkpoints_job_id_kind_n": ("checkpoints", ["job_id", "kind", "n"]),
    "ix_events_job_id_id": ("events", ["job_id", "id"]),
    "ix_events_job_id_kind_id": ("events", ["job_id", "kind", "id"]),
    "ix_observations_region_at": (
        "observations",
        ["kind", "cloud", "region", "vm_type", "spot", "at"],
    ),
    "ix_observations_job_id_kind": ("observations", ["job_id", "kind"]),
}
_WHERE = {"ix_vms_not_ended": "ended_at IS NULL"}
_OLD = {
    "ix_checkpoints_job_id": ("checkpoints", ["job_id"]),
    "ix_events_job_id": ("events", ["job_id"]),
    "ix_observations_job_id": ("observations", ["job_id"]),
    "ix_observations_pool": (
        "observations",
        ["kind", "cloud", "region", "zone", "vm_type", "spot"],
    ),
}


def upgrade() -> None:
    for name, (table, columns) in _NEW.items():
        where = sa.text(_WHERE[name]) if name in _WHERE else None
        op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)
    for name, (table, _) in _OLD.items():
        op.drop_index(name, table)
    _make_tables()
    _sum_up("zone_sums", _ZONE, _ZONE_KINDS, newest=True)
    _sum_up("job_sums", _JOB, _JOB_KINDS, newest=False)


def downgrade() -> None:
    op.drop_table("job_sums")
    op.drop_table("zone_sums")
    for name, (table, columns) in _OLD.items():
        op.create_index(name, table, columns)
    for name, (table, _) in _NEW.items():
        op.drop_index(name, table)


def _make_tables() -> None:
    op.create_table(
        "zone_sums",
        sa.Column("cloud", sa.String(length=32), nullable=False),
        sa.Column("region", sa.String(length=64), nullable=False),
        sa.Column("vm_type", sa.String(length=64), nullable=False),
        sa.Column("spot", sa.Boolean(), nullable=False),
        sa.Column("zone", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("censored", sa.Boolean(), nullable=False),
        sa.Column("evidence", sa.String(length=24), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("total", sa.Float(precision=53), nullable=False),
        sa.Column("newest_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(f"kind IN ({_listed(_ZONE_KINDS)})", name=op.f("ck_zone_sums_kind")),
        sa.CheckConstraint(
            f"evidence IN ({_listed(_EVIDENCE)})", name=op.f("ck_zone_sums_evidence")
        ),
        sa.PrimaryKeyConstraint(*_ZONE, name=op.f("pk_zone_sums")),
    )
    op.create_table(
        "job_sums",
        sa.Column("job_id", sa.String(length=80), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("censored", sa.Boolean(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("total", sa.Float(precision=53), nullable=False),
        sa.CheckConstraint(f"kind IN ({_listed(_JOB_KINDS)})", name=op.f("ck_job_sums_kind")),
        sa.PrimaryKeyConstraint(*_JOB, name=op.f("pk_job_sums")),
    )


def _sum_up(table: str, key: tuple[str, ...], kinds: tuple[str, ...], *, newest: bool) -> None:
    made = [*key, "count", "total", *(["newest_at"] if newest else [])]
    seen = sa.table("observations", *(sa.column(n) for n in (*key, "value", "at", "job_id")))
    columns = [seen.c[name] for name in key]
    sums = [
        sa.func.count(),
        sa.func.sum(seen.c.value),
        *([sa.func.max(seen.c.at)] if newest else []),
    ]
    query = sa.select(*columns, *sums).where(seen.c.kind.in_(kinds)).group_by(*columns)
    if "job_id" in key:
        query = query.where(seen.c.job_id.is_not(None))
    op.execute(
        sa.table(table, *(sa.column(name) for name in made)).insert().from_select(made, query)
    )


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(f"'{value}'" for value in values)
