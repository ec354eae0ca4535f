"""What a replacement fetches before its fence, and what of it counts afterwards."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import obstore.store

from fakes.attempt_harness import AttemptHarness
from fakes.virtual_time import play, until
from spothop.checkpoints import Ahead, Chain, Entry, restore, upload
from spothop.storage import RemoteStore, StorageUnavailable
from spothop.wire import SaveKind
from spothop_agent.prepare import Preparation
from spothop_agent.state import Phase

JOB = "job-1"


def waiting(root: Path) -> tuple[AttemptHarness, asyncio.Task[None]]:
    """A replacement, while the attempt before it trains on."""
    run = AttemptHarness(root, attempt=2, resumes=True, fence_now=False)
    run.store.ahead = 5
    preparation = Preparation(run.context, {"PATH": os.defpath}, random.Random(1))

    async def prepared() -> None:
        await preparation.run()
        await run.context.link.close()

    work = asyncio.create_task(prepared())
    allow[run.context.attempt] = preparation.may_fence.set
    return run, work


allow: dict[int, Callable[[], None]] = {}


def test_the_newest_checkpoint_is_there_before_the_fence(tmp_path: Path) -> None:
    async def scenario() -> None:
        run, work = waiting(tmp_path)
        await until(lambda: "fetch_ahead" in run.store.calls)
        assert run.state.phase <= Phase.PREPARED
        run.store.ahead = 7  # the old one saves again
        await until(lambda: run.store.calls.count("fetch_ahead") == 2)
        assert "fence" not in run.store.calls
        allow[2]()
        await work
        assert run.store.taken is not None
        assert run.store.taken.n == 7
        assert not (run.context.paths.root / "ahead").exists()

    play(scenario)


def test_being_prepared_does_not_wait_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        run, work = waiting(tmp_path)
        run.store.ahead_takes = 1000.0
        began = run.context.now()
        await until(lambda: run.state.phase is Phase.PREPARED)
        run.store.ahead = 9  # newer than what is under way
        allow[2]()
        await work
        assert run.context.now() - began < 100.0
        assert run.store.taken is None

    play(scenario)


def test_what_is_under_way_is_waited_for_where_it_is_the_newest(tmp_path: Path) -> None:
    async def scenario() -> None:
        run, work = waiting(tmp_path)
        run.store.ahead_takes = 1000.0
        began = run.context.now()
        await until(lambda: run.state.phase is Phase.PREPARED)
        allow[2]()
        await work
        assert run.context.now() - began >= 990.0
        assert run.store.taken is not None

    play(scenario)


def test_an_error_of_it_is_none_of_the_attempt(tmp_path: Path) -> None:
    async def scenario() -> None:
        run, work = waiting(tmp_path)
        run.store.fails["fetch_ahead"] = [StorageUnavailable("gone") for _ in range(9)]
        await until(lambda: "fetching a checkpoint ahead: gone" in run.log())
        allow[2]()
        await work
        assert run.state.phase is Phase.RESTORED
        assert run.store.taken is None

    play(scenario)


def test_a_first_attempt_fetches_nothing_ahead(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path)
        await Preparation(run.context, {"PATH": os.defpath}, random.Random(1)).run()
        assert "newest" not in run.store.calls
        await run.context.link.close()

    play(scenario)


class Counting(RemoteStore):
    """A store in memory that remembers what was fetched."""

    def __init__(self) -> None:
        super().__init__(obstore.store.MemoryStore(), "memory:///")
        self.fetched: list[str] = []

    def fetch(self, key: str, *args: object, **options: object) -> object:  # type: ignore[override]
        self.fetched.append(key.rpartition("/")[2])
        return super().fetch(key, *args, **options)  # type: ignore[arg-type]


def saved(store: Counting, root: Path, step: int, files: dict[str, bytes]) -> Entry:
    source = root / f"source{step}"
    source.mkdir()
    for name, data in files.items():
        (source / name).write_bytes(data)
    records = upload(store, JOB, 1, step, SaveKind.PERIODIC, source)
    return Chain(store, JOB).commit(
        1, step=step, kind=SaveKind.PERIODIC, files=records, root="ckpt", is_dir=True, meta={}
    )


def ahead_of(store: Counting, entry: Entry, folder: Path) -> Ahead:
    found = restore(store, [entry], folder)
    assert found.path is not None
    store.fetched.clear()
    return Ahead(folder, entry, found.path)


def test_only_what_differs_is_fetched_after_the_fence(tmp_path: Path) -> None:
    store = Counting()
    Chain(store, JOB).fence(1)
    old = saved(store, tmp_path, 1, {"a": b"same", "b": b"old", "twin": b"same"})
    ahead = ahead_of(store, old, tmp_path / "ahead")
    new = saved(store, tmp_path, 2, {"a": b"same", "b": b"new", "twin": b"same", "x": b"same"})
    found = restore(store, [new, old], tmp_path / "work", ahead=ahead)
    assert found.entry == new
    place = tmp_path / "work/ckpt"
    assert {p.name: p.read_bytes() for p in place.iterdir()} == {
        "a": b"same",
        "b": b"new",
        "twin": b"same",
        "x": b"same",
    }
    assert len(store.fetched) == 2  # b, and one of three where two were there
    assert len({p.stat().st_ino for p in place.iterdir()}) == 4  # each is a file of its own


def test_the_checkpoint_that_was_fetched_is_not_fetched_again(tmp_path: Path) -> None:
    store = Counting()
    Chain(store, JOB).fence(1)
    entry = saved(store, tmp_path, 1, {"a": b"1", "b": b"2"})
    ahead = ahead_of(store, entry, tmp_path / "ahead")
    (tmp_path / "ahead/ckpt/b").unlink()  # whatever happened to it
    restore(store, [entry], tmp_path / "work", ahead=ahead)
    assert store.fetched == ["b"]
    ahead.drop()
    assert not (tmp_path / "ahead").exists()
