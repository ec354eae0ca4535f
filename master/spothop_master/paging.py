"""Pages of lists in requests: the cursor, and how many rows a page may have."""

from __future__ import annotations

import reprlib
from typing import Annotated

from fastapi import Query

from spothop_master.problems import ApiError
from spothop_master.store.keyset import BadCursor, Cursor

PAGE = 50
LONGEST_PAGE = 500

Limit = Annotated[int, Query(ge=1, le=LONGEST_PAGE)]
CursorText = Annotated[str | None, Query()]


def cursor_of(text: str | None) -> Cursor | None:
    """Raises ApiError for what no page gave."""
    try:
        return Cursor.parse(text) if text else None
    except BadCursor:
        raise ApiError(
            422,
            "bad_cursor",
            f"cursor: {reprlib.repr(text)} is not one that a page gave",
            "give the `next` or `previous` of a page, or leave it out for the first page",
            field="cursor",
        ) from None
