"""Object storage as spothop uses it: small keys, immutable objects, one conditional create.

errors.py    the exception tree
base.py      the `ObjectStore` Protocol and its promises
codes.py     what the error codes of three providers mean
mapping.py   the only place that knows obstore's and the system's errors
folder.py    `file://`: durable (synced) writes into a folder, standard library only
hashing.py   SHA-256 beside a transfer
window.py    how many requests at once, and when one is late (pure)
sending.py   pieces of files, several at once; a late one a second time
remote.py    every other URL, through obstore
redacted.py  a store whose errors never show its secrets
opening.py   `open_store`, `check_url` and `probe`
"""

from __future__ import annotations

from spothop.storage.base import Fetched, ObjectInfo, ObjectStore, Piece, part_key
from spothop.storage.errors import (
    NothingRestores,
    ObjectExists,
    ObjectMissing,
    SourceChanged,
    SourceUnreadable,
    StorageBadUrl,
    StorageDenied,
    StorageError,
    StorageUnavailable,
    StorageUnsupported,
    UnsafePath,
)
from spothop.storage.folder import FolderStore
from spothop.storage.opening import check_url, open_store, probe
from spothop.storage.remote import RemoteStore

__all__ = [
    "Fetched",
    "FolderStore",
    "NothingRestores",
    "ObjectExists",
    "ObjectInfo",
    "ObjectMissing",
    "ObjectStore",
    "Piece",
    "RemoteStore",
    "SourceChanged",
    "SourceUnreadable",
    "StorageBadUrl",
    "StorageDenied",
    "StorageError",
    "StorageUnavailable",
    "StorageUnsupported",
    "UnsafePath",
    "check_url",
    "open_store",
    "part_key",
    "probe",
]
