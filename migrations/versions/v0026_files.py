"""What masters keep in a bucket: logs, code bundles; and the certificate authority they share."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

AT = sa.DateTime(timezone=True)


def _place() -> list[sa.Column[object]]:
    return [
        sa.Column("job_id", sa.String(80), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("node", sa.Integer(), nullable=False),
    ]


def upgrade() -> None:
    op.create_table(
        "logs",
        *_place(),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("stored", sa.BigInteger(), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("grown_at", AT, nullable=False),
        sa.Column("removed", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "attempt", "node", name=op.f("pk_logs")),
    )
    op.create_table(
        "log_pieces",
        *_place(),
        sa.Column("begin", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", "node", "begin", name=op.f("pk_log_pieces")),
    )
    op.create_table(
        "bundle_files",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("used_at", AT, nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_bundle_files")),
    )
    op.add_column("installation", sa.Column("ca_pem", sa.Text(), nullable=True))
    op.add_column("installation", sa.Column("ca_key", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("installation") as batch_op:
        batch_op.drop_column("ca_key")
        batch_op.drop_column("ca_pem")
    for table in ("bundle_files", "log_pieces", "logs"):
        op.drop_table(table)
