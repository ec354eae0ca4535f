"""What jobs keep secret has a column of its own, and the keys in use a table.

Nothing is encrypted here, where no key is: the program does it when it starts
(`store/sealing.renew`), with the rows that have no value in the new column yet.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sealing_keys",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sealing_keys")),
    )
    op.add_column("jobs", sa.Column("sealed", sa.Text(), nullable=True))
    op.create_index(
        "ix_jobs_not_sealed",
        "jobs",
        ["id"],
        sqlite_where=sa.text("sealed IS NULL"),
        postgresql_where=sa.text("sealed IS NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_not_sealed", table_name="jobs")
    op.drop_column("jobs", "sealed")
    op.drop_table("sealing_keys")
