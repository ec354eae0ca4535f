"""Users that can be disabled, tokens with a role and an expiry, and browsers that logged in."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("users") as batch_op:
        batch_op.add_column(sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True))
    with op.batch_alter_table("tokens") as batch_op:
        batch_op.add_column(sa.Column("role", sa.String(length=16), nullable=True))
        batch_op.add_column(sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True))
        batch_op.create_check_constraint(
            op.f("ck_tokens_role"), "role IN ('admin', 'user', 'viewer')"
        )
    op.create_table(
        "logins",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("token_id", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["token_id"], ["tokens.id"], name=op.f("fk_logins_token_id_tokens")
        ),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_logins")),
    )
    with op.batch_alter_table("logins") as batch_op:
        batch_op.create_index(op.f("ix_logins_token_id"), ["token_id"])
        batch_op.create_index(op.f("ix_logins_expires_at"), ["expires_at"])


def downgrade() -> None:
    op.drop_table("logins")
    with op.batch_alter_table("tokens") as batch_op:
        batch_op.drop_constraint(op.f("ck_tokens_role"), type_="check")
        batch_op.drop_column("expires_at")
        batch_op.drop_column("role")
    with op.batch_alter_table("users") as batch_op:
        batch_op.drop_column("disabled_at")
