"""Uploads: what is walked, what is refused, and files that change meanwhile."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from spothop.checkpoints import upload
from spothop.storage import FolderStore, ObjectStore, RemoteStore, SourceChanged, UnsafePath
from spothop.wire import SaveKind


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "memory":
        return RemoteStore(MemoryStore(), "memory")
    (tmp_path / "store").mkdir()
    return FolderStore(tmp_path / "store")


def send(store: ObjectStore, source: Path, **more: object) -> dict[str, str]:
    """Path -> SHA-256 of what arrived."""
    records = upload(store, "j", 1, 7, SaveKind.PERIODIC, source, **more)  # type: ignore[arg-type]
    for record in records:
        if record.key:
            assert hashlib.sha256(store.get(record.key)).hexdigest() == record.sha256
            assert store.size(record.key) == record.size
            assert record.key.startswith("jobs/j/data/7-1-periodic/")
    return {record.path: record.sha256 for record in records}


def test_a_file(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "ckpt.pt").write_bytes(b"weights")
    assert send(store, tmp_path / "ckpt.pt") == {"ckpt.pt": hashlib.sha256(b"weights").hexdigest()}


def test_a_directory_in_order_with_empty_things(store: ObjectStore, tmp_path: Path) -> None:
    source = tmp_path / "save"
    (source / "b" / "empty").mkdir(parents=True)
    (source / "b" / "y").write_bytes(b"")
    (source / "b" / "x #1 \n").write_bytes(b"1")
    (source / "a.pt").write_bytes(os.urandom(20_000_000))
    seen: list[tuple[int, int]] = []
    sent = send(store, source, on_progress=lambda *figures: seen.append(figures))
    assert list(sent) == ["a.pt", "b/empty/", "b/x #1 \n", "b/y"]
    assert seen[-1] == (20_000_001, 20_000_001)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_an_empty_directory(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "save").mkdir()
    assert send(store, tmp_path / "save") == {}


def test_links_inside_are_followed(store: ObjectStore, tmp_path: Path) -> None:
    source = tmp_path / "save"
    (source / "step-1").mkdir(parents=True)
    (source / "step-1" / "w").write_bytes(b"1")
    (source / "latest").symlink_to("step-1")
    (source / "w").symlink_to("step-1/w")
    assert list(send(store, source)) == ["latest/w", "step-1/w", "w"]


@pytest.mark.parametrize("target", ["/etc", "/etc/hostname", "..", ".", "nowhere", "loop"])
def test_links_that_lead_out_round_or_nowhere_are_refused(
    store: ObjectStore, tmp_path: Path, target: str
) -> None:
    (tmp_path / "save").mkdir()
    (tmp_path / "save" / "loop").symlink_to(target)
    with pytest.raises(UnsafePath, match="loop"):
        send(store, tmp_path / "save")
    assert list(store.scan("")) == []


def test_a_pipe_is_refused(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "save").mkdir()
    os.mkfifo(tmp_path / "save" / "pipe")
    with pytest.raises(UnsafePath, match="pipe"):
        send(store, tmp_path / "save")


def test_a_source_that_is_gone_is_said(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(SourceChanged, match="nowhere"):
        send(store, tmp_path / "nowhere")


@pytest.mark.parametrize("change", ["grow", "cut", "overwrite", "remove"])
def test_a_file_that_changes_meanwhile_is_refused(
    store: ObjectStore, tmp_path: Path, change: str
) -> None:
    file = tmp_path / "ckpt.pt"
    file.write_bytes(bytes(20_000_000))
    os.utime(file, ns=(0, 0))

    def meddle(done: int, total: int) -> None:
        match change:
            case "grow":
                file.write_bytes(bytes(20_000_001))
            case "cut":
                os.truncate(file, 10)
            case "overwrite":
                with file.open("r+b") as handle:
                    handle.write(b"x")
            case _:
                file.unlink(missing_ok=True)

    with pytest.raises(SourceChanged, match=r"ckpt\.pt"):
        send(store, file, on_progress=meddle)


def test_saves_of_one_step_do_not_overwrite_each_other(store: ObjectStore, tmp_path: Path) -> None:
    file = tmp_path / "ckpt.pt"
    file.write_bytes(b"one")
    (one,) = upload(store, "j", 1, 7, SaveKind.PERIODIC, file)
    file.write_bytes(b"two")
    (two,) = upload(store, "j", 1, 7, SaveKind.PERIODIC, file)
    assert (store.get(one.key), store.get(two.key)) == (b"one", b"two")


def test_a_repeated_upload_writes_the_same_keys(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    both = [
        upload(store, "j", 1, 7, SaveKind.PERIODIC, tmp_path / "f", upload_id="0001-77")
        for _ in range(2)
    ]
    assert both[0] == both[1]
    assert len(list(store.scan(""))) == 1
