"""Fence and commit: races, ambiguous answers, damage (I2)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from obstore.store import MemoryStore

from fakes.s3_server import FOR_EVER, S3Server
from spothop.checkpoints import (
    BadEntry,
    Chain,
    ChainDamaged,
    Entry,
    Fenced,
    FileRecord,
    NotFencedIn,
    Outline,
    UnknownCommits,
)
from spothop.checkpoints import keys as layout
from spothop.storage import (
    ObjectExists,
    ObjectStore,
    RemoteStore,
    StorageDenied,
    StorageUnavailable,
    open_store,
)
from spothop.wire import SaveKind
from support.waiting import WITHIN_S

JOB = "j1"
Fault = Callable[[ObjectStore, str, bytes], None]


class Scripted:
    """A store whose next creates go through `faults`, first in, first out; it counts its reads."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.faults: list[Fault] = []
        self.reads: list[str] = []
        self.on_get: Callable[[], object] = lambda: None

    def create(self, key: str, data: bytes) -> None:
        if self.faults:
            self.faults.pop(0)(self._store, key, data)
        else:
            self._store.create(key, data)

    def get(self, key: str) -> bytes:
        self.reads.append(key)
        self.on_get()
        return self._store.get(key)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def written_but_unanswered(store: ObjectStore, key: str, data: bytes) -> None:
    store.create(key, data)
    raise StorageUnavailable("the connection broke")


def written_then_repeated(store: ObjectStore, key: str, data: bytes) -> None:
    """What a client that retries by itself makes of a lost answer."""
    store.create(key, data)
    raise ObjectExists("it exists")


def refused(store: ObjectStore, key: str, data: bytes) -> None:
    raise StorageUnavailable("503")


def denied(store: ObjectStore, key: str, data: bytes) -> None:
    raise StorageDenied("403")


def first(action: Callable[[], object]) -> Fault:
    """Somebody else is quicker."""

    def fault(store: ObjectStore, key: str, data: bytes) -> None:
        action()
        store.create(key, data)

    return fault


@pytest.fixture
def store() -> Scripted:
    return Scripted(RemoteStore(MemoryStore(), "memory"))


def chain_of(store: Scripted) -> Chain:
    return Chain(store, JOB)  # type: ignore[arg-type]  # the rest is delegated


def commit(chain: Chain, attempt: int, step: int = 1, **more: object) -> Entry:
    return chain.commit(
        attempt,
        step=step,
        kind=SaveKind.PERIODIC,
        files=[],
        root="c",
        is_dir=True,
        meta={},
        **more,  # type: ignore[arg-type]
    )


def numbers(chain: Chain) -> list[tuple[int, int, bool]]:
    return [(e.n, e.attempt, e.fence) for e in chain.entries() if isinstance(e, Entry)]


def test_an_attempt_fences_then_commits(store: Scripted) -> None:
    chain = chain_of(store)
    assert chain.fence(1).n == 1
    assert commit(chain, 1, step=10).n == 2
    assert commit(chain, 1, step=20).parent == 2
    assert chain_of(store).fence(2).n == 4
    assert numbers(chain) == [(1, 1, True), (2, 1, False), (3, 1, False), (4, 2, True)]


def test_the_first_commit_names_what_was_restored(store: Scripted) -> None:
    chain = chain_of(store)
    chain.fence(1)
    restored = commit(chain, 1)
    chain.fence(2)
    assert commit(chain, 2, parent=restored.n).parent == restored.n
    assert commit(chain, 2, parent=restored.n).parent == 4


def test_an_older_attempt_cannot_commit_or_fence_again(store: Scripted) -> None:
    old, new = chain_of(store), chain_of(store)
    old.fence(1)
    new.fence(3)
    acts: list[Callable[[], Entry]] = [
        lambda: commit(old, 1),
        lambda: old.fence(1),
        lambda: old.fence(2),
    ]
    for act in acts:
        with pytest.raises(Fenced) as caught:
            act()
        assert caught.value.by == 3
    assert len(numbers(new)) == 2


def test_a_commit_needs_a_fence(store: Scripted) -> None:
    with pytest.raises(NotFencedIn):
        commit(chain_of(store), 1)
    chain_of(store).fence(1)
    with pytest.raises(NotFencedIn):
        commit(chain_of(store), 2)


def test_fencing_twice_gives_the_same_fence(store: Scripted) -> None:
    fence = chain_of(store).fence(1)
    commit(chain_of(store), 1)
    assert chain_of(store).fence(1) == fence


def test_the_loser_of_a_race_goes_one_higher(store: Scripted) -> None:
    chain, other = chain_of(store), chain_of(store)
    chain.fence(1)
    store.faults = [first(lambda: commit(other, 1, step=5))]
    assert commit(chain, 1, step=6).n == 3
    assert numbers(chain) == [(1, 1, True), (2, 1, False), (3, 1, False)]


def test_a_fence_that_comes_first_stops_a_commit_under_way(store: Scripted) -> None:
    old, new = chain_of(store), chain_of(store)
    old.fence(1)
    store.faults = [first(lambda: new.fence(2))]
    with pytest.raises(Fenced):
        commit(old, 1)
    assert numbers(new) == [(1, 1, True), (2, 2, True)]


def test_a_commit_that_comes_first_is_before_the_fence(store: Scripted) -> None:
    old, new = chain_of(store), chain_of(store)
    old.fence(1)
    store.faults = [first(lambda: commit(old, 1))]
    assert new.fence(2).n == 3
    assert numbers(new) == [(1, 1, True), (2, 1, False), (3, 2, True)]


@pytest.mark.parametrize("fault", [written_but_unanswered, written_then_repeated])
def test_an_own_entry_is_recognised_after_an_ambiguous_answer(
    store: Scripted, fault: Fault
) -> None:
    chain = chain_of(store)
    store.faults = [fault, fault]
    assert chain.fence(1).n == 1
    assert commit(chain, 1).n == 2
    assert numbers(chain) == [(1, 1, True), (2, 1, False)]


@pytest.mark.parametrize("fault", [refused, denied])
def test_an_error_that_wrote_nothing_goes_to_the_caller(store: Scripted, fault: Fault) -> None:
    chain = chain_of(store)
    chain.fence(1)
    store.faults = [fault]
    with pytest.raises((StorageUnavailable, StorageDenied)):
        commit(chain, 1)
    assert commit(chain, 1).n == 2


def test_a_repeated_commit_of_the_same_save_is_one_entry(store: Scripted) -> None:
    chain = chain_of(store)
    chain.fence(1)
    committed = commit(chain, 1, entry_id="outbox-1")
    commit(chain, 1, entry_id="outbox-2")
    assert commit(chain, 1, entry_id="outbox-1") == committed
    assert commit(chain_of(store), 1, entry_id="outbox-1") == committed
    chain_of(store).fence(2)
    assert commit(chain_of(store), 1, entry_id="outbox-1") == committed
    with pytest.raises(Fenced):
        commit(chain, 1, entry_id="outbox-3")
    assert len(numbers(chain)) == 4


def test_what_an_attempt_has_committed_is_looked_up_side_by_side(store: Scripted) -> None:
    """By an agent that was started again, whose first commit may be an emergency save."""
    chain = chain_of(store)
    chain.fence(1)
    made = [commit(chain, 1, step=step, entry_id=f"save-{step}") for step in range(7)]
    again = Scripted(store)  # type: ignore[arg-type]
    two_at_a_time = threading.Barrier(2, timeout=WITHIN_S)
    again.on_get = lambda: two_at_a_time.wait()
    found = chain_of(again).find(1, "save-2")
    assert found == Outline.of(made[2])
    assert len(again.reads) == 8


def test_a_new_attempt_reads_nothing_before_its_first_commit(store: Scripted) -> None:
    chain = chain_of(store)
    chain.fence(1)
    for step in range(5):
        commit(chain, 1, step=step)
    new = chain_of(store)
    new.fence(2)
    store.reads.clear()
    commit(new, 2, entry_id="save-1")
    assert store.reads == []


def test_entries_are_read_once_and_only_those_wanted(store: Scripted) -> None:
    writer = chain_of(store)
    writer.fence(1)
    for step in range(30):
        commit(writer, 1, step=step)
    assert store.reads == []
    newest = writer.entries()[-1]
    store.reads.clear()
    reader = chain_of(store)
    assert next(reader.newest_first()) == newest
    assert len(store.reads) == 1
    store.reads.clear()
    assert [e.n for e in reader.outlines(after=28)] == [29, 30, 31]
    reader.outlines()
    reader.outlines()
    assert len(store.reads) == len(set(store.reads)) == 31


def test_one_bad_entry_does_not_hide_the_others(store: Scripted) -> None:
    chain = chain_of(store)
    chain.fence(1)
    kept = commit(chain, 1)
    commit(chain, 1)
    store.put(layout.chain_key(JOB, 3), b"")  # type: ignore[operator]
    store.put(layout.chain_key(JOB, 2).replace("2.json", "9.txt"), b"")  # type: ignore[operator]
    entries = chain_of(store).entries()
    assert [e.n for e in entries] == [1, 2, 3]
    assert isinstance(entries[2], BadEntry)
    assert [e for e in entries if isinstance(e, Entry) and not e.fence] == [kept]


def test_an_entry_under_a_wrong_number_is_bad(store: Scripted) -> None:
    chain = chain_of(store)
    chain.fence(1)
    store.put(layout.chain_key(JOB, 2), store.get(layout.chain_key(JOB, 1)))  # type: ignore[operator]
    assert isinstance(chain_of(store).entries()[1], BadEntry)


def test_nothing_is_committed_behind_what_may_be_a_fence(store: Scripted) -> None:
    chain = chain_of(store)
    chain.fence(1)
    store.put(layout.chain_key(JOB, 2), b"{")  # type: ignore[operator]
    with pytest.raises(ChainDamaged, match="entry 2"):
        commit(chain, 1)
    assert chain_of(store).fence(2).n == 3
    assert commit(chain_of(store), 2).n == 4


def test_a_store_that_does_not_answer_is_no_damage(
    store: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain_of(store).fence(1)

    def fail(key: str) -> bytes:
        raise StorageUnavailable("503")

    monkeypatch.setattr(store, "get", fail)
    with pytest.raises(StorageUnavailable):
        chain_of(store).entries()


def test_a_number_that_is_refused_and_free_is_left_to_the_callers_pause() -> None:
    with S3Server() as s3:
        chain = Chain(open_store(s3.spec()), "job")
        chain.fence(1)
        s3.fail("PutObject", "*/chain/*", 412, "PreconditionFailed", times=FOR_EVER)
        s3.asked.clear()
        with pytest.raises(StorageUnavailable, match="does not show it"):
            commit(chain, 1, 10)
        assert s3.count("PutObject") == 1
        s3.heal()
        assert commit(chain, 1, 10).n == 2


def test_before_an_entry_means_without_it(store: Scripted) -> None:
    chain = chain_of(store)
    assert chain.is_empty()
    chain.fence(1)
    assert not chain.is_empty()
    commit(chain, 1, step=10)
    fence = chain.fence(2)
    assert [entry.n for entry in chain.newest_first(before=fence.n)] == [2, 1]
    assert [entry.n for entry in chain.newest_first()] == [3, 2, 1]


def test_a_save_of_another_attempt_with_the_same_id_is_another_one(store: Scripted) -> None:
    chain = chain_of(store)
    chain.fence(1)
    old = commit(chain, 1, step=10, entry_id="save")
    chain.fence(2)
    assert chain.find(2, "save") is None
    assert commit(chain, 2, step=20, entry_id="save").n == old.n + 2


def test_a_commit_that_is_no_longer_wanted_writes_nothing() -> None:
    class Unwanted(Exception): ...

    def refuse() -> None:
        raise Unwanted

    chain = Chain(RemoteStore(MemoryStore(), "memory"), JOB)
    chain.fence(1)
    with pytest.raises(Unwanted):
        commit(chain, 1, 10, still_wanted=refuse)
    assert [entry.n for entry in chain.entries()] == [1]


# --- commits whose author does not know of them -------------------------------------------------


def test_nothing_is_committed_on_top_of_what_the_author_does_not_know() -> None:
    """A create that came late, or whose answer was lost, may be newer than what comes next."""
    store = RemoteStore(MemoryStore(), "memory")
    chain, late = Chain(store, JOB), Chain(store, JOB)
    fence = chain.fence(1)
    known = commit(chain, 1, 10, seen=fence.n)
    arrived = [commit(late, 1, 20, entry_id="a"), commit(late, 1, 30, entry_id="b")]
    with pytest.raises(UnknownCommits) as caught:
        commit(chain, 1, 15, entry_id="c", seen=known.n)
    assert [(entry.n, entry.id) for entry in caught.value.entries] == [(3, "a"), (4, "b")]
    with pytest.raises(UnknownCommits) as caught:
        commit(chain, 1, 15, entry_id="c", seen=0)
    assert [entry.n for entry in caught.value.entries] == [2, 3, 4]  # its fence is none
    assert chain.newest_number() == 4
    assert commit(chain, 1, 20, entry_id="a", seen=known.n) == arrived[0]  # there already
    assert commit(chain, 1, 40, entry_id="d", seen=4).n == 5


def test_a_create_that_wins_the_number_of_a_commit_is_looked_at_first() -> None:
    store = Scripted(RemoteStore(MemoryStore(), "memory"))
    chain, late = chain_of(store), chain_of(store)
    fence = chain.fence(1)

    def arrives() -> None:
        if late.newest_number() == fence.n:
            commit(late, 1, 20, entry_id="a")

    with pytest.raises(UnknownCommits):
        commit(chain, 1, 10, seen=fence.n, still_wanted=arrives)


# --- a number that was used twice ---------------------------------------------------------------


def test_the_later_vm_of_one_attempt_is_fenced() -> None:
    store = RemoteStore(MemoryStore(), "memory")
    first = Chain(store, JOB).fence(3, vm="vm-a")
    told = f"attempt 3 of job '{JOB}' is fenced by VM 'vm-a', which runs the same attempt"
    with pytest.raises(Fenced, match=told) as caught:
        Chain(store, JOB).fence(3, vm="vm-b")
    assert (caught.value.by, caught.value.vm) == (3, "vm-a")
    assert Chain(store, JOB).fence(3, vm="vm-a") == first  # its agent was started again
    assert len(Chain(store, JOB).entries()) == 1


def test_of_two_vms_that_fence_at_once_one_is_refused() -> None:
    def other_is_faster(store: ObjectStore, key: str, data: bytes) -> None:
        Chain(store, JOB).fence(1, vm="vm-a")
        store.create(key, data)

    store = Scripted(RemoteStore(MemoryStore(), "memory"))
    store.faults = [other_is_faster]
    with pytest.raises(Fenced, match="vm-a"):
        Chain(store, JOB).fence(1, vm="vm-b")  # type: ignore[arg-type]


def test_an_old_fence_without_a_vm_is_read_on() -> None:
    store = RemoteStore(MemoryStore(), "memory")
    text = Entry(n=1, attempt=2, id="old", fence=True).to_json()
    assert '"vm"' in text
    store.put(layout.chain_key(JOB, 1), text.replace(',\n "vm": ""', "").encode())
    assert Chain(store, JOB).fence(2, vm="vm-a").id == "old"
    assert Chain(store, JOB).fence(3, vm="vm-a").n == 2


# --- long chains, and large entries -------------------------------------------------------------


def test_an_agent_that_is_started_again_reads_only_what_is_not_dealt_with(store: Scripted) -> None:
    chain = chain_of(store)
    chain.fence(1)
    for step in range(50):
        commit(chain, 1, step=step, entry_id=f"save-{step}")
    store.reads.clear()
    again = Chain(store, JOB, since=50)  # type: ignore[arg-type]  # it died before it noted 51
    assert commit(again, 1, entry_id="save-49").n == 51
    assert commit(again, 1, entry_id="save-50").n == 52
    assert set(store.reads) == {layout.chain_key(JOB, n) for n in (50, 51)}


def test_where_that_entry_is_unreadable_all_are_looked_at(store: Scripted) -> None:
    chain = chain_of(store)
    chain.fence(1)
    commit(chain, 1, entry_id="save-1")
    commit(chain, 1, entry_id="save-2")
    store.put(layout.chain_key(JOB, 3), b"")  # type: ignore[operator]
    again = Chain(store, JOB, since=3)  # type: ignore[arg-type]
    found = again.find(1, "save-1")
    assert found is not None
    assert found.n == 2


def test_of_an_entry_no_files_stay_in_memory(store: Scripted) -> None:
    files = tuple(
        FileRecord(f"f{i}", 1, "0" * 64, f"jobs/j/data/1-1-periodic/a/f{i}") for i in "12"
    )
    entry = Entry(n=7, attempt=1, id="i", step=1, kind=SaveKind.PERIODIC, files=files)
    outline = Outline.of(entry)
    assert outline.folders == ("jobs/j/data/1-1-periodic/a",)
    assert (outline.objects, outline.n, outline.step, outline.fence) == (2, 7, 1, False)


def test_an_empty_chain_has_no_number_and_nothing_to_find(store: Scripted) -> None:
    chain = chain_of(store)
    assert chain.is_empty()
    assert chain.newest_number() == 0
    assert chain.find(1, "unknown") is None
    fence = chain_of(store).fence(1)
    found = chain.find(1, fence.id)
    assert found is not None
    assert (found.n, found.id) == (1, fence.id)
    assert chain.newest_number() == 1
    assert not chain.is_empty()


def test_whoever_is_fenced_hears_by_whom(store: Scripted) -> None:
    chain = chain_of(store)
    chain.fence(1)
    chain_of(store).fence(4)
    for action in (lambda: chain.fence(1), lambda: commit(chain, 1)):
        with pytest.raises(Fenced, match="attempt 1 of job 'j1' is fenced by attempt 4") as caught:
            action()
        assert caught.value.by == 4


def test_an_unreadable_fence_is_damage_and_no_fault_of_the_caller() -> None:
    """A store that answers with empty bodies for a while must not end the agent of a job."""
    store = RemoteStore(MemoryStore(), "memory")
    Chain(store, "j").fence(1)
    store.put(layout.chain_key("j", 1), b"")
    with pytest.raises(ChainDamaged, match="entry 1"):
        Chain(store, "j").commit(
            1, step=1, kind=SaveKind.PERIODIC, files=[], root="f", is_dir=False, meta={}
        )
