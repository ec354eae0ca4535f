"""VMs: the version of the agent protocol that was agreed on when it joined."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("vms", sa.Column("protocol", sa.Integer(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("vms") as batch_op:
        batch_op.drop_column("protocol")
