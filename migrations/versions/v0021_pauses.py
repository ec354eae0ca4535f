"""Jobs: since when one is paused, for how long it was, why, and whether it is to end at once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

COLUMNS = ("wanted_why", "at_once", "paused_at", "paused_s")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("wanted_why", sa.Text(), server_default="", nullable=False))
    op.add_column(
        "jobs", sa.Column("at_once", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    op.add_column("jobs", sa.Column("paused_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("jobs", sa.Column("paused_s", sa.Float(), server_default="0", nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("jobs") as batch_op:
        for column in COLUMNS:
            batch_op.drop_column(column)
