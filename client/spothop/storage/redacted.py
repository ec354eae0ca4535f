"""A store that was opened with secrets, and whose errors never show them.

What obstore and servers say may repeat a credential: an address with its signature, an answer that
names the key. This stands between a store and everybody else, whatever methods the store has.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from typing import Any, cast

from spothop.storage.base import ObjectStore
from spothop.storage.errors import StorageError
from spothop.storageoptions import Redactor


def redacted(store: ObjectStore, redact: Redactor) -> ObjectStore:
    """The same store; its errors have lost their causes, which say more than we can read."""
    return cast(ObjectStore, _Redacted(store, redact))


class _Redacted:
    def __init__(self, store: ObjectStore, redact: Redactor) -> None:
        self._store = store
        self._redact = redact

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        @wraps(found)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                result = found(*args, **kwargs)
            except StorageError as error:
                raise self._clean(error) from None
            return self._each(result) if isinstance(result, Iterator) else result

        return call

    def _each(self, items: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from items
        except StorageError as error:
            raise self._clean(error) from None

    def _clean(self, error: StorageError) -> StorageError:
        error.args = tuple(self._redact(str(part)) for part in error.args)
        error.message = self._redact(error.message)
        error.hint = self._redact(error.hint)
        error.__cause__ = error.__context__ = None
        return error
