"""VMs: what somebody has to do about one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("vms", sa.Column("hint", sa.Text(), server_default="", nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("vms") as batch_op:
        batch_op.drop_column("hint")
