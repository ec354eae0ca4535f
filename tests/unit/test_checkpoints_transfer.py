"""Outputs and data sets: whole trees without a chain."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from spothop.checkpoints import download_outputs, fetch_tree, transfer, upload_outputs
from spothop.storage import (
    FolderStore,
    ObjectMissing,
    ObjectStore,
    RemoteStore,
    SourceUnreadable,
    StorageDenied,
    StorageUnavailable,
    UnsafePath,
)
from spothop.storage.base import Fetched
from spothop.storage.folder import TEMPORARY
from spothop.wire import StorageSpec


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def make(folder: Path, files: dict[str, bytes]) -> Path:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "memory":
        return RemoteStore(MemoryStore(), "memory")
    (tmp_path / "store").mkdir()
    return FolderStore(tmp_path / "store")


FILES = {"model.pt": b"w" * 3_000_000, "plots/loss #1 (%).png": b"p", "empty": b""}


def test_outputs_go_and_come_back(store: ObjectStore, tmp_path: Path) -> None:
    source = make(tmp_path / "outputs", FILES)
    assert upload_outputs(store, "j", 1, source) == sorted(FILES)
    seen: list[tuple[int, int]] = []
    back = download_outputs(
        store, "j", tmp_path / "back", on_progress=lambda *figures: seen.append(figures)
    )
    assert back == sorted(FILES)
    assert tree(tmp_path / "back") == FILES
    assert seen[-1] == (3_000_001, 3_000_001)


def test_outputs_of_the_newest_attempt_win_whenever_they_came(
    store: ObjectStore, tmp_path: Path
) -> None:
    """An attempt that was fenced out may wake up after its successor has ended (I2)."""
    new = {"x": b"new", "d/f": b"in a folder", "g": b"a file"}
    upload_outputs(store, "j", 10, make(tmp_path / "b", new))
    old = {"x": b"old", "y": b"kept", "d": b"was a file", "g/h": b"was in a folder"}
    upload_outputs(store, "j", 9, make(tmp_path / "a", old))
    download_outputs(store, "j", tmp_path / "back")
    assert tree(tmp_path / "back") == {**new, "y": b"kept"}


def test_outputs_are_fetched_again_even_with_the_same_size(
    store: ObjectStore, tmp_path: Path
) -> None:
    upload_outputs(store, "j", 1, make(tmp_path / "a", {"x": b"true"}))
    make(tmp_path / "back", {"x": b"fake"})
    download_outputs(store, "j", tmp_path / "back")
    assert tree(tmp_path / "back") == {"x": b"true"}


def test_no_outputs_are_no_error(store: ObjectStore, tmp_path: Path) -> None:
    assert upload_outputs(store, "j", 1, tmp_path / "none") == []
    assert download_outputs(store, "j", tmp_path / "back") == []


def test_outputs_do_not_follow_links_out(store: ObjectStore, tmp_path: Path) -> None:
    outputs = make(tmp_path / "outputs", {"good": b"1", "sub/good": b"2"})
    (outputs / "etc").symlink_to("/etc")
    (outputs / "sub" / "dangling").symlink_to("nowhere")
    with pytest.raises(UnsafePath):
        upload_outputs(store, "j", 1, outputs)
    skipped: list[str] = []
    assert upload_outputs(store, "j", 1, outputs, skipped=skipped.append) == ["good", "sub/good"]
    assert [text for text in skipped if "etc" in text] != []
    assert [text for text in skipped if "dangling" in text] != []


def test_a_tree_of_files_with_any_names(tmp_path: Path) -> None:
    files = {**FILES, "~41": b"not decoded", "part#1": b"kept"}
    source = make(tmp_path / "data set", files)
    spec = StorageSpec(url=source.as_uri())
    assert fetch_tree(spec, tmp_path / "target") == sorted(files)
    assert tree(tmp_path / "target") == files


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    spec = StorageSpec(url=make(tmp_path / "data", {"a": b"new", "b": b"longer"}).as_uri())
    target = make(tmp_path / "target", {"a": b"old", "b": b"cut"})
    fetch_tree(spec, target)
    assert tree(target) == {"a": b"old", "b": b"longer"}


def test_one_object(tmp_path: Path) -> None:
    make(tmp_path / "data", {"init.pt": b"weights", "other": b"no"})
    spec = StorageSpec(url=(tmp_path / "data" / "init.pt").as_uri())
    assert fetch_tree(spec, tmp_path / "target") == ["init.pt"]
    assert tree(tmp_path / "target") == {"init.pt": b"weights"}


@pytest.mark.parametrize("name", ["nowhere", "nowhere/deep", "empty"])
def test_nothing_at_the_url_is_said(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ObjectMissing, match=name):
        fetch_tree(StorageSpec(url=(tmp_path / name).as_uri()), tmp_path / "target")
    assert not (tmp_path / "nowhere").exists()


def test_why_a_url_cannot_be_looked_at_is_said_before_that_it_is_no_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [StorageDenied("the bucket is denied"), ObjectMissing("no such object")]

    def opened(spec: StorageSpec, *, create: bool) -> ObjectStore:
        assert create is False
        raise errors.pop(0)

    monkeypatch.setattr(transfer, "open_store", opened)
    with pytest.raises(ObjectMissing, match="the bucket is denied"):
        fetch_tree(StorageSpec(url="s3://bucket/data"), tmp_path / "target")


@pytest.mark.parametrize("at", [1, 2])
def test_a_store_that_does_not_answer_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    opened = 0

    def away(spec: StorageSpec, *, create: bool) -> ObjectStore:
        nonlocal opened
        opened += 1
        if opened == at:
            raise StorageUnavailable("503")
        raise ObjectMissing("nothing there")

    monkeypatch.setattr(transfer, "open_store", away)
    with pytest.raises(StorageUnavailable):
        fetch_tree(StorageSpec(url="s3://bucket/data"), tmp_path / "target")


def test_what_a_killed_call_left_is_replaced(tmp_path: Path) -> None:
    spec = StorageSpec(url=make(tmp_path / "data", {"a": b"whole"}).as_uri())
    target = make(tmp_path / "target", {TEMPORARY + "a": b"cut"})
    fetch_tree(spec, target)
    assert tree(target) == {"a": b"whole"}


def test_a_file_that_arrives_cut_short_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(store: FolderStore, key: str, target: Path, **more: object) -> Fetched:
        target.write_bytes(b"wh")
        return Fetched("", 2)

    spec = StorageSpec(url=make(tmp_path / "data", {"a": b"whole"}).as_uri())
    monkeypatch.setattr(FolderStore, "fetch", cut)
    with pytest.raises(ObjectMissing, match="cut short"):
        fetch_tree(spec, tmp_path / "target")
    assert tree(tmp_path / "target") == {}


def test_an_upload_of_outputs_says_how_far_it_is(store: ObjectStore, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    source = make(tmp_path / "outputs", FILES)
    upload_outputs(store, "j", 1, source, on_progress=lambda *figures: seen.append(figures))
    assert seen[-1] == (3_000_001, 3_000_001)


def test_what_is_no_output_is_left_alone(store: ObjectStore, tmp_path: Path) -> None:
    for key in ("notes/readme", "7", "1x/a", "2/a"):
        store.create(f"jobs/j/outputs/{key}", b"data")
    assert download_outputs(store, "j", tmp_path / "back") == ["a"]


def test_a_data_set_may_be_deep_and_have_long_names(tmp_path: Path) -> None:
    files = {"a/b/c/d": b"1", "x" * 250: b"22"}
    spec = StorageSpec(url=make(tmp_path / "data", files).as_uri())
    seen: list[tuple[int, int]] = []
    target = tmp_path / "not" / "there" / "yet"
    fetch_tree(spec, target, on_progress=lambda *figures: seen.append(figures))
    assert tree(target) == files
    assert seen[-1] == (3, 3)


def test_what_is_there_counts_as_done(tmp_path: Path) -> None:
    spec = StorageSpec(url=make(tmp_path / "data", {"a": b"new", "b": b"12345"}).as_uri())
    seen: list[tuple[int, int]] = []
    fetch_tree(
        spec, make(tmp_path / "target", {"a": b"old"}), on_progress=lambda *f: seen.append(f)
    )
    assert seen[-1] == (8, 8)


def test_one_object_with_a_slash_behind_it(tmp_path: Path) -> None:
    make(tmp_path / "data", {"init.pt": b"weights"})
    spec = StorageSpec(url=(tmp_path / "data" / "init.pt").as_uri() + "/")
    assert fetch_tree(spec, tmp_path / "target") == ["init.pt"]


def test_outputs_that_cannot_be_looked_at_are_not_taken_for_none(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = make(tmp_path / "a", {"x": b"true"})
    real = os.stat

    def broken(path: Any, **how: Any) -> os.stat_result:
        if path == outputs:
            raise OSError(errno.EIO, "Input/output error")
        return real(path, **how)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", broken)
        patched.setattr(Path, "is_dir", lambda path: False)
        with pytest.raises(SourceUnreadable):
            upload_outputs(store, "j", 1, outputs)
    assert upload_outputs(store, "j", 1, outputs) == ["x"]
