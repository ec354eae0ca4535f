"""Files in parts: what is remembered over failures and restarts, and the way back."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from spothop.checkpoints import Chain, Entry, FileRecord, Journal, prune, restore, upload
from spothop.checkpoints.upload import list_sources
from spothop.storage import (
    FolderStore,
    NothingRestores,
    ObjectStore,
    Piece,
    RemoteStore,
    SourceChanged,
    StorageUnavailable,
)
from spothop.storage.window import Window
from spothop.wire import SaveKind

PART = 1000


class Breaking(RemoteStore):
    """Takes `accepts` pieces, one after the other, and then no more."""

    def __init__(self) -> None:
        window = lambda: Window(1 << 30, at_once=1, most=1)  # noqa: E731
        super().__init__(MemoryStore(), "memory", part=PART, window=window)
        self.accepts = 1 << 30
        self.taken: list[str] = []

    async def _put_async(self, key: str, data: bytes) -> None:
        if self.accepts == 0:
            raise StorageUnavailable("no more")
        self.accepts -= 1
        self.taken.append(key)
        await super()._put_async(key, data)


def send(store: ObjectStore, source: Path, journal: Path | None = None) -> list[FileRecord]:
    return upload(
        store,
        "j",
        1,
        1,
        SaveKind.PERIODIC,
        source,
        upload_id="x",
        journal=Journal(journal),
    )


def names(store: Breaking) -> list[str]:
    return [key.removeprefix("jobs/j/data/1-1-periodic/x/") for key in store.taken]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A large file of 4 parts and two small ones."""
    folder = tmp_path / "save"
    folder.mkdir()
    (folder / "a").write_bytes(b"small")
    # no byte is zero: what a short part leaves out is read as zeros, and must differ
    (folder / "big").write_bytes(bytes(1 + i * 7 % 251 for i in range(3 * PART + 1)))
    (folder / "z").write_bytes(b"")
    return folder


def test_a_second_try_sends_what_is_missing_also_after_a_restart(
    source: Path, tmp_path: Path
) -> None:
    store = Breaking()
    store.accepts = 3
    with pytest.raises(StorageUnavailable):
        send(store, source, tmp_path / "journal")
    assert names(store) == ["a", "big/000000", "big/000001"]
    store.taken, store.accepts = [], 1 << 30
    records = send(store, source, tmp_path / "journal")  # read from the file: another process
    assert names(store) == ["big/000002", "big/000003", "z"]
    store.taken = []
    assert send(store, source, tmp_path / "journal") == records
    assert names(store) == []
    entry = Entry(n=1, attempt=1, id="i", step=1, files=tuple(records), root="r", is_dir=True)
    assert restore(store, [entry], tmp_path / "back").path == tmp_path / "back" / "r"
    for name in ("a", "big", "z"):
        assert (tmp_path / "back" / "r" / name).read_bytes() == (source / name).read_bytes()


def test_a_finished_file_is_not_even_read(source: Path, tmp_path: Path) -> None:
    store = Breaking()
    records = send(store, source, tmp_path / "journal")
    status = (source / "big").stat()
    with (source / "big").open("r+b") as file:  # as nothing but this test can: the time goes back
        file.write(b"?")
    os.utime(source / "big", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert send(store, source, tmp_path / "journal") == records


def test_a_payload_that_changed_since_is_noticed(source: Path, tmp_path: Path) -> None:
    store = Breaking()
    store.accepts = 2
    with pytest.raises(StorageUnavailable):
        send(store, source, tmp_path / "journal")
    status = (source / "big").stat()
    with (source / "big").open("r+b") as file:
        file.write(b"other")
    os.utime(source / "big", ns=(0, status.st_mtime_ns + 1))
    with pytest.raises(SourceChanged, match="big"):
        send(store, source, tmp_path / "journal")
    os.utime(source / "big", ns=(0, status.st_mtime_ns))  # the content tells it, too
    with pytest.raises(SourceChanged, match="big"):
        send(store, source, tmp_path / "journal")


def test_a_file_that_grew_since_it_was_listed_is_no_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What of it was sent must not pass for all of it at the next try, when the list is right."""
    file, store = tmp_path / "a", Breaking()
    file.write_bytes(b"0123456789")
    listed = list_sources(file)
    with file.open("ab") as writer:
        writer.write(b"and more")
    module = sys.modules[upload.__module__]
    monkeypatch.setattr(module, "list_sources", lambda *a, **k: listed)
    with pytest.raises(SourceChanged, match="changed during its upload"):
        send(store, file, tmp_path / "journal")
    assert store.taken == []
    monkeypatch.undo()
    [record] = send(store, file, tmp_path / "journal")
    assert record.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_file_known_from_the_journal_may_not_change_beside_the_others(
    source: Path, tmp_path: Path
) -> None:
    store = Breaking()
    store.accepts = 1
    with pytest.raises(StorageUnavailable):
        send(store, source, tmp_path / "journal")
    store.accepts = 1 << 30
    journal = Journal(tmp_path / "journal")

    def write() -> None:
        if len(store.taken) == 3:
            (source / "a").write_bytes(b"of another save")

    with pytest.raises(SourceChanged, match="changed during its upload"):
        upload(
            *(store, "j", 1, 1, SaveKind.PERIODIC, source),
            upload_id="x",
            journal=journal,
            still_wanted=write,
        )


@pytest.mark.parametrize("tail", [b'{"key": "jo', b"\xff\n", b"[]\n", b'{"key": 1}\n'])
def test_a_torn_journal_costs_a_transfer_and_nothing_else(
    source: Path, tmp_path: Path, tail: bytes
) -> None:
    store = Breaking()
    store.accepts = 2
    with pytest.raises(StorageUnavailable):
        send(store, source, tmp_path / "journal")
    with (tmp_path / "journal").open("ab") as file:
        file.write(tail)
    store.taken, store.accepts = [], 1
    with pytest.raises(StorageUnavailable):
        send(store, source, tmp_path / "journal")
    store.taken, store.accepts = [], 1 << 30
    send(store, source, tmp_path / "journal")
    assert names(store) == ["big/000002", "big/000003", "z"]


def test_a_journal_that_cannot_be_written_stops_no_upload(source: Path, tmp_path: Path) -> None:
    store = Breaking()
    assert len(send(store, source, tmp_path / "no such folder" / "journal")) == 3
    assert len(store.taken) == 6


def test_a_folder_remembers_whole_files(source: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store = FolderStore(tmp_path / "store")
    records = send(store, source, tmp_path / "journal")
    store.put(records[1].key, b"would be replaced")
    assert send(store, source, tmp_path / "journal") == records
    assert store.get(records[1].key) == b"would be replaced"
    assert {record.part for record in records} == {0}


def test_parts_in_a_folder_can_be_read(source: Path, tmp_path: Path) -> None:
    remote = Breaking()
    records = send(remote, source)
    (tmp_path / "copy").mkdir()
    folder = FolderStore(tmp_path / "copy")
    for info in remote.scan(""):
        folder.put(info.key, remote.get(info.key))
    entry = Entry(n=1, attempt=1, id="i", step=1, files=tuple(records), root="r", is_dir=True)
    restore(folder, [entry], tmp_path / "back")
    assert (tmp_path / "back" / "r" / "big").read_bytes() == (source / "big").read_bytes()


@pytest.mark.parametrize("damage", ["cut", "longer", "changed", "missing"])
def test_a_damaged_part_is_damage(source: Path, tmp_path: Path, damage: str) -> None:
    store = Breaking()
    records = send(store, source)
    entry = Entry(n=1, attempt=1, id="i", step=1, files=tuple(records), root="r", is_dir=True)
    (key, _), (other, _) = list(records[1].objects())[1:3]
    data = store.get(key)
    match damage:
        case "cut":
            store.put(key, data[:-1])
        case "longer":  # and another one shorter: the sum is right
            store.put(key, data + b"?")
            store.put(other, store.get(other)[:-1])
        case "changed":
            store.put(key, bytes(PART))
        case _:
            store.delete([key])
    with pytest.raises(NothingRestores, match="big"):
        restore(store, [entry], tmp_path / "back")


def test_entries_with_parts_are_of_the_second_format() -> None:
    plain = Entry(n=1, attempt=1, id="i", files=(FileRecord("f", 1, "0", "k"),))
    parts = Entry(n=1, attempt=1, id="i", files=(FileRecord("f", 9, "0", "k", part=5),))
    assert '"v": 1' in plain.to_json()
    assert '"v": 2' in parts.to_json()
    assert Entry.from_json(parts.to_json()) == parts
    assert list(parts.files[0].objects()) == [("k/000000", 5), ("k/000001", 4)]
    with pytest.raises(ValueError, match="part"):
        Entry.from_json(re.sub(r'"part": ?5', '"part": -5', parts.to_json()))


def test_pruning_deletes_parts_and_takes_a_missing_one_for_damage(tmp_path: Path) -> None:
    store = Breaking()
    chain = Chain(store, "j")
    chain.fence(1)
    for step in (1, 2, 3):
        (tmp_path / "f").write_bytes(os.urandom(2 * PART + step))
        files = upload(store, "j", 1, step, SaveKind.EMERGENCY, tmp_path / "f")
        chain.commit(
            1, step=step, kind=SaveKind.EMERGENCY, files=files, root="f", is_dir=False, meta={}
        )
    assert [entry.step for entry in prune(store, "j", 0)] == [1]
    left = [info.key for info in store.scan("jobs/j/data")]
    assert len(left) == 6
    store.delete([next(key for key in left if "/3-1" in key)])
    assert prune(store, "j", 0) == []  # fewer than two are whole


def test_pieces_carry_the_digest_of_all_before_them(source: Path) -> None:
    store = Breaking()
    seen: list[Piece] = []
    store.send_pieces = lambda pieces, **_: seen.extend(pieces)  # type: ignore[method-assign]
    records = send(store, source)
    assert seen[-2].sha256 == records[1].sha256
