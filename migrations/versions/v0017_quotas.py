"""How much of a master each user may take; NULL is what the settings say."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("users", sa.Column("max_jobs", sa.Integer(), nullable=True))
    op.add_column("users", sa.Column("max_vms", sa.Integer(), nullable=True))
    op.add_column("users", sa.Column("max_bundle_bytes", sa.BigInteger(), nullable=True))
    op.add_column("users", sa.Column("max_log_bytes", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    for name in ("max_log_bytes", "max_bundle_bytes", "max_vms", "max_jobs"):
        op.drop_column("users", name)
