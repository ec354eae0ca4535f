"""Who has uploaded which code bundle: only they may run it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "bundle_uploads",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("uploaded_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_bundle_uploads_user_id_users")
        ),
        sa.PrimaryKeyConstraint("sha256", "user_id", name=op.f("pk_bundle_uploads")),
    )


def downgrade() -> None:
    op.drop_table("bundle_uploads")
