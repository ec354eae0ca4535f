"""The only place that knows how obstore and the operating system report failures.

obstore gives its errors classes by the HTTP status, and the status says too little: 409 becomes
"already exists", 404 "not found", 403 "permission denied", whatever the provider meant. So where a
server has answered, its own error code decides (`codes`), and obstore's class only where none has.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from obstore import exceptions as obs
from typing_extensions import assert_never

from spothop.storage.codes import HINTS, Meaning, code_of, has_body, meaning, status_of
from spothop.storage.errors import (
    ObjectExists,
    ObjectMissing,
    SourceChanged,
    SourceUnreadable,
    StorageBadUrl,
    StorageDenied,
    StorageError,
    StorageUnavailable,
    StorageUnsupported,
)

_CREDENTIALS = "check the credentials of this machine and the rights on the bucket"
_NO_CREDENTIALS = "give some in checkpoint.storage.options, or give the VM a role"
_METADATA = re.compile(
    r"performing [A-Z]+ \S*?(?:/latest/api/token|/latest/meta-data/|/computeMetadata/"
    r"|/metadata/identity/|//169\.254\.|//metadata\.google\.internal|//\[?fd00:ec2::)"
)
"""A request for the credentials of the machine's role, on AWS, Google Cloud and Azure: by its path,
because options may name another address. obstore makes one only where it was given none."""


@contextmanager
def mapped(url: str, key: str, *, writing: bool = False, creating: bool = False) -> Iterator[None]:
    """Turn whatever an operation on `key` raises into a `StorageError`.

    When `writing`, "not found" cannot mean the object: it means the bucket or folder. `creating`
    says that the write was a conditional create.
    """
    try:
        yield
    except StorageError:
        raise
    except (obs.BaseError, OSError, ValueError) as error:
        raise translate(error, url, key, writing=writing, creating=creating) from error


def translate(
    error: Exception, url: str, key: str, *, writing: bool = False, creating: bool = False
) -> StorageError:
    """The error of ours that says what `error` means for the object `key` of the store `url`."""
    text, where = str(error), f"{key!r} in {url}"
    status = status_of(text)
    if _METADATA.search(text):
        return _no_credentials(where, status)
    if status is not None:
        found = meaning(status, code_of(text), creating=creating, body=has_body(text))
        if found is Meaning.MISSING and writing:
            # GCS says only "notFound" of a bucket; a code of S3's about an upload is transient
            found = Meaning.TRANSIENT if code_of(text) == "NoSuchKey" else Meaning.UNUSABLE
        code = code_of(text)
        ours = _ours(found, where, _said(error, status, code), url)
        if code in HINTS:
            ours.hint = HINTS[code]
        return ours
    if isinstance(error, (FileNotFoundError, IsADirectoryError)):
        if writing:
            return _ours(Meaning.UNUSABLE, where, "it does not exist", url)
        return _ours(Meaning.MISSING, where, "", url)
    if isinstance(error, (FileExistsError, obs.AlreadyExistsError, obs.PreconditionError)):
        return _ours(Meaning.EXISTS, where, "", url)
    if isinstance(error, (PermissionError, obs.PermissionDeniedError, obs.UnauthenticatedError)):
        return _ours(Meaning.DENIED, where, _first_line(error), url)
    if isinstance(error, obs.NotSupportedError):
        return _ours(Meaning.UNSUPPORTED, where, _first_line(error), url)
    if isinstance(error, OSError):
        return _from_system(error, where)
    if isinstance(error, (ValueError, obs.InvalidPathError, obs.UnknownConfigurationKeyError)):
        return StorageBadUrl(f"{where} is not usable: {_first_line(error)}")
    hint = _CREDENTIALS if "credential" in text.lower() else ""
    return StorageUnavailable(f"{where} failed: {_first_line(error)}", hint=hint)


def of_source(error: OSError, file: Path) -> StorageError:
    """What `error` means of a file to upload: only one that is not there (any more) has changed."""
    text = f"{str(file)!r} cannot be read: {error.strerror or error}"
    if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
        return SourceChanged(text)
    return SourceUnreadable(text)


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turn what the system says of a file to upload into `SourceChanged` or `SourceUnreadable`."""
    try:
        yield
    except OSError as error:
        raise of_source(error, file) from error


def _ours(found: Meaning, where: str, text: str, url: str) -> StorageError:
    match found:
        case Meaning.MISSING:
            return ObjectMissing(f"no object {where}")
        case Meaning.EXISTS:
            return ObjectExists(f"there is already an object {where}")
        case Meaning.DENIED:
            return StorageDenied(f"access denied to {where}: {text}", hint=_CREDENTIALS)
        case Meaning.UNSUPPORTED:
            return StorageUnsupported(f"the store cannot do this to {where}: {text}")
        case Meaning.UNUSABLE:
            return StorageBadUrl(
                f"{url} is not usable for {where}: {text}", hint="create it, or correct the URL"
            )
        case Meaning.TRANSIENT:
            return StorageUnavailable(f"{where} failed: {text}")
        case _:
            assert_never(found)


def _no_credentials(where: str, status: int | None) -> StorageError:
    """The machine's own metadata service was asked for a role, and gave none. It is not the store:
    its 404 says nothing of an object, and its address means nothing to a user."""
    text = f"no credentials for {where}: neither its options nor the environment hold any, and"
    if status is not None and 400 <= status < 500 and status != 429:
        return StorageDenied(f"{text} this machine has no role", hint=_NO_CREDENTIALS)
    return StorageUnavailable(
        f"{text} the service that names this machine's role does not answer", hint=_NO_CREDENTIALS
    )


def _said(error: Exception, status: int, code: str | None) -> str:
    return f"{status} {code}" if code else _first_line(error)


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


def _first_line(error: Exception) -> str:
    """Without the debug dump that obstore appends."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
