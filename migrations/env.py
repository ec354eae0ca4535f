"""Alembic's entry point: on the connection of `Database.migrate`, or on a URL for developers."""

from __future__ import annotations

from typing import Any, Literal

import sqlalchemy as sa
from alembic import context
from alembic.autogenerate.api import AutogenContext

from spothop_master.store.columns import UtcDateTime
from spothop_master.store.schema import Base


def render(kind: str, item: Any, _context: AutogenContext) -> str | Literal[False]:
    """Revisions name SQLAlchemy's own types: ours may move."""
    return "sa.DateTime(timezone=True)" if isinstance(item, UtcDateTime) else False


def migrate(connection: sa.Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        compare_type=True,
        render_item=render,
        render_as_batch=True,  # SQLite alters no column: Alembic copies the table
    )
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    given = context.config.attributes.get("connection")
    if given is not None:
        migrate(given)
        return
    url = context.get_x_argument(as_dictionary=True).get("url")
    engine = sa.create_engine(
        url or context.config.get_main_option("sqlalchemy.url") or "sqlite://"
    )
    with engine.begin() as connection:
        migrate(connection)


main()
