"""Outputs and data sets: whole trees without a chain."""

from __future__ import annotations

from pathlib import Path

import pytest
from obstore.store import MemoryStore

from spothop.checkpoints import download_outputs, fetch_tree, upload_outputs
from spothop.storage import FolderStore, ObjectMissing, ObjectStore, RemoteStore, UnsafePath
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
    assert upload_outputs(store, "j", source) == sorted(FILES)
    seen: list[tuple[int, int]] = []
    back = download_outputs(
        store, "j", tmp_path / "back", on_progress=lambda *figures: seen.append(figures)
    )
    assert back == sorted(FILES)
    assert tree(tmp_path / "back") == FILES
    assert seen[-1] == (3_000_001, 3_000_001)


def test_outputs_are_replaced_and_added(store: ObjectStore, tmp_path: Path) -> None:
    upload_outputs(store, "j", make(tmp_path / "a", {"x": b"old", "y": b"kept"}))
    upload_outputs(store, "j", make(tmp_path / "b", {"x": b"new"}))
    download_outputs(store, "j", tmp_path / "back")
    assert tree(tmp_path / "back") == {"x": b"new", "y": b"kept"}


def test_no_outputs_are_no_error(store: ObjectStore, tmp_path: Path) -> None:
    assert upload_outputs(store, "j", tmp_path / "none") == []
    assert download_outputs(store, "j", tmp_path / "back") == []


def test_outputs_do_not_follow_links_out(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "etc").symlink_to("/etc")
    with pytest.raises(UnsafePath):
        upload_outputs(store, "j", tmp_path / "outputs")


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
