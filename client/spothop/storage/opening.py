"""From a URL to a store, and the check that a store can do what the chain needs."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult

import obstore.store
from obstore.store import ObjectStore as AnyObstore

from spothop import storageoptions
from spothop.storage.base import ObjectStore
from spothop.storage.errors import (
    ObjectExists,
    StorageBadUrl,
    StorageDenied,
    StorageError,
    StorageUnsupported,
)
from spothop.storage.folder import FolderStore
from spothop.storage.mapping import translate
from spothop.storage.redacted import redacted
from spothop.storage.remote import RemoteStore
from spothop.wire import StorageSpec

FIELD = "checkpoint.storage"
_KINDS = "use s3://bucket/path, gs://bucket/path, az://account/container/path or file:///folder"

# https://learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_CONTAINER = re.compile(r"(?=.{3,63}\Z)(?:[a-z0-9]+(?:-[a-z0-9]+)*|\$root|\$web)")
_AZ = "write az://ACCOUNT/CONTAINER/path, with the account's name alone, such as az://myruns/runs"

# One request carries at most one part; within obstore a few quick retries only, because a VM under
# notice has seconds: the caller knows its deadline and retries the whole operation (I9).
_CLIENT = {"timeout": "120s", "connect_timeout": "5s"}
_RETRY = {"max_retries": 3, "retry_timeout": timedelta(seconds=60)}
# Reading, nothing comes for 20 s only where it hangs: obstore asks for the rest then, as long as
# `retry_timeout` is not over, and no whole restore begins anew. So what is slow and steady may take
# its time. Not for writing: there nothing comes before all is sent.
_READER_CLIENT = {"timeout": "600s", "read_timeout": "20s"}
_READER_RETRY = {"max_retries": 3, "retry_timeout": timedelta(seconds=600)}
# For a look while somebody waits for the answer.
_QUICK_CLIENT = {"timeout": "5s", "connect_timeout": "3s"}
_QUICK_RETRY = {"max_retries": 1, "retry_timeout": timedelta(seconds=5)}
_S3_SCHEMES = {"s3", "s3a"}


def open_store(spec: StorageSpec, *, create: bool = True, quick: bool = False) -> ObjectStore:
    """The store at `spec.url`; no request is sent yet, only a `file://` folder is created.

    Options that are obstore client options (`allow_http`, `timeout`, ...) go to its client, all
    others to the store, as https://developmentseed.org/obstore/ names them. With `create` false a
    missing folder is a `StorageBadUrl` too. `quick`: give up after seconds, for `probe`.
    """
    scheme = _parse(spec.url).scheme
    if scheme == "file":
        return FolderStore(_folder(spec.url, create=create))
    client: dict[str, Any] = {}
    options = {}
    for name, value in spec.options.items():
        if name in storageoptions.CLIENT:
            client[name] = {"true": True, "false": False}.get(value.lower(), value)
        else:
            options[name] = value
    if scheme in _S3_SCHEMES and not client.get("allow_http"):
        # Over TLS nothing is gained by signing the content, too: the chain holds its SHA-256, and
        # a second one costs 0.9 CPU-seconds per GB.
        options.setdefault("unsigned_payload", "true")
    redact = storageoptions.Redactor(spec.options)
    url = spec.url
    if scheme in storageoptions.AZURE_SCHEMES:
        url, options["account_name"] = _azure(url, options)

    def opened(defaults: Mapping[str, str], retry: Mapping[str, Any]) -> AnyObstore:
        arguments: dict[str, Any] = {
            "client_options": {**defaults, **client},
            "retry_config": dict(retry),
            **options,
        }
        return obstore.store.from_url(url, **arguments)

    try:
        if scheme == "memory":
            return RemoteStore(obstore.store.from_url(spec.url), spec.url)
        if quick:
            store = RemoteStore(opened(_QUICK_CLIENT, _QUICK_RETRY), spec.url)
        else:
            reader = opened({**_CLIENT, **_READER_CLIENT}, _READER_RETRY)
            store = RemoteStore(opened(_CLIENT, _RETRY), spec.url, reader=reader)
    except Exception as error:  # obstore has no common class for bad options
        why = str(error).strip().splitlines()[0]
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # obstore 0.12 panics on some unknown options
            raise
        why = f"an option among {sorted(options)} is unknown: {error}"
    else:
        return redacted(store, redact) if redact.has_secrets else store
    raise _bad(spec.url, redact(why))  # without its cause, which may show an option


def check_url(url: str) -> None:
    """Raises `StorageBadUrl` for a URL that can never work; sends and creates nothing."""
    scheme = _parse(url).scheme
    if scheme == "file":
        _path(url)


def _parse(url: str) -> SplitResult:
    try:
        return storageoptions.split_url(url)
    except ValueError as error:  # such as brackets around what is no IPv6 address
        raise _bad(url, str(error)) from None


def _azure(url: str, options: Mapping[str, str]) -> tuple[str, str]:
    """What obstore takes for `az://ACCOUNT/CONTAINER/path`, and the account: its own `az://` begins
    with the container, and has no place for the account. With another account in the option
    `account_name`, the URL is meant as obstore's."""
    parts = _parse(url)
    account, given = parts.netloc, options.get("account_name")
    if given is not None and given != account:
        return url, given
    container, _, path = parts.path.lstrip("/").partition("/")
    if not _ACCOUNT.fullmatch(account):
        raise _bad(url, f"{account!r} is no account: 3 to 24 small letters and digits", _AZ)
    if not _CONTAINER.fullmatch(container):
        why = "is no container: 3 to 63 small letters, digits and single hyphens"
        raise _bad(url, f"{container!r} {why}" if container else "it names no container", _AZ)
    return f"az://{container}/{path}", account


def _path(url: str) -> Path:
    parts = _parse(url)
    if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
        raise _bad(url, "a file URL needs three slashes and an absolute path")
    folder = storageoptions.folder_of(url)  # one rule: what is checked by name is what is opened
    if folder is None:
        raise _bad(url, "no path can hold a NUL character")
    return Path(folder)


def _folder(url: str, *, create: bool) -> Path:
    folder = _path(url)
    try:
        if create:
            folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise _bad(url, "this is a file, not a folder") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _bad(url, f"the folder cannot be made ({error.strerror})") from error
    except OSError as error:
        raise _named(translate(error, url, ""), url) from error
    if not folder.is_dir():
        raise _bad(url, "there is no such folder")
    return folder


def _bad(url: str, why: str, hint: str = _KINDS) -> StorageBadUrl:
    return StorageBadUrl(
        f"{url!r} is no usable storage URL: {why}", hint=hint, field=FIELD, value=url
    )


def _named(error: StorageError, url: str) -> StorageError:
    error.field, error.value = FIELD, url
    return error


def probe(store: ObjectStore, *, credentials: str = "") -> None:
    """Write, read, list and delete a small object, and check that a second create of it is refused.

    `credentials` says where they come from (`storageoptions.credentials_of`), for the hint. Raises
    a `StorageError` that names the step, the field, its value and a hint.
    """
    folder = f"spothop-probe-{secrets.token_hex(8)}"
    key, data = f"{folder}/object", secrets.token_bytes(16)
    step = partial(_step, store, credentials)
    with step("writing"):
        store.create(key, data)
    try:
        with step("the conditional create"):
            _must_refuse(store, key, data)
        with step("reading"):
            _must(store.get(key) == data, store, "does not return what was written")
        with step("listing"):
            found = [info.key for info in store.scan(folder)]
            _must(found == [key], store, f"lists {found} where {key!r} was written")
    finally:
        with step("deleting"):
            store.delete([key])


@contextmanager
def _step(store: ObjectStore, credentials: str, name: str) -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        hint = error.hint or "check the URL, the options and the credentials"
        if credentials and isinstance(error, StorageDenied):
            hint = f"{hint}; the credentials come from {credentials}"
        raise type(error)(
            f"{name} failed: {error.message}", hint=hint, field=FIELD, value=store.url
        ) from error


def _must_refuse(store: ObjectStore, key: str, data: bytes) -> None:
    try:
        store.create(key, data)
    except ObjectExists:
        return
    _must(False, store, "overwrites an object on a conditional create")


def _must(holds: bool, store: ObjectStore, what: str) -> None:
    if not holds:
        raise StorageUnsupported(f"{store.url} {what}", hint="use a store that does not")
