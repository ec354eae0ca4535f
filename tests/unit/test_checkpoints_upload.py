"""Uploads: what is walked, what is refused, and files that change meanwhile."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from spothop.checkpoints import Entry, FileRecord, restore, upload
from spothop.checkpoints.upload import EMPTY_SHA256
from spothop.storage import (
    FolderStore,
    NothingRestores,
    ObjectStore,
    RemoteStore,
    SourceChanged,
    SourceUnreadable,
    UnsafePath,
)
from spothop.wire import SaveKind


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "memory":
        return RemoteStore(MemoryStore(), "memory")
    (tmp_path / "store").mkdir()
    return FolderStore(tmp_path / "store")


def recorded(store: ObjectStore, source: Path, **more: object) -> list[FileRecord]:
    return upload(store, "j", 1, 7, SaveKind.PERIODIC, source, **more)  # type: ignore[arg-type]


def send(store: ObjectStore, source: Path, **more: object) -> dict[str, str]:
    """Path -> SHA-256 of what arrived."""
    records = recorded(store, source, **more)
    for record in records:
        if record.key:
            parts = [store.get(key) for key, _ in record.objects()]
            assert hashlib.sha256(b"".join(parts)).hexdigest() == record.sha256
            assert [len(part) for part in parts] == [size for _, size in record.objects()]
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


def test_links_inside_stay_links_and_are_restored_as_such(
    store: ObjectStore, tmp_path: Path
) -> None:
    source = tmp_path / "save"
    (source / "step-1").mkdir(parents=True)
    (source / "step-1" / "w").write_bytes(b"1")
    (source / "latest").symlink_to("step-1")
    (source / "step-1" / "up").symlink_to("../step-1/w")
    (source / "self").symlink_to(".")
    records = recorded(store, source)
    assert {record.path: record.link for record in records} == {
        "latest": "step-1",
        "self": ".",
        "step-1/up": "w",
        "step-1/w": "",
    }
    entry = Entry(n=1, attempt=1, id="1", step=1, files=tuple(records), root="c", is_dir=True)
    restored = restore(store, [Entry.from_json(entry.to_json())], tmp_path / "job")
    assert restored.rejected == []
    assert (tmp_path / "job/c/latest").readlink() == Path("step-1")
    assert (tmp_path / "job/c/latest/up").read_bytes() == b"1"


@pytest.mark.parametrize("link", ["/etc/passwd", "../out", "a/../../out", "x\0y"])
def test_a_recorded_link_that_leads_out_is_damage(
    store: ObjectStore, tmp_path: Path, link: str
) -> None:
    (tmp_path / "save").mkdir()
    (tmp_path / "save" / "w").write_bytes(b"1")
    files = (*recorded(store, tmp_path / "save"), FileRecord("bad", 0, EMPTY_SHA256, "", link))
    entry = Entry(n=1, attempt=1, id="1", step=1, files=files, root="c", is_dir=True)
    with pytest.raises(NothingRestores, match="leads out of the checkpoint"):
        restore(store, [entry], tmp_path / "job")


@pytest.mark.parametrize("target", ["/etc", "/etc/hostname", "..", "nowhere", "loop"])
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


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ENOMEM, errno.ESTALE])
@pytest.mark.parametrize("call", ["stat", "open", "listdir"])
def test_what_cannot_be_read_now_has_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """A payload that "changed" is deleted, and it is the only copy."""
    source = tmp_path / "ckpt"
    source.mkdir()
    (source / "weights").write_bytes(b"weights")
    store = FolderStore(tmp_path)

    def fail(path: object, *args: object, **kwargs: object) -> object:
        if not isinstance(path, int) and os.fspath(path).startswith(str(source)):  # type: ignore[call-overload]
            raise OSError(number, os.strerror(number))
        return real(path, *args, **kwargs)

    real = getattr(os, call)
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(SourceUnreadable, match="cannot be read"):
        upload(store, "j", 1, 1, SaveKind.PERIODIC, source)
