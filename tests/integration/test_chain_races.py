"""A commit that races a fence, in both orders: two real writers of one chain in a folder (I2)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from spothop.checkpoints import Chain, Entry, Fenced, restore, upload
from spothop.storage.folder import FolderStore
from spothop.wire import SaveKind
from support.truth import check_chain
from support.waiting import WITHIN_S


class Between(FolderStore):
    """Lets somebody else act right before the next entry is created."""

    act: Callable[[], object] | None = None

    def create(self, key: str, data: bytes) -> None:
        act, self.act = self.act, None
        if act is not None:
            act()
        super().create(key, data)


def commit(chain: Chain, attempt: int, step: int, source: Path) -> Entry:
    files = upload(chain.store, chain.job, attempt, step, SaveKind.PERIODIC, source)
    return chain.commit(
        attempt, step=step, kind=SaveKind.PERIODIC, files=files, root="ckpt", is_dir=False, meta={}
    )


@pytest.fixture
def writers(tmp_path: Path) -> tuple[Between, Between]:
    (tmp_path / "store").mkdir()
    (tmp_path / "ckpt").write_text("state")
    return Between(tmp_path / "store"), Between(tmp_path / "store")


def test_a_fence_that_comes_right_before_a_commit_refuses_it(
    writers: tuple[Between, Between], tmp_path: Path
) -> None:
    old, new = Chain(writers[0], "j"), Chain(writers[1], "j")
    old.fence(1)
    commit(old, 1, 10, tmp_path / "ckpt")
    writers[0].act = partial(new.fence, 2)
    with pytest.raises(Fenced) as refused:
        commit(old, 1, 20, tmp_path / "ckpt")
    assert refused.value.by == 2
    check_chain(readable(new))
    assert [(e.attempt, e.step) for e in readable(new)] == [(1, None), (1, 10), (2, None)]
    found = restore(writers[1], new.newest_first(before=3), tmp_path / "there")
    assert (found.step, found.rejected) == (10, [])


def test_a_commit_that_comes_right_before_a_fence_is_restored(
    writers: tuple[Between, Between], tmp_path: Path
) -> None:
    old, new = Chain(writers[0], "j"), Chain(writers[1], "j")
    old.fence(1)
    writers[1].act = partial(commit, old, 1, 10, tmp_path / "ckpt")
    fence = new.fence(2)
    assert fence.n == 3
    check_chain(readable(new))
    found = restore(writers[1], new.newest_first(before=fence.n), tmp_path / "there")
    assert (found.step, found.rejected) == (10, [])
    with pytest.raises(Fenced):
        commit(old, 1, 20, tmp_path / "ckpt")


@pytest.mark.parametrize("fence_after", range(0, 12, 3))
def test_commits_and_a_fence_at_the_same_time(tmp_path: Path, fence_after: int) -> None:
    """Whatever wins: what was reported as committed is before the fence, and nothing behind it."""
    (tmp_path / "store").mkdir()
    (tmp_path / "ckpt").write_text("state")
    old, new = (Chain(FolderStore(tmp_path / "store"), "j") for _ in range(2))
    old.fence(1)
    enough = threading.Event()
    committed: list[Entry] = []

    def commits() -> None:
        with suppress(Fenced):
            for step in range(1, 1000):
                committed.append(commit(old, 1, step, tmp_path / "ckpt"))
                if step >= fence_after:
                    enough.set()

    writer = threading.Thread(target=commits)
    writer.start()
    if fence_after:
        assert enough.wait(WITHIN_S)
    fence = new.fence(2)
    writer.join(WITHIN_S)
    assert not writer.is_alive()
    entries = readable(new)
    check_chain(entries)
    assert entries[-1].n == fence.n
    assert entries[1:-1] == committed


def readable(chain: Chain) -> list[Entry]:
    return [entry for entry in chain.entries() if isinstance(entry, Entry)]
