"""The stores of one job: the first holds the chain, and any of them the data of a save.

Rules:

1. There is one authority. Fences and entries are created at the first URL only, so that the chain
   has no forks however many stores there are. What lies elsewhere is data, which counts for
   nothing until an entry there names it.
2. An entry says where its data lies, by URL. So whoever reads needs no list: a store that was taken
   off the list of a later job is still read from, and what it holds is deleted there.
3. Which options open a URL is decided by `spothop.wire.spec_at`: those of the list's store with
   this very URL; else those of the first one of the same provider; else none, and the machine's
   own credentials.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from spothop.storage import ObjectStore, StorageBadUrl, StorageUnavailable, open_store
from spothop.wire import StorageSpec, spec_at


class Stores:
    """`first` is open already; others are opened at their first use. For several threads.

    `specs` are those of the list, the first one's among them.
    """

    def __init__(self, first: ObjectStore, specs: Sequence[StorageSpec] = ()) -> None:
        self.first = first
        self._specs = tuple(specs)
        self._open: dict[str, ObjectStore] = {"": first}
        self._lock = threading.Lock()

    @property
    def others(self) -> tuple[str, ...]:
        """URLs of the list without the first."""
        return tuple(spec.url for spec in self._specs[1:])

    def at(self, url: str) -> ObjectStore:
        """The store that an entry names; the empty URL is the chain's own.

        Raises StorageUnavailable for a folder that is not there: it is not mounted, for an entry
        says that it was there, and to make it would put a save onto this machine's own disk.
        """
        with self._lock:
            if (known := self._open.get(url)) is not None:
                return known
        try:
            store = open_store(spec_at(self._specs, url), create=False)
        except StorageBadUrl as error:
            raise StorageUnavailable(error.message, hint="mount it, or put it back") from error
        with self._lock:
            return self._open.setdefault(url, store)
