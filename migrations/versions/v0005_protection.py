"""Places: what is missing where nothing protects the work of a process."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("places") as batch_op:
        batch_op.add_column(sa.Column("unprotected", sa.JSON(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("places") as batch_op:
        batch_op.drop_column("unprotected")
