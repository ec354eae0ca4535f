"""VMs: since when their cloud recommends to leave them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("vms", sa.Column("at_risk_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("vms") as batch_op:
        batch_op.drop_column("at_risk_at")
