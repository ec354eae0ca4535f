"""Everything that storage can refuse.

StorageError
|-- StorageUnavailable  network, throttling, server errors, a full or failing disk: `retryable`
|-- StorageDenied       the credentials do not allow it
|-- StorageBadUrl       the URL or its options name nothing usable
|-- StorageUnsupported  the store lacks something that we need, such as the conditional create
|-- ObjectExists        a conditional create lost
|-- ObjectMissing       no such object
|-- NothingRestores     there are checkpoints, and none of them is whole
|-- SourceChanged       the file to upload was written, cut or removed meanwhile
|-- SourceUnreadable    the system does not let the file to upload be read now
`-- UnsafePath          a path or link leads out of the directory that it belongs to
"""

from __future__ import annotations

from typing import ClassVar


class StorageError(Exception):
    """A refusal or failure; `str()` is the fact, what it was about, and what to do about it.

    `field` and `value` name the setting at fault where there is one.
    """

    retryable: ClassVar[bool] = False
    """Trying the same again later can help. Nobody in this package retries: the caller does."""

    def __init__(
        self, message: str, *, hint: str = "", field: str | None = None, value: str | None = None
    ) -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.message = message
        self.hint = hint
        self.field = field
        self.value = value


class StorageUnavailable(StorageError):
    retryable = True


class StorageDenied(StorageError): ...


class StorageBadUrl(StorageError): ...


class StorageUnsupported(StorageError): ...


class ObjectExists(StorageError): ...


class ObjectMissing(StorageError): ...


class NothingRestores(StorageError): ...


class SourceChanged(StorageError): ...


class SourceUnreadable(StorageError):
    """An input error, no file handle left, no memory: the file is still there, and may be read
    later. Not `retryable`, because a broken disk answers so for ever."""


class UnsafePath(StorageError): ...
