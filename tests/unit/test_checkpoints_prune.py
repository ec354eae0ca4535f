"""Pruning: the newest two whole ones always stay (I1), and nothing uncommitted of old attempts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

from spothop.checkpoints import BadEntry, Chain, Entry, FileRecord, prune, to_prune, upload
from spothop.checkpoints import keys as layout
from spothop.storage import FolderStore, ObjectInfo, ObjectStore, RemoteStore, StorageUnavailable
from spothop.wire import SaveKind
from support.examples import examples

JOB = "j1"
PERIODIC, INSURANCE, EMERGENCY = SaveKind.PERIODIC, SaveKind.INSURANCE, SaveKind.EMERGENCY
KINDS = {"p": PERIODIC, "i": INSURANCE, "e": EMERGENCY}


def history(text: str) -> list[Entry | BadEntry]:
    """`p`, `i`, `e` are checkpoints, `f` a fence, `?` an unreadable entry; numbers from 1."""
    entries: list[Entry | BadEntry] = []
    for n, letter in enumerate(text, 1):
        attempt = max(1, text[:n].count("f"))
        if letter == "?":
            entries.append(BadEntry(n, "damaged"))
        else:
            fence = letter == "f"
            kind = KINDS.get(letter)
            entries.append(Entry(n=n, attempt=attempt, id=str(n), fence=fence, step=n, kind=kind))
    return entries


def gone(text: str, keep: int, damaged: set[int] | None = None) -> list[int]:
    return [entry.n for entry in to_prune(history(text), keep, damaged=damaged or set())]


@pytest.mark.parametrize(
    ("text", "keep", "expected"),
    [
        ("", 2, []),
        ("f", 2, []),
        ("fp", 0, []),
        ("fii", 0, []),
        ("fiii", 2, [2]),
        ("fppppp", 3, [2, 3]),
        ("fppppp", 0, [2, 3, 4]),
        ("fpipiei", 2, [3, 5]),
        ("fiefii", 2, [2, 3]),
        ("fp?i?e", 1, []),
        ("fi?i?e", 1, [2]),
    ],
)
def test_rules(text: str, keep: int, expected: list[int]) -> None:
    assert gone(text, keep) == expected


def test_damaged_ones_protect_nothing() -> None:
    assert gone("fiiii", 0) == [2, 3]
    assert gone("fiiii", 0, {5}) == [2]
    assert gone("fiiii", 0, {4, 5}) == []
    assert gone("fiiii", 0, {2, 4, 5}) == []


def test_what_a_restore_passed_over_protects_nothing_and_stays() -> None:
    entries = history("fiiifi")
    last = entries[-1]
    assert isinstance(last, Entry)
    assert [entry.n for entry in to_prune(entries, 0)] == [2, 3]
    fell_back = Entry(n=6, attempt=2, id="6", step=6, kind=INSURANCE, parent=3)
    assert [entry.n for entry in to_prune([*entries[:-1], fell_back], 0)] == [2]
    later = [Entry(n=n, attempt=2, id=str(n), step=n, kind=INSURANCE, parent=n - 1) for n in (7, 8)]
    assert [e.n for e in to_prune([*entries[:-1], fell_back, *later], 0)] == [2, 3, 6]  # never 4


@examples(100)
@given(st.text("pief?", max_size=40), st.integers(0, 5), st.sets(st.integers(1, 40)))
def test_properties(text: str, keep: int, damaged: set[int]) -> None:
    entries = history(text)
    pruned = {entry.n for entry in to_prune(entries, keep, damaged=damaged)}
    checkpoints = [e for e in entries if isinstance(e, Entry) and not e.fence]
    whole = [e for e in checkpoints if e.n not in damaged]
    assert pruned <= {e.n for e in checkpoints}
    assert not pruned & {e.n for e in whole[-2:]}
    periodic = [e.n for e in whole if e.kind is PERIODIC]
    assert not pruned & set(periodic[len(periodic) - min(keep, len(periodic)) :])
    if len(whole) >= 2:
        old = {e.n for e in whole[:-2] if e.kind is not PERIODIC}
        assert old <= pruned
    else:
        assert not pruned
    again = [e for e in entries if e.n not in pruned]
    assert to_prune(again, keep, damaged=damaged) == []


def record(chain: Chain, attempt: int, step: int, tmp_path: Path) -> list[FileRecord]:
    file = tmp_path / "f"
    file.write_text(f"{attempt} {step}")
    return upload(chain.store, JOB, attempt, step, INSURANCE, file)


def save(chain: Chain, attempt: int, step: int, tmp_path: Path) -> Entry:
    files = record(chain, attempt, step, tmp_path)
    return chain.commit(
        attempt, step=step, kind=INSURANCE, files=files, root="f", is_dir=False, meta={}
    )


def steps_with_data(chain: Chain) -> list[str]:
    return sorted(info.key.split("/")[3] for info in chain.store.scan(layout.data_root(JOB)))


@pytest.fixture
def chain() -> Chain:
    chain = Chain(RemoteStore(MemoryStore(), "memory"), JOB)
    chain.fence(1)
    return chain


def test_data_goes_and_entries_stay(chain: Chain, tmp_path: Path) -> None:
    for step in range(1, 5):
        save(chain, 1, step, tmp_path)
    assert [entry.step for entry in prune(chain.store, JOB, 2, chain=chain)] == [1, 2]
    assert steps_with_data(chain) == ["3-1-insurance", "4-1-insurance"]
    assert len(chain.entries()) == 5
    assert prune(chain.store, JOB, 2) == []


def test_a_checkpoint_without_its_data_does_not_count(chain: Chain, tmp_path: Path) -> None:
    saved = [save(chain, 1, step, tmp_path) for step in (1, 2, 3)]
    chain.store.put(saved[-1].files[0].key, b"cut")
    chain.store.delete([saved[-1].files[0].key])
    assert prune(chain.store, JOB, 0) == []
    assert steps_with_data(chain) == ["1-1-insurance", "2-1-insurance"]


def test_shared_data_stays(chain: Chain, tmp_path: Path) -> None:
    files = record(chain, 1, 1, tmp_path)
    for step in (1, 2, 3):
        chain.commit(1, step=step, kind=INSURANCE, files=files, root="f", is_dir=False, meta={})
    prune(chain.store, JOB, 0)
    assert steps_with_data(chain) == ["1-1-insurance"]


def test_leftovers_of_older_attempts_go(chain: Chain, tmp_path: Path) -> None:
    save(chain, 1, 1, tmp_path)
    record(chain, 1, 2, tmp_path)
    chain.store.put(layout.data_root(JOB) + "/notes/mine", b"?")
    prune(chain.store, JOB, 2)
    assert steps_with_data(chain) == ["1-1-insurance", "2-1-insurance", "notes"]
    chain.fence(2)
    record(chain, 2, 3, tmp_path)
    record(chain, 3, 3, tmp_path)
    prune(chain.store, JOB, 2)
    assert steps_with_data(chain) == ["1-1-insurance", "3-2-insurance", "3-3-insurance", "notes"]


def test_leftovers_stay_while_an_entry_is_unreadable(chain: Chain, tmp_path: Path) -> None:
    lost = save(chain, 1, 1, tmp_path)
    chain.store.put(layout.chain_key(JOB, lost.n), b"")
    Chain(chain.store, JOB).fence(2)
    prune(chain.store, JOB, 2)
    assert steps_with_data(chain) == ["1-1-insurance"]


def test_half_written_files_of_older_attempts_go(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    chain = Chain(FolderStore(tmp_path / "store"), JOB)
    halves = []
    for attempt in (1, 2):
        chain.fence(attempt)
        half = tmp_path / f"store/jobs/j1/data/5-{attempt}-periodic/x/.spothop-tmp-1"
        half.parent.mkdir(parents=True)
        half.touch()
        halves.append(half)
    prune(chain.store, JOB, 2)
    assert [half.exists() for half in halves] == [False, True]


def test_a_failure_in_the_middle_is_made_up_for(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(1, 6):
        save(chain, 1, step, tmp_path)
    delete = chain.store.delete

    def half(keys: list[str]) -> None:
        delete(keys[:1])
        raise StorageUnavailable("503")

    with monkeypatch.context() as patch:
        patch.setattr(chain.store, "delete", half)
        with pytest.raises(StorageUnavailable):
            prune(chain.store, JOB, 0)
    assert len(steps_with_data(chain)) == 4
    assert [entry.step for entry in prune(chain.store, JOB, 0)] == [2, 3]
    assert steps_with_data(chain) == ["4-1-insurance", "5-1-insurance"]


def test_parts_of_a_torn_upload_beside_the_data_change_nothing(
    chain: Chain, tmp_path: Path
) -> None:
    """The sums of the folder differ from the entry's: it is looked at file by file."""
    saved = [save(chain, 1, step, tmp_path) for step in (1, 2, 3)]
    chain.store.put(saved[2].files[0].key + "-torn", b"?")
    assert [entry.step for entry in prune(chain.store, JOB, 0)] == [1]
    chain.store.put(saved[1].files[0].key + "-torn", b"?")
    chain.store.delete([saved[1].files[0].key])
    save(chain, 1, 4, tmp_path)
    save(chain, 1, 5, tmp_path)
    assert [entry.step for entry in prune(chain.store, JOB, 0)] == [2, 3]
    assert steps_with_data(chain) == ["4-1-insurance", "5-1-insurance"]


def test_an_object_of_the_wrong_size_makes_a_checkpoint_unfit(chain: Chain, tmp_path: Path) -> None:
    saved = [save(chain, 1, step, tmp_path) for step in (1, 2, 3)]
    chain.store.put(saved[2].files[0].key, b"more than there was")
    assert prune(chain.store, JOB, 0) == []


def test_a_whole_checkpoint_is_known_by_its_sums_alone(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long chain neither the entries are read nor the folders listed, each by itself."""
    for step in (1, 2):
        save(chain, 1, step, tmp_path)
    scanned: list[str] = []
    scan = type(chain.store).scan

    def noted(store: ObjectStore, prefix: str, **more: Any) -> Iterator[ObjectInfo]:
        scanned.append(prefix)
        return scan(store, prefix, **more)

    monkeypatch.setattr(type(chain.store), "scan", noted)
    assert prune(chain.store, JOB, 0, chain=chain) == []
    assert scanned.count(layout.data_root(JOB)) == 1
    assert [prefix for prefix in scanned if prefix.startswith(layout.data_root(JOB) + "/")] == []


def test_a_checkpoint_whose_entry_was_damaged_meanwhile_protects_nothing(
    chain: Chain, tmp_path: Path
) -> None:
    """Its sums say nothing, and what its files are cannot be told any more."""
    saved = [save(chain, 1, step, tmp_path) for step in (1, 2, 3)]
    chain.store.put(saved[2].files[0].key + "-torn", b"?")
    chain.store.put(layout.chain_key(JOB, saved[2].n), b"")
    assert prune(chain.store, JOB, 0, chain=chain) == []
    assert {*steps_with_data(chain)} == {"1-1-insurance", "2-1-insurance", "3-1-insurance"}


class Behind:
    """A store whose listings leave some keys out; they can be read."""

    def __init__(self, store: ObjectStore, *keys: str) -> None:
        self._store = store
        self._hidden = keys

    def scan(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        found = self._store.scan(prefix, after=after)
        return (info for info in found if info.key not in self._hidden)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def test_an_entry_that_a_listing_leaves_out_keeps_its_data(chain: Chain, tmp_path: Path) -> None:
    old = save(chain, 1, 10, tmp_path)
    chain.fence(2)
    save(chain, 2, 20, tmp_path)
    behind = Behind(chain.store, layout.chain_key(JOB, old.n))
    prune(behind, JOB, 0)  # type: ignore[arg-type]
    assert steps_with_data(chain) == ["10-1-insurance", "20-2-insurance"]


def test_a_gap_in_the_chain_deletes_nothing_of_older_attempts(chain: Chain, tmp_path: Path) -> None:
    """The entry that is gone may have named it; a copy of the bucket may bring it back."""
    old = save(chain, 1, 10, tmp_path)
    chain.fence(2)
    save(chain, 2, 20, tmp_path)
    chain.store.delete([layout.chain_key(JOB, old.n)])
    prune(chain.store, JOB, 0)
    assert steps_with_data(chain) == ["10-1-insurance", "20-2-insurance"]


@pytest.mark.parametrize("hidden", [2, 3])
def test_a_restore_finds_what_a_listing_leaves_out(
    chain: Chain, tmp_path: Path, hidden: int
) -> None:
    save(chain, 1, 10, tmp_path)
    save(chain, 1, 20, tmp_path)
    fence = chain.fence(2)
    behind = Behind(chain.store, *(layout.chain_key(JOB, n) for n in range(hidden, fence.n + 1)))
    found = Chain(behind, JOB).newest_first(before=fence.n)  # type: ignore[arg-type]
    assert [entry.n for entry in found] == [3, 2, 1]
