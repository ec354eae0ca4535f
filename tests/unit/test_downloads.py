"""Where `spothop download` may write: nothing of the user's is ever replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from spothop.checkpoints import Chain, upload, upload_outputs
from spothop.sdk.downloads import fetch
from spothop.sdk.errors import ClientError
from spothop.storage import open_store
from spothop.wire import SaveKind, StorageSpec

JOB = "j-1"


@pytest.fixture
def storage(tmp_path: Path) -> StorageSpec:
    """With one checkpoint, the file `ckpt`, and one output."""
    spec = StorageSpec(url=(tmp_path / "storage").as_uri())
    store, source = open_store(spec), tmp_path / "ckpt"
    source.write_text("weights")
    chain = Chain(store, JOB)
    chain.fence(1)
    files = upload(store, JOB, 1, 7, SaveKind.PERIODIC, source)
    chain.commit(1, step=7, kind=SaveKind.PERIODIC, files=files, root="ckpt", is_dir=False, meta={})
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "result").write_text("42")
    upload_outputs(store, JOB, 1, tmp_path / "out")
    return spec


def test_data_in_another_storage_is_fetched_from_there(
    storage: StorageSpec, tmp_path: Path
) -> None:
    near = StorageSpec(url=(tmp_path / "near").as_uri())
    source = tmp_path / "newer"
    source.write_text("newer weights")
    kind, chain = SaveKind.PERIODIC, Chain(open_store(storage), JOB)
    files = upload(open_store(near), JOB, 1, 8, kind, source, url=near.url)
    chain.commit(1, step=8, kind=kind, files=files, root="ckpt", is_dir=False, meta={})
    found = fetch(storage, JOB, tmp_path / "to", others=[near])
    assert (found.step, [path.name for path in found.outputs]) == (8, ["result"])
    assert (tmp_path / "to" / "ckpt").read_text() == "newer weights"
    (tmp_path / "near").rename(tmp_path / "away")
    with pytest.raises(ClientError, match="near"):
        fetch(storage, JOB, tmp_path / "again", others=[near])


def test_a_second_download_replaces_the_first(storage: StorageSpec, tmp_path: Path) -> None:
    to = tmp_path / "to"
    fetch(storage, JOB, to)
    (to / "ckpt").write_text("changed")
    (to / "outputs" / "result").write_text("99")
    found = fetch(storage, JOB, to)
    assert (found.checkpoint, found.step) == (to / "ckpt", 7)
    assert (to / "ckpt").read_text() == "weights"
    assert (to / "outputs" / "result").read_text() == "42"


@pytest.mark.parametrize("name", ["ckpt/mine.txt", "outputs/result", "other"])
def test_a_directory_of_the_users_stays_as_it_is(
    storage: StorageSpec, tmp_path: Path, name: str
) -> None:
    mine = tmp_path / "to" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    with pytest.raises(ClientError, match="is not empty") as caught:
        fetch(storage, JOB, tmp_path / "to")
    assert "empty directory" in caught.value.hint
    assert [p for p in (tmp_path / "to").rglob("*") if p.is_file()] == [mine]
    assert mine.read_text() == "precious"


def test_the_download_of_another_job_stays_too(storage: StorageSpec, tmp_path: Path) -> None:
    fetch(storage, JOB, tmp_path / "to")
    with pytest.raises(ClientError, match="no earlier download of job 'j-2'"):
        fetch(storage, "j-2", tmp_path / "to")


def test_nothing_to_fetch_leaves_nothing(storage: StorageSpec, tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="neither an intact checkpoint nor outputs"):
        fetch(storage, "j-2", tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_a_file_is_no_directory(storage: StorageSpec, tmp_path: Path) -> None:
    (tmp_path / "to").write_text("precious")
    with pytest.raises(ClientError, match="cannot download into"):
        fetch(storage, JOB, tmp_path / "to")
    assert (tmp_path / "to").read_text() == "precious"


def test_a_storage_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    spec = StorageSpec(url=(tmp_path / "nowhere").as_uri())
    with pytest.raises(ClientError, match="nowhere"):
        fetch(spec, JOB, tmp_path / "to")
    assert not (tmp_path / "nowhere").exists()
