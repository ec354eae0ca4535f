"""Any interleaving of attempts, lost answers, late writes, damage and pruning keeps I1 and I2."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from obstore.store import MemoryStore

from spothop.checkpoints import Chain, Entry, Fenced, NotFencedIn, prune, restore, upload
from spothop.checkpoints import keys as layout
from spothop.storage import (
    NothingRestores,
    ObjectExists,
    ObjectStore,
    RemoteStore,
    StorageUnavailable,
)
from spothop.wire import SaveKind
from support.examples import examples

JOB = "j"
WHO = st.sampled_from([0, 0, 0, 0, 0, 1, -1])  # attempts, counted from the newest one
FAULTS = st.sampled_from(
    ["none", "none", "none", "none", "none", "lost answer", "repeated", "refused", "late", "race"]
)


class Scripted:
    """The next create meets `fault`; `rival` acts first in a race; `late` writes land later."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.fault = "none"
        self.rival: Callable[[], None] = lambda: None
        self.late: list[tuple[str, bytes]] = []

    def create(self, key: str, data: bytes) -> None:
        fault, self.fault = self.fault, "none"
        if fault == "race":
            self.rival()
        if fault == "late":
            self.late.append((key, data))
        if fault not in {"refused", "late"}:
            self.store.create(key, data)
        if fault == "repeated":
            raise ObjectExists("written before, by this very call")
        if fault in {"lost answer", "refused", "late"}:
            raise StorageUnavailable(fault)

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)


class ChainMachine(RuleBasedStateMachine):
    """Agents of several attempts of one job; the checks read past all caches of our code."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.raw = RemoteStore(MemoryStore(), "memory")
        self.store = Scripted(self.raw)
        self.chains: dict[int, Chain] = {}
        self.fences: dict[int, Entry] = {}
        self.restored: dict[int, int | None] = {}
        self.confirmed: dict[int, str] = {}
        self.saves = 0

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    # --- what agents do ---

    @rule(who=WHO)
    def restart_agent(self, who: int) -> None:
        self.chains.pop(self._attempt(who), None)

    @rule(who=st.sampled_from([1, 1, 0, -1]), fault=FAULTS, rival=WHO)
    def fence(self, who: int, fault: str, rival: int) -> None:
        attempt = self._attempt(who)
        self._arm(fault, self._attempt(rival))
        self._fence(attempt)

    @rule(who=WHO, fault=FAULTS, rival=WHO, kind=st.sampled_from(SaveKind))
    def commit(self, who: int, fault: str, rival: int, kind: SaveKind) -> None:
        attempt = self._attempt(who)
        self._arm(fault, self._attempt(rival))
        self._commit(attempt, kind)

    @precondition(lambda self: self.fences)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(sorted(self.fences)))
        before = self.fences[attempt].n
        intact = [e for e in self._entries() if e.n < before and self._intact(e)]
        target = Path(self.folder.name, "job")
        try:
            restored = restore(self.raw, self._chain(attempt).newest_first(before), target)
        except NothingRestores:
            assert not intact
            return
        assert restored.entry == (intact[-1] if intact else None)
        self.restored[attempt] = restored.entry.n if restored.entry else None

    @rule(who=WHO, keep=st.integers(0, 2))
    def prune(self, who: int, keep: int) -> None:
        def protected() -> list[int]:
            whole = [e for e in self._entries() if self._present(e)]
            passed = {
                old.n
                for new in whole
                for old in whole
                if new.parent is not None and new.parent < old.n < new.n
            }
            return [e.n for e in whole if e.n not in passed][-2:]

        before = protected()
        prune(self.raw, JOB, keep, chain=self._chain(self._attempt(who)))
        assert protected() == before

    # --- what the harness does ---

    @precondition(lambda self: self.store.late)
    @rule()
    def a_late_write_lands(self) -> None:
        key, data = self.store.late.pop(0)
        try:
            self.raw.create(key, data)
        except ObjectExists:
            return

    @precondition(lambda self: any(self._intact(e) for e in self._entries()))
    @rule(data=st.data(), how=st.sampled_from([None, b"", b"??????"]))
    def data_is_damaged(self, data: st.DataObject, how: bytes | None) -> None:
        victim = data.draw(st.sampled_from([e for e in self._entries() if self._intact(e)]))
        self.raw.delete([victim.files[0].key])
        if how is not None:
            self.raw.put(victim.files[0].key, how)

    # --- what must hold ---

    @invariant()
    def numbers_have_no_gaps_and_attempts_never_decrease(self) -> None:
        if not hasattr(self, "raw"):
            return
        entries = [*self._entries(fences=True)]
        assert [e.n for e in entries] == list(range(1, len(entries) + 1))
        attempts = [e.attempt for e in entries]
        assert attempts == sorted(attempts)
        for entry, previous in zip(entries, [None, *entries], strict=False):
            begins = previous is None or previous.attempt < entry.attempt
            assert entry.fence == begins, "an attempt's first entry is its only fence"

    @invariant()
    def no_save_is_committed_twice(self) -> None:
        if hasattr(self, "raw"):
            steps = [e.step for e in self._entries()]
            assert len(steps) == len(set(steps))

    @invariant()
    def what_was_confirmed_stays(self) -> None:
        if hasattr(self, "raw"):
            there = {e.n: e.id for e in self._entries(fences=True)}
            assert self.confirmed.items() <= there.items()

    # --- inside ---

    def _arm(self, fault: str, rival: int) -> None:
        self.store.fault = fault
        acts = self._commit if self.saves % 2 else self._fence
        self.store.rival = lambda: acts(rival)

    def _chain(self, attempt: int) -> Chain:
        if attempt not in self.chains:
            self.chains[attempt] = Chain(self.store, JOB)  # type: ignore[arg-type]
        return self.chains[attempt]

    def _attempt(self, who: int) -> int:
        return max(1, self._newest_attempt() + who)

    def _newest_attempt(self) -> int:
        return max((e.attempt for e in self._entries(fences=True)), default=0)

    def _fence(self, attempt: int) -> None:
        newest = self._newest_attempt()
        try:
            fence = self._chain(attempt).fence(attempt)
        except StorageUnavailable:
            return
        except Fenced as fenced:
            self._must_be_newer(fenced, attempt)
            return
        assert newest <= attempt, "an older attempt fenced behind a newer one"
        self.fences[attempt] = fence
        self.confirmed[fence.n] = fence.id

    def _commit(self, attempt: int, kind: SaveKind = SaveKind.PERIODIC) -> None:
        self.saves += 1
        source = Path(self.folder.name, "save")
        source.write_text(f"save {self.saves}")
        newest = self._newest_attempt()
        files = upload(self.raw, JOB, attempt, self.saves, kind, source)
        try:
            entry = self._chain(attempt).commit(
                attempt,
                step=self.saves,
                kind=kind,
                files=files,
                root="save",
                is_dir=False,
                meta={},
                parent=self.restored.get(attempt),
            )
        except StorageUnavailable:
            return
        except NotFencedIn:
            assert newest < attempt
            return
        except Fenced as fenced:
            self._must_be_newer(fenced, attempt)
            return
        assert newest == attempt, "committed while not the newest attempt"
        self.confirmed[entry.n] = entry.id

    @staticmethod
    def _must_be_newer(fenced: Fenced, attempt: int) -> None:
        assert fenced.by > attempt

    def _entries(self, *, fences: bool = False) -> list[Entry]:
        """Every readable entry straight from storage, oldest first."""
        found = sorted(info.key for info in self.raw.scan(layout.chain_folder(JOB)))
        entries = [Entry.from_json(self.raw.get(key)) for key in found]
        return [e for e in entries if fences or not e.fence]

    def _present(self, entry: Entry) -> bool:
        sizes = {info.key: info.size for info in self.raw.scan(layout.data_root(JOB))}
        return all(sizes.get(record.key) == record.size for record in entry.files)

    def _intact(self, entry: Entry) -> bool:
        return self._present(entry) and all(
            hashlib.sha256(self.raw.get(record.key)).hexdigest() == record.sha256
            for record in entry.files
        )


TestChain = ChainMachine.TestCase
TestChain.settings = examples(100, stateful_step_count=40)
