"""`file://`: durability order, leftovers, and faults of the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from spothop.storage import FolderStore, StorageUnavailable
from spothop.storage.folder import TEMPORARY


def test_data_is_synced_before_its_name_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    real_sync, real_link = os.fsync, os.link

    def sync(handle: int) -> None:
        log.append("sync " + Path(os.readlink(f"/proc/self/fd/{handle}")).name[:13])
        real_sync(handle)

    def link(source: Path, target: Path) -> None:
        log.append(f"link {target.name}")
        real_link(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "link", link)
    FolderStore(tmp_path).create("jobs/1.json", b"x")
    assert log == [f"sync {tmp_path.name[:13]}", f"sync {TEMPORARY}", "link 1.json", "sync jobs"]


def test_leftovers_of_a_killed_write_are_not_listed_and_can_be_discarded(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("d/keep/a", b"x")
    leftover = tmp_path / "d" / "gone" / f"{TEMPORARY}123"
    leftover.parent.mkdir()
    leftover.write_bytes(b"half")
    assert [info.key for info in store.scan("d")] == ["d/keep/a"]
    store.discard_partial("d")
    assert not leftover.parent.exists()
    assert store.get("d/keep/a") == b"x"


def test_deleting_the_last_object_removes_the_folder(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("d/e/a", b"x")
    store.delete(["d/e/a"])
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    (tmp_path / "store").mkdir()
    with pytest.raises(StorageUnavailable, match="no space left for 'k'"):
        FolderStore(tmp_path / "store").put("k", b"x")
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.parametrize("instead", [None, "a file"])
def test_a_store_that_was_removed_is_away_and_not_empty(
    tmp_path: Path, instead: str | None
) -> None:
    """It was there when it was opened: nothing is missing, trying again can help."""
    store = FolderStore(tmp_path / "store")
    if instead is not None:
        (tmp_path / "store").write_text(instead)
    for use in (
        lambda: store.put("k", b"x"),
        lambda: store.create("chain/1", b"x"),
        lambda: store.get("k"),
        lambda: store.size("k"),
        lambda: list(store.scan("chain")),
        lambda: store.folders("jobs"),
    ):
        with pytest.raises(StorageUnavailable, match=r"is gone; mount it, or put it back"):
            use()


def test_a_folder_that_cannot_be_listed_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path)
    store.put("chain/1", b"x")

    def broken(path: object) -> object:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "scandir", broken)
    with pytest.raises(StorageUnavailable):
        list(store.scan("chain"))


def test_copies_where_sendfile_does_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "sendfile", refuse)
    data = os.urandom(9_000_000)
    (tmp_path / "f").write_bytes(data)
    store = FolderStore(tmp_path)
    store.send("k", tmp_path / "f", size=len(data), on_bytes=lambda count: None)
    assert store.get("k") == data


def test_a_folder_that_is_deleted_while_one_is_made_in_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever deletes the last object of a job's folder takes the folder with it."""
    store, mkdir, raced = FolderStore(tmp_path), Path.mkdir, []

    def just_deleted(self: Path, *args: Any, **kwargs: Any) -> None:
        if self.name == "data" and not raced:
            raced.append(self)
            self.parent.rmdir()
        mkdir(self, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", just_deleted)
    store.put("jobs/j/data/a", b"a")
    assert raced
    assert store.get("jobs/j/data/a") == b"a"
