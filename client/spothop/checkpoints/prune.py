"""Which checkpoints lose their data, and the deleting. Chain entries always stay: they are history.

Rules: the newest two that are whole stay, whatever their kind (I1); periodic ones stay by `keep`;
what newer ones have superseded goes. A checkpoint that a later attempt skipped at its restore
(its number lies between the later one's and that one's `parent`) was *rejected*, not superseded: it
is not one of the newest two, and its data stays. The rejection may have been wrong, because a store
returned incomplete data for a while, and then this data is the only copy of that work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from spothop.checkpoints import keys
from spothop.checkpoints.chain import Chain
from spothop.checkpoints.entry import AnyEntry, BadEntry, Entry
from spothop.storage import ObjectStore
from spothop.wire import SaveKind

ALWAYS = 2
"""Checkpoints that stay whatever their kind."""


def to_prune(
    entries: Iterable[AnyEntry], keep: int, *, damaged: Collection[int] = ()
) -> list[Entry]:
    """Checkpoints whose data may go, oldest first. Pure.

    `keep` counts periodic ones. Numbers in `damaged` do not count as whole; those that were
    skipped do not count either, and stay. With fewer than two whole checkpoints, nothing goes; and
    nothing newer than the older of these two ever goes.
    """
    checkpoints = sorted(
        (entry for entry in entries if isinstance(entry, Entry) and not entry.fence),
        key=lambda entry: entry.n,
    )
    rejected = passed_over(checkpoints)
    unfit = {*damaged, *rejected}
    whole = [entry for entry in checkpoints if entry.n not in unfit]
    if len(whole) < ALWAYS:
        return []
    oldest_protected = whole[-ALWAYS].n
    periodic = [entry.n for entry in whole if entry.kind is SaveKind.PERIODIC]
    stay = set(periodic[max(0, len(periodic) - keep) :])
    stay |= rejected
    return [entry for entry in checkpoints if entry.n < oldest_protected and entry.n not in stay]


def passed_over(checkpoints: Iterable[Entry]) -> set[int]:
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


def prune(store: ObjectStore, job: str, keep: int, *, chain: Chain | None = None) -> list[Entry]:
    """Delete the data of `to_prune` and what older attempts left uncommitted; return the former.

    Run it after a commit; it may fail or be killed anywhere and be run again. Give the `chain` that
    is in use: its entries are not read again.
    """
    chain = chain or Chain(store, job)
    entries = chain.entries()
    present = {info.key: info.size for info in store.scan(keys.data_root(job))}
    gone = to_prune(entries, keep, damaged=_not_whole(entries, present))
    gone_numbers = {entry.n for entry in gone}
    going = _keys(gone)
    going -= _keys(entry for entry in _checkpoints(entries) if entry.n not in gone_numbers)
    store.delete(sorted((going | _leftovers(entries, present)) & present.keys()))
    _discard_partial(store, job, entries)
    return [entry for entry in gone if not present.keys().isdisjoint(_keys([entry]))]


def _checkpoints(entries: Iterable[AnyEntry]) -> list[Entry]:
    return [entry for entry in entries if isinstance(entry, Entry) and not entry.fence]


def _keys(entries: Iterable[Entry]) -> set[str]:
    return {key for entry in entries for record in entry.files for key, _ in record.objects()}


def _not_whole(entries: Iterable[AnyEntry], present: Mapping[str, int]) -> set[int]:
    """Checkpoints of which an object is missing or has the wrong size."""
    return {
        entry.n
        for entry in _checkpoints(entries)
        if any(present.get(key) != size for record in entry.files for key, size in record.objects())
    }


def _leftovers(entries: Collection[AnyEntry], present: Iterable[str]) -> set[str]:
    """Data objects that no entry names, of attempts that can no longer commit.

    None while an entry is unreadable: it may name them.
    """
    if any(isinstance(entry, BadEntry) for entry in entries):
        return set()
    named = _keys(_checkpoints(entries))
    fenced_in = _fenced_in(entries)
    by_folder: dict[str, list[str]] = defaultdict(list)
    for key in present:
        by_folder[key.split("/")[3]].append(key)
    return {
        key
        for name, found in by_folder.items()
        if (folder := keys.parse_data_folder(name)) and folder.attempt < fenced_in
        for key in found
        if key not in named
    }


def _discard_partial(store: ObjectStore, job: str, entries: Collection[AnyEntry]) -> None:
    fenced_in = _fenced_in(entries)
    for name in store.folders(keys.data_root(job)):
        folder = keys.parse_data_folder(name)
        if folder is not None and folder.attempt < fenced_in:
            store.discard_partial(f"{keys.data_root(job)}/{name}")


def _fenced_in(entries: Iterable[AnyEntry]) -> int:
    """The newest fence's attempt; 0 without one."""
    return max((entry.attempt for entry in entries if isinstance(entry, Entry)), default=0)
