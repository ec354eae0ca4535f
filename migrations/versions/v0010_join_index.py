"""VMs by their one-time token: strangers may ask for one, too."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(op.f("ix_vms_join_hash"), "vms", ["join_hash"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_vms_join_hash"), table_name="vms")
