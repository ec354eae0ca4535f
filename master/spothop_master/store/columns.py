"""What the tables' columns are made of, alike in SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    Float,
    Integer,
    MetaData,
    TypeDecorator,
)
from sqlalchemy.orm import DeclarativeBase


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
        if value.tzinfo is None:
            return value.replace(tzinfo=timezone.utc)
        return value.astimezone(timezone.utc)  # PostgreSQL gives it in the session's time zone


def one_of(column: str, values: Iterable[Enum | str]) -> CheckConstraint:
    """A new value needs a revision that widens this; a test compares the two."""
    texts = (value.value if isinstance(value, Enum) else value for value in values)
    listed = ", ".join(f"'{text_}'" for text_ in texts)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


BigId = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts rowids in INTEGER only

Whole = BigId
"""A step, a count: 64 bits in PostgreSQL too, whose INTEGER has 32."""


class Base(DeclarativeBase):
    """Of every table: how constraints are called, and what Python types become."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012  SQLAlchemy's own form
        datetime: UtcDateTime,
        dict[str, Any]: JSON,
        float: Float(53),  # SQLAlchemy 2.0 and 2.1 differ in what a plain float becomes
    }
