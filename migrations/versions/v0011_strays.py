"""VMs with our tag that no row owns, as the sweep sees them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "strays",
        sa.Column("cloud", sa.String(length=32), nullable=False),
        sa.Column("cloud_id", sa.String(length=128), nullable=False),
        sa.Column("region", sa.String(length=64), nullable=False),
        sa.Column("zone", sa.String(length=64), nullable=False),
        sa.Column("vm_type", sa.String(length=64), nullable=False),
        sa.Column("spot", sa.Boolean(), nullable=False),
        sa.Column("launched_at", moment, nullable=False),
        sa.Column("found_at", moment, nullable=False),
        sa.Column("held", sa.Text(), nullable=False),
        sa.Column("end_wanted_at", moment, nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("next_at", moment, nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cloud", "cloud_id", name=op.f("pk_strays")),
    )


def downgrade() -> None:
    op.drop_table("strays")
