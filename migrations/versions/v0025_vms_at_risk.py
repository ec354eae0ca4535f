"""VMs that their cloud recommended to leave, by region: what they say of their pools."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

_WHERE = sa.text("at_risk_at IS NOT NULL")


def upgrade() -> None:
    op.create_index(
        op.f("ix_vms_at_risk"),
        "vms",
        ["cloud", "region", "vm_type", "spot", "at_risk_at"],
        unique=False,
        sqlite_where=_WHERE,
        postgresql_where=_WHERE,
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_vms_at_risk"), table_name="vms")
