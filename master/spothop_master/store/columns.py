"""What the tables' columns are made of, alike in SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from enum import Enum

from sqlalchemy import BigInteger, CheckConstraint, DateTime, Dialect, Integer, TypeDecorator


class UtcDateTime(TypeDecorator[datetime]):
    """Aware UTC in Python whatever the database keeps; refuses naive values."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"naive datetime {value!r}; pass an aware one")
        return value.astimezone(timezone.utc)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value if value.tzinfo else value.replace(tzinfo=timezone.utc)


def one_of(column: str, values: Iterable[Enum | str]) -> CheckConstraint:
    """A new value needs a revision that widens this; a test compares the two."""
    texts = (value.value if isinstance(value, Enum) else value for value in values)
    listed = ", ".join(f"'{text_}'" for text_ in texts)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


BigId = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts rowids in INTEGER only

Whole = BigId
"""A step, a count: 64 bits in PostgreSQL too, whose INTEGER has 32."""
