"""The only place that knows how obstore and the operating system report failures."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from obstore import exceptions as obs

from spothop.storage.errors import (
    ObjectExists,
    ObjectMissing,
    StorageBadUrl,
    StorageDenied,
    StorageError,
    StorageUnavailable,
    StorageUnsupported,
)

_CREDENTIALS = "check the credentials of this machine and the rights on the bucket"
_STATUS = re.compile(r"status code: (\d{3})")
_TRANSIENT_4XX = {"408", "409", "425", "429"}  # time-out, conflict, too early, throttled


@contextmanager
def mapped(url: str, key: str, *, writing: bool = False) -> Iterator[None]:
    """Turn whatever an operation on `key` raises into a `StorageError`.

    When `writing`, "not found" cannot mean the object: it means the bucket or folder.
    """
    try:
        yield
    except StorageError:
        raise
    except (obs.BaseError, OSError, ValueError) as error:
        if writing and isinstance(error, FileNotFoundError):
            raise StorageBadUrl(f"{url} does not exist", hint="create it or correct it") from error
        raise translate(error, url, key) from error


def translate(error: Exception, url: str, key: str) -> StorageError:
    """The error of ours that says what `error` means for the object `key` of the store `url`."""
    where = f"{key!r} in {url}"
    if isinstance(error, (FileNotFoundError, IsADirectoryError)):
        return ObjectMissing(f"no object {where}")
    if isinstance(error, (FileExistsError, obs.AlreadyExistsError, obs.PreconditionError)):
        return ObjectExists(f"there is already an object {where}")
    if isinstance(error, (PermissionError, obs.PermissionDeniedError, obs.UnauthenticatedError)):
        return StorageDenied(f"access denied to {where}: {_first_line(error)}", hint=_CREDENTIALS)
    if isinstance(error, obs.NotSupportedError):
        return StorageUnsupported(f"the store cannot do this to {where}: {_first_line(error)}")
    if isinstance(error, OSError):
        return _from_system(error, where)
    if isinstance(error, (ValueError, obs.InvalidPathError, obs.UnknownConfigurationKeyError)):
        return StorageBadUrl(f"{where} is not usable: {_first_line(error)}")
    return _from_answer(error, where)


def _from_system(error: OSError, where: str) -> StorageError:
    match error.errno:
        case errno.EROFS:
            return StorageDenied(f"the file system of {where} is read-only")
        case errno.ENOSPC | errno.EDQUOT:
            return StorageUnavailable(
                f"no space left for {where}", hint="free some, or use another store"
            )
        case errno.ENAMETOOLONG | errno.ENOTDIR | errno.ELOOP:
            return StorageBadUrl(f"{where} is not usable: {error.strerror}")
        case errno.EOPNOTSUPP | errno.EMLINK | errno.ENOSYS:
            return StorageUnsupported(
                f"the file system cannot do this to {where}: {error.strerror}"
            )
        case _:
            return StorageUnavailable(f"{where} failed: {error.strerror or error}")


def _from_answer(error: Exception, where: str) -> StorageError:
    """obstore's GenericError: only its text tells a bad request from a server in trouble."""
    text = _first_line(error)
    status = _STATUS.search(text)
    code = status.group(1) if status else ""
    if code in {"401", "403"} or "credential" in text.lower():
        return StorageDenied(f"access denied to {where}: {text}", hint=_CREDENTIALS)
    if code.startswith("4") and code not in _TRANSIENT_4XX:
        return StorageBadUrl(f"the store refused {where}: {text}")
    return StorageUnavailable(f"{where} failed: {text}")


def _first_line(error: Exception) -> str:
    """Without the debug dump that obstore appends."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
