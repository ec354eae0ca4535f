"""Places: one row for each node of an attempt, in place of the columns for its one VM.

Expands, copies, contracts: an attempt of the releases before becomes a gang of one, node 0. The way
back is refused where an attempt has more nodes than the old columns can hold.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_MOVED: dict[str, sa.types.TypeEngine[Any]] = {
    "prepared_at": sa.DateTime(timezone=True),
    "started_at": sa.DateTime(timezone=True),
    "first_step_at": sa.DateTime(timezone=True),
    "notice_at": sa.DateTime(timezone=True),
    "deadline_at": sa.DateTime(timezone=True),
    "notice_fits": sa.Boolean(),
    "step_at_notice": sa.Integer(),
    "last_step": sa.Integer(),
    "last_step_at": sa.DateTime(timezone=True),
    "exit_code": sa.Integer(),
    "exit_signal": sa.Integer(),
}
"""Facts of one VM, or of the process on it; all of them may be unknown."""

_attempts = sa.table("attempts", *(sa.column(n) for n in ("id", "vm_id", "state", *_MOVED)))
_places = sa.table(
    "places", *(sa.column(n) for n in ("attempt_id", "node", "vm_id", "living", *_MOVED))
)


def upgrade() -> None:
    _make_places()
    copied = sa.select(
        _attempts.c.id,
        sa.literal(0),
        _attempts.c.vm_id,
        _attempts.c.state != "ended",
        *(_attempts.c[name] for name in _MOVED),
    )
    op.execute(
        _places.insert().from_select(["attempt_id", "node", "vm_id", "living", *_MOVED], copied)
    )
    with op.batch_alter_table("attempts") as batch_op:
        batch_op.drop_index(op.f("ix_attempts_vm_id"))
        batch_op.drop_constraint(op.f("fk_attempts_vm_id_vms"), type_="foreignkey")
        for name in ("vm_id", *_MOVED):
            batch_op.drop_column(name)


def downgrade() -> None:
    gangs = sa.select(sa.func.count()).select_from(_places).where(_places.c.node > 0)
    if op.get_bind().execute(gangs).scalar():
        raise CommandError(
            "some attempts have several nodes, and the release before knows no such attempts: "
            "delete the jobs of several nodes first"
        )
    with op.batch_alter_table("attempts") as batch_op:
        batch_op.add_column(sa.Column("vm_id", sa.String(length=64), nullable=True))
        for name, kind in _MOVED.items():
            batch_op.add_column(sa.Column(name, kind, nullable=True))
    mine = _places.c.attempt_id == _attempts.c.id
    op.execute(
        _attempts.update().values(
            {
                name: sa.select(_places.c[name]).where(mine).scalar_subquery()
                for name in ("vm_id", *_MOVED)
            }
        )
    )
    with op.batch_alter_table("attempts") as batch_op:
        batch_op.alter_column("vm_id", existing_type=sa.String(length=64), nullable=False)
        batch_op.create_foreign_key(op.f("fk_attempts_vm_id_vms"), "vms", ["vm_id"], ["id"])
        batch_op.create_index(op.f("ix_attempts_vm_id"), ["vm_id"], unique=False)
    op.drop_table("places")


def _make_places() -> None:
    op.create_table(
        "places",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column(
            "attempt_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("node", sa.Integer(), nullable=False),
        sa.Column("vm_id", sa.String(length=64), nullable=False),
        sa.Column("living", sa.Boolean(), nullable=False),
        sa.Column("address", sa.String(length=255), nullable=True),
        *(sa.Column(name, kind, nullable=True) for name, kind in _MOVED.items()),
        sa.Column("reason", sa.String(length=24), nullable=True),
        sa.CheckConstraint(
            "reason IN ('succeeded', 'preempted', 'user_failure', 'out_of_memory', 'hang', "
            "'infrastructure', 'fenced', 'cancelled', 'paused')",
            name=op.f("ck_places_reason"),
        ),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempts.id"], name=op.f("fk_places_attempt_id_attempts")
        ),
        sa.ForeignKeyConstraint(["vm_id"], ["vms.id"], name=op.f("fk_places_vm_id_vms")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_places")),
        sa.UniqueConstraint("attempt_id", "node", name=op.f("uq_places_attempt_id_node")),
    )
    with op.batch_alter_table("places") as batch_op:
        batch_op.create_index(batch_op.f("ix_places_vm_id"), ["vm_id"], unique=False)
        batch_op.create_index(
            "uq_places_one_living",
            ["vm_id"],
            unique=True,
            sqlite_where=sa.text("living"),
            postgresql_where=sa.text("living"),
        )
