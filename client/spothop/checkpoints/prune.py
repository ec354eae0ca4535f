"""Which checkpoints lose their data, and the deleting. Chain entries always stay: they are history.

Rules: the newest two that are whole stay, whatever their kind (I1); periodic ones stay by `keep`;
what newer ones have superseded goes. A checkpoint that a later attempt skipped at its restore
(its number lies between the later one's and that one's `parent`) was *rejected*, not superseded: it
is not one of the newest two, and its data stays. The rejection may have been wrong, because a store
returned incomplete data for a while, and then this data is the only copy of that work.

A checkpoint may have 100,000 files, and a chain 20,000 entries: so what is there is counted by the
folder of a save (`keys.save_folder`) while it is listed, and compared with the sums of the
outlines. Only where they differ an entry is read whole and looked at file by file.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from spothop.checkpoints import keys
from spothop.checkpoints.chain import Chain
from spothop.checkpoints.entry import AnyOutline, BadEntry, Entry, Outline
from spothop.checkpoints.stores import Stores
from spothop.storage import ObjectStore, StorageError
from spothop.wire import SaveKind

Line = TypeVar("Line", Entry, Outline)
Present = Mapping[str, tuple[int, int]]
"""Folder of a save -> objects in it, and their bytes."""

_log = logging.getLogger(__name__)

ALWAYS = 2
"""Checkpoints that stay whatever their kind."""


def to_prune(
    entries: Iterable[Line | BadEntry], keep: int, *, damaged: Collection[int] = ()
) -> list[Line]:
    """Checkpoints whose data may go, oldest first. Pure.

    `keep` counts periodic ones. Numbers in `damaged` do not count as whole; those that were
    skipped do not count either, and stay. With fewer than two whole checkpoints, nothing goes; and
    nothing newer than the older of these two ever goes.
    """
    checkpoints = sorted(
        (entry for entry in entries if not isinstance(entry, BadEntry) and not entry.fence),
        key=lambda entry: entry.n,
    )
    rejected: set[int] = passed_over(checkpoints)
    unfit = {*damaged, *rejected}
    whole = [entry for entry in checkpoints if entry.n not in unfit]
    if len(whole) < ALWAYS:
        return []
    oldest_protected = whole[-ALWAYS].n
    periodic = [entry.n for entry in whole if entry.kind is SaveKind.PERIODIC]
    stay = set(periodic[max(0, len(periodic) - keep) :])
    stay |= rejected
    return [entry for entry in checkpoints if entry.n < oldest_protected and entry.n not in stay]


def passed_over(checkpoints: Iterable[Entry | Outline]) -> set[int]:
    """Numbers that a later attempt could not restore; `checkpoints` are oldest first."""
    numbers: list[int] = []
    skipped: set[int] = set()
    for entry in checkpoints:
        for n in reversed(numbers):
            if entry.parent is None or n <= entry.parent:
                break
            skipped.add(n)
        numbers.append(entry.n)
    return skipped


def prune(
    store: ObjectStore,
    job: str,
    keep: int,
    *,
    chain: Chain | None = None,
    stores: Stores | None = None,
) -> list[Outline]:
    """Delete the data of `to_prune` and what older attempts left uncommitted; return the former.

    Run it after a commit; it may fail or be killed anywhere and be run again. Give the `chain` that
    is in use: its entries are not read again. `stores` opens those that hold data beside `store`,
    which holds the chain: those of its list and those that entries name are looked at. One that
    does not answer is left for another time, and the checkpoints in it count as no whole ones.
    """
    chain, stores = chain or Chain(store, job), stores or Stores(store)
    entries = chain.outlines()
    checkpoints = [e for e in entries if isinstance(e, Outline) and not e.fence]
    named = {url for entry in checkpoints for url in entry.urls}
    present = _present(stores, job, {"", *stores.others, *named})
    damaged = {entry.n for entry in checkpoints if not _is_whole(entry, present, chain, stores)}
    gone = to_prune(entries, keep, damaged=damaged)
    gone_numbers = {entry.n for entry in gone}
    going = {folder for entry in gone for folder in entry.folders}
    going -= {f for entry in checkpoints if entry.n not in gone_numbers for f in entry.folders}
    for url, there in present.items():
        with _unless_away(url):
            for folder in sorted((going | _leftovers(entries, there)) & there.keys()):
                data = stores.at(url)
                data.delete(sorted(info.key for info in data.scan(folder)))
            _discard_partial(stores.at(url), job, entries)
    return [e for e in gone if any(set(e.folders) & there.keys() for there in present.values())]


@contextmanager
def _unless_away(url: str) -> Iterator[None]:
    """The store of the chain has to work; another one may be tried again later."""
    try:
        yield
    except StorageError as error:
        if not url:
            raise
        _log.info("what is in %s stays for now: %s", url, error)


def _present(stores: Stores, job: str, urls: Iterable[str]) -> dict[str, Present]:
    """By URL; stores that do not answer are left out."""
    found: dict[str, Present] = {}
    for url in sorted(urls):
        with _unless_away(url):
            found[url] = _present_in(stores.at(url), job)
    return found


def _present_in(store: ObjectStore, job: str) -> Present:
    found: dict[str, tuple[int, int]] = {}
    for info in store.scan(keys.data_root(job)):
        folder = keys.save_folder(info.key)
        count, size = found.get(folder, (0, 0))
        found[folder] = count + 1, size + info.size
    return found


def _is_whole(entry: Outline, present: Mapping[str, Present], chain: Chain, stores: Stores) -> bool:
    """Every object is there with its size."""
    if not present.keys() >= set(entry.urls):
        return False
    places = list(zip(entry.urls, entry.folders, strict=True))
    there = [present[url].get(folder, (0, 0)) for url, folder in places]
    if not all(count for count, _ in there):
        return False
    if (sum(c for c, _ in there), sum(s for _, s in there)) == (entry.objects, entry.size):
        return True  # objects never change: with one missing, neither sum would be right
    whole = chain.load(entry.n)
    if isinstance(whole, BadEntry):
        return False
    missing = {(record.url, key): size for record in whole.files for key, size in record.objects()}
    for url, folder in places:
        for info in stores.at(url).scan(folder):
            if missing.get((url, info.key)) == info.size:
                del missing[url, info.key]
    return not missing


def _leftovers(entries: Collection[AnyOutline], present: Iterable[str]) -> set[str]:
    """Folders of saves that no entry names, of attempts that can no longer commit.

    None while an entry is unreadable: it may name them. One that an entry names in another store
    stays as well, until that entry's data goes: two URLs may lead to the same place.
    """
    if any(isinstance(entry, BadEntry) for entry in entries):
        return set()
    named = {folder for e in entries if isinstance(e, Outline) for folder in e.folders}
    fenced_in = _fenced_in(entries)
    return {
        path
        for path in present
        if (folder := keys.parse_data_folder(path.split("/")[3]))
        and folder.attempt < fenced_in
        and path not in named
    }


def _discard_partial(store: ObjectStore, job: str, entries: Collection[AnyOutline]) -> None:
    fenced_in = _fenced_in(entries)
    for name in store.folders(keys.data_root(job)):
        folder = keys.parse_data_folder(name)
        if folder is not None and folder.attempt < fenced_in:
            store.discard_partial(f"{keys.data_root(job)}/{name}")


def _fenced_in(entries: Iterable[AnyOutline]) -> int:
    """The newest fence's attempt; 0 without one."""
    return max((entry.attempt for entry in entries if isinstance(entry, Outline)), default=0)
