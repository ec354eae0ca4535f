"""VMs: what the user data of a launch is made of, and its hash."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("vms", sa.Column("boot", sa.Text(), nullable=True))
    op.add_column("vms", sa.Column("user_data_sha256", sa.String(length=64), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("vms") as batch_op:
        batch_op.drop_column("user_data_sha256")
        batch_op.drop_column("boot")
