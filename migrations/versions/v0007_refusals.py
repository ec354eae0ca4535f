"""Refusals are counted by job and pool, and back-offs of zones, regions and accounts are shared.

The rows of refused launches become counts. Those that fill no place of an attempt go, unless their
launch had no clear answer: there never was a VM behind them. Their events stay, without its name.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_ERRORS = (
    "CloudError",
    "NoCapacity",
    "QuotaExceeded",
    "PriceTooHigh",
    "Throttled",
    "Unavailable",
    "Ambiguous",
    "BadRequest",
    "AuthFailed",
)
_POOL = ("cloud", "region", "zone", "vm_type", "spot")


def _listed(column: str, values: Sequence[str]) -> str:
    return f"{column} IN ({', '.join(repr(value) for value in values)})"


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "refusals",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job_id", sa.String(length=80), nullable=False),
        sa.Column("cloud", sa.String(length=32), nullable=False),
        sa.Column("region", sa.String(length=64), nullable=False),
        sa.Column("zone", sa.String(length=64), nullable=False),
        sa.Column("vm_type", sa.String(length=64), nullable=False),
        sa.Column("spot", sa.Boolean(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("in_row", sa.Integer(), nullable=False),
        sa.Column("first_at", moment, nullable=False),
        sa.Column("last_at", moment, nullable=False),
        sa.Column("until", moment, nullable=True),
        sa.Column("error", sa.String(length=24), nullable=False),
        sa.Column("code", sa.String(length=128), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.CheckConstraint(_listed("error", _ERRORS), name=op.f("ck_refusals_error")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_refusals_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_refusals")),
        sa.UniqueConstraint(
            "job_id", *_POOL, name=op.f("uq_refusals_job_id_cloud_region_zone_vm_type_spot")
        ),
    )
    op.create_table(
        "backoffs",
        sa.Column("cloud", sa.String(length=32), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=160), nullable=False),
        sa.Column("until", moment, nullable=False),
        sa.Column("refusals", sa.Integer(), nullable=False),
        sa.Column("last_at", moment, nullable=False),
        sa.Column("error", sa.String(length=24), nullable=False),
        sa.Column("code", sa.String(length=128), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.CheckConstraint(_listed("error", _ERRORS), name=op.f("ck_backoffs_error")),
        sa.CheckConstraint(
            _listed("scope", ("pool", "zone", "region", "account")), name=op.f("ck_backoffs_scope")
        ),
        sa.PrimaryKeyConstraint("cloud", "scope", "name", name=op.f("pk_backoffs")),
    )
    _count()
    _drop_rows()


def downgrade() -> None:
    op.drop_table("backoffs")
    op.drop_table("refusals")


def _count() -> None:
    """What the rows say: how often, when first and last; the error is that of the last one."""
    connection = op.get_bind()
    tables = sa.MetaData()
    tables.reflect(connection, only=["vms", "refusals"])
    vms, refusals = tables.tables["vms"], tables.tables["refusals"]
    query = sa.select(vms).where(vms.c.refusal.is_not(None), vms.c.job_id.is_not(None))
    found: dict[tuple[object, ...], dict[str, object]] = {}
    for row in connection.execute(query.order_by(vms.c.requested_at)).mappings():
        at = row["ended_at"] or row["requested_at"]
        key = (row["job_id"], *(row[name] for name in _POOL))
        known = found.setdefault(key, {"count": 0, "first_at": at})
        known |= {
            "count": int(str(known["count"])) + 1,
            "last_at": at,
            "error": row["refusal"],
            "detail": row["detail"],
        }
    for key, counted in found.items():
        named = dict(zip(("job_id", *_POOL), key, strict=True))
        connection.execute(refusals.insert().values(**named, **counted, in_row=0))


def _drop_rows() -> None:
    connection = op.get_bind()
    tables = sa.MetaData()
    tables.reflect(connection, only=["vms", "places", "injections", "events"])
    vms, events = tables.tables["vms"], tables.tables["events"]
    refers = [
        sa.select(tables.tables[name].c.vm_id).where(tables.tables[name].c.vm_id.is_not(None))
        for name in ("places", "injections")
    ]
    gone = sa.and_(
        vms.c.state == "terminated",
        vms.c.reason == "launch_failed",
        vms.c.refusal != "Ambiguous",
        *(vms.c.id.not_in(query) for query in refers),
    )
    ids = sa.select(vms.c.id).where(gone)
    connection.execute(events.update().where(events.c.vm_id.in_(ids)).values(vm_id=None))
    connection.execute(vms.delete().where(gone))
