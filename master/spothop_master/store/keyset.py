"""Pages of lists that grow: newest first, each beginning where the one before ended.

A page is found by the key of its neighbour (a moment and an id) and not by a number of rows to
skip: it costs the same wherever it is, and what comes or goes meanwhile neither repeats nor hides a
row (https://use-the-index-luke.com/no-offset). A cursor is that key as text, in microseconds since
1970, and which way to go: `1767225600000000.gpt-3f2a9c` is what follows, with `-` before it what
precedes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, literal, tuple_
from sqlalchemy.orm import InstrumentedAttribute

from spothop_master.store.columns import UtcDateTime

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
LONGEST = 200

T = TypeVar("T")


class BadCursor(ValueError):
    """It is not one that a page gave."""


@dataclass(frozen=True, order=True)
class Key:
    at: datetime
    id: str


@dataclass(frozen=True, kw_only=True)
class Cursor:
    key: Key
    back: bool = False
    """What precedes the key, and not what follows it."""

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Raises BadCursor."""
        back, rest = text.startswith("-"), text.removeprefix("-")
        moment, dot, id_ = rest.partition(".")
        if not dot or not id_ or len(text) > LONGEST or not (moment.isascii() and moment.isdigit()):
            raise BadCursor(text)
        try:
            at = EPOCH + timedelta(microseconds=int(moment))
        except OverflowError:
            raise BadCursor(text) from None
        return cls(key=Key(at, id_), back=back)

    def __str__(self) -> str:
        microseconds = (self.key.at - EPOCH) // timedelta(microseconds=1)
        return f"{'-' * self.back}{microseconds}.{self.key.id}"


@dataclass(frozen=True, kw_only=True)
class Page(Generic[T]):
    """`next` and `previous`: the cursors of its neighbours, None where there is none."""

    items: Sequence[T]
    next: str | None = None
    previous: str | None = None


def beyond(
    cursor: Cursor | None, at: InstrumentedAttribute[datetime], id_: InstrumentedAttribute[str]
) -> list[ColumnElement[bool]]:
    """The condition for the rows of the page behind this cursor."""
    if cursor is None:
        return []
    row, key = (
        tuple_(at, id_),
        tuple_(literal(cursor.key.at, UtcDateTime()), literal(cursor.key.id)),
    )
    return [row > key if cursor.back else row < key]


def order(
    cursor: Cursor | None, at: InstrumentedAttribute[datetime], id_: InstrumentedAttribute[str]
) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    if cursor is not None and cursor.back:
        return at.asc(), id_.asc()
    return at.desc(), id_.desc()


def page(
    found: Sequence[T], key: Callable[[T], Key], *, cursor: Cursor | None, limit: int
) -> Page[T]:
    """Of at most `limit` + 1 rows, in the order of `order`."""
    kept, more = [*found[:limit]], len(found) > limit
    back = cursor is not None and cursor.back
    if back:
        kept.reverse()
    if not kept:
        return Page(items=[])
    after = str(Cursor(key=key(kept[-1]))) if more or back else None
    before = str(Cursor(key=key(kept[0]), back=True))
    return Page(items=kept, next=after, previous=before if (more if back else cursor) else None)
