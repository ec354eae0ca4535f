"""What every `ObjectStore` promises. To run it over a bucket, add its URL to `OPENERS`, or its
server to `SERVERS`."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from fakes.gcs_server import GcsServer
from fakes.s3_server import S3Server
from spothop.storage import (
    Fetched,
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    SourceChanged,
    StorageBadUrl,
    open_store,
    probe,
)
from spothop.wire import StorageSpec
from support import azurite
from support.azurite import Container, ContainerByToken

OPENERS: dict[str, Callable[[Path], ObjectStore]] = {
    "memory": lambda _: open_store(StorageSpec(url="memory:///")),
    "file": lambda folder: open_store(StorageSpec(url=(folder / "a store").as_uri())),
}
SERVERS: dict[str, Callable[[], S3Server | Container]] = {
    "gcs": GcsServer,
    "azure": Container,
    "azure-token": ContainerByToken,
}
LARGE = 40_000_000  # three parts, the last one short


@pytest.fixture(params=sorted([*OPENERS, *SERVERS]))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    made = SERVERS.get(request.param)
    if request.param.startswith("azure"):
        azurite.need()
    with nullcontext() if made is None else made() as server:
        yield OPENERS[request.param](tmp_path) if server is None else open_store(server.spec())


def ignore(count: int) -> None:
    """No progress wanted."""


def keys(store: ObjectStore, prefix: str, after: str | None = None) -> list[str]:
    return sorted(info.key for info in store.scan(prefix, after=after))


def test_probe_passes_and_leaves_nothing(store: ObjectStore) -> None:
    probe(store)
    assert keys(store, "") == []


def test_create_writes_once(store: ObjectStore) -> None:
    store.create("a/b", b"first")
    with pytest.raises(ObjectExists):
        store.create("a/b", b"second")
    assert store.get("a/b") == b"first"


def test_of_many_creators_one_wins(store: ObjectStore) -> None:
    won: list[int] = []
    barrier = threading.Barrier(8)

    def create(number: int) -> None:
        barrier.wait()
        try:
            store.create("race", str(number).encode())
        except ObjectExists:
            return
        won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.get("race") == str(won[0]).encode()


def test_put_replaces(store: ObjectStore) -> None:
    store.put("k", b"long first")
    store.put("k", b"x")
    assert store.get("k") == b"x"
    assert store.size("k") == 1


def test_the_tag_of_an_object_changes_with_its_content(store: ObjectStore) -> None:
    store.put("d/k", b"one")
    (listed,) = store.scan("d")
    assert (listed.key, listed.size, listed.etag) == ("d/k", 3, store.info("d/k").etag)
    assert listed.etag
    store.put("d/k", b"two")
    assert store.info("d/k").etag != listed.etag


def test_missing_objects_are_missing(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(ObjectMissing):
        store.get("none")
    with pytest.raises(ObjectMissing):
        store.size("none")
    with pytest.raises(ObjectMissing):
        store.info("none")
    with pytest.raises(ObjectMissing):
        store.fetch("none", tmp_path / "f", size=1, on_bytes=ignore)


@pytest.mark.parametrize("size", [0, 1, 3_000_000, LARGE])
def test_send_and_fetch(store: ObjectStore, tmp_path: Path, size: int) -> None:
    data = hashlib.sha256(b"seed").digest() * (size // 32 + 1)
    (tmp_path / "in").write_bytes(data[:size])
    seen: list[int] = []
    expected = hashlib.sha256(data[:size]).hexdigest()
    assert store.send("d/f", tmp_path / "in", size=size, on_bytes=seen.append) == expected
    assert sum(seen) == size == store.size("d/f")
    seen.clear()
    fetched = store.fetch("d/f", tmp_path / "out", size=size, on_bytes=seen.append)
    assert fetched == Fetched(expected, size)
    assert sum(seen) == size
    assert (tmp_path / "out").read_bytes() == data[:size]


def test_send_takes_no_more_than_announced(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    assert store.send("k", tmp_path / "f", size=4, on_bytes=ignore) == (
        hashlib.sha256(b"0123").hexdigest()
    )
    assert store.get("k") == b"0123"


def test_a_source_that_is_gone_is_not_the_stores_fault(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(SourceChanged, match="nowhere"):
        store.send("k", tmp_path / "nowhere", size=4, on_bytes=ignore)
    assert keys(store, "") == []


def test_a_callback_that_raises_leaves_no_object(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(LARGE))

    def stop(count: int) -> None:
        raise KeyError("stop")

    with pytest.raises(KeyError):
        store.send("d/k", tmp_path / "f", size=LARGE, on_bytes=stop)
    assert keys(store, "") == []


def test_fetch_does_not_write_over_a_file(store: ObjectStore, tmp_path: Path) -> None:
    store.put("k", b"new")
    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        store.fetch("k", tmp_path / "f", size=3, on_bytes=ignore)
    assert (tmp_path / "f").read_bytes() == b"old"


def test_scan_is_by_folder_and_offset(store: ObjectStore) -> None:
    for key in ("c/1", "c/2", "c/3", "c/deep/4", "cc/5"):
        store.put(key, b"x")
    assert keys(store, "c") == ["c/1", "c/2", "c/3", "c/deep/4"]
    assert keys(store, "c", after="c/1") == ["c/2", "c/3", "c/deep/4"]
    assert keys(store, "") == ["c/1", "c/2", "c/3", "c/deep/4", "cc/5"]
    assert keys(store, "none") == []
    assert {info.size for info in store.scan("c")} == {1}


def test_folders(store: ObjectStore) -> None:
    for key in ("d/b/1", "d/a/2", "d/file"):
        store.put(key, b"x")
    assert store.folders("d") == ["a", "b"]
    assert store.folders("none") == []


def test_delete_does_not_mind_missing_ones(store: ObjectStore) -> None:
    for number in range(5):
        store.put(f"d/{number}", b"x")
    store.delete(["d/none", "d/0", "d/nor", "d/1", "d/2"])
    assert keys(store, "d") == ["d/3", "d/4"]
    store.delete([])


@pytest.mark.parametrize("key", ["../up", "a/../../up", "a/./b"])
def test_keys_with_dots_are_refused(store: ObjectStore, key: str) -> None:
    with pytest.raises(StorageBadUrl):
        store.put(key, b"x")
