"""Restore: the newest intact checkpoint, and a message for each one that is not (I1)."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from spothop.checkpoints import Chain, Entry, FileRecord, prune, restore, restore_from_job, upload
from spothop.checkpoints import keys as layout
from spothop.storage import (
    Fetched,
    FolderStore,
    NothingRestores,
    ObjectStore,
    RemoteStore,
    StorageBadUrl,
    StorageDenied,
    StorageError,
    StorageUnavailable,
)
from spothop.wire import SaveKind, StorageSpec

JOB = "j1"


@pytest.fixture(params=["memory", "file"])
def chain(request: pytest.FixtureRequest, tmp_path: Path) -> Chain:
    store: ObjectStore = RemoteStore(MemoryStore(), "memory")
    if request.param == "file":
        (tmp_path / "store").mkdir()
        store = FolderStore(tmp_path / "store")
    chain = Chain(store, JOB)
    chain.fence(1)
    return chain


def save(
    chain: Chain, folder: Path, step: int, *, root: str = "out/ckpt", attempt: int = 1
) -> Entry:
    """A directory with the step in two files, committed."""
    source = folder / f"source-{step}"
    (source / "deep" / "empty").mkdir(parents=True)
    (source / "w.bin").write_bytes(f"weights {step}".encode())
    (source / "deep" / "o.bin").write_bytes(f"optimizer {step}".encode() * 1000)
    kind = SaveKind.INSURANCE
    files = upload(chain.store, JOB, attempt, step, kind, source)
    return chain.commit(attempt, step=step, kind=kind, files=files, root=root, is_dir=True, meta={})


def weights(target: Path) -> str:
    assert (target / "out/ckpt/deep/empty").is_dir()
    step = (target / "out/ckpt/w.bin").read_text()
    optimizer = (target / "out/ckpt/deep/o.bin").read_text()
    assert optimizer == step.replace("weights", "optimizer") * 1000
    return step


def replace_data(chain: Chain, record: FileRecord, data: bytes | None) -> None:
    if data is None:
        chain.store.delete([record.key])
    else:
        chain.store.put(record.key, data)


def test_nothing_to_restore(chain: Chain, tmp_path: Path) -> None:
    restored = restore(chain.store, chain.entries(), tmp_path / "job")
    assert (restored.entry, restored.path, restored.rejected, restored.step) == (None, None, [], 0)


def test_the_newest_comes_back_to_its_place(chain: Chain, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(chain, tmp_path, step)
    seen: list[tuple[int, int]] = []
    restored = restore(
        chain.store,
        chain.newest_first(),
        tmp_path / "job",
        on_progress=lambda *figures: seen.append(figures),
    )
    assert restored.step == 3
    assert restored.rejected == []
    assert restored.path == tmp_path / "job" / "out" / "ckpt"
    assert weights(tmp_path / "job") == "weights 3"
    assert seen[-1][0] == seen[-1][1] > 0
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == ["out"]


def test_a_single_file(chain: Chain, tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(os.urandom(20_000_000))
    files = upload(chain.store, JOB, 1, 5, SaveKind.PERIODIC, tmp_path / "x.pt")
    chain.commit(
        1, step=5, kind=SaveKind.PERIODIC, files=files, root="a/y.pt", is_dir=False, meta={}
    )
    restored = restore(chain.store, chain.entries(), tmp_path / "job")
    assert restored.path == tmp_path / "job/a/y.pt"
    assert restored.path.read_bytes() == (tmp_path / "x.pt").read_bytes()


def test_what_lies_there_is_replaced(chain: Chain, tmp_path: Path) -> None:
    save(chain, tmp_path, 1)
    (tmp_path / "job/out/ckpt/stale").mkdir(parents=True)
    restore(chain.store, chain.entries(), tmp_path / "job")
    assert weights(tmp_path / "job") == "weights 1"
    assert not (tmp_path / "job/out/ckpt/stale").exists()


def test_only_entries_before_the_fence_count(chain: Chain, tmp_path: Path) -> None:
    save(chain, tmp_path, 1)
    fence = chain.fence(2)
    save(chain, tmp_path, 9, attempt=2)
    restored = restore(chain.store, chain.newest_first(before=fence.n), tmp_path / "job")
    assert restored.step == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "'w.bin' is missing"),
        (b"", "'w.bin' has 0 bytes instead of 9"),
        (b"weight", "'w.bin' has 6 bytes instead of 9"),
        (b"weights 3 and more", "'w.bin' has 18 bytes instead of 9"),
        (b"weights X", "does not match its SHA-256"),
    ],
)
def test_a_damaged_checkpoint_falls_back(
    chain: Chain, tmp_path: Path, data: bytes | None, message: str
) -> None:
    save(chain, tmp_path, 2)
    broken = save(chain, tmp_path, 3)
    replace_data(chain, broken.files[-1], data)
    restored = restore(chain.store, chain.entries(), tmp_path / "job")
    assert restored.step == 2
    assert weights(tmp_path / "job") == "weights 2"
    assert len(restored.rejected) == 1
    assert message in restored.rejected[0]
    assert "checkpoint 3 (step 3, insurance, attempt 1)" in restored.rejected[0]
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == ["out"]


def test_an_unreadable_entry_falls_back(chain: Chain, tmp_path: Path) -> None:
    save(chain, tmp_path, 1)
    broken = save(chain, tmp_path, 2)
    chain.store.put(layout.chain_key(JOB, broken.n), b"\0" * 64)
    restored = restore(chain.store, Chain(chain.store, JOB).newest_first(), tmp_path / "job")
    assert restored.step == 1
    assert "chain entry 3 is unreadable" in restored.rejected[0]


def test_nothing_intact_leaves_the_directory_alone(chain: Chain, tmp_path: Path) -> None:
    for step in (1, 2):
        replace_data(chain, save(chain, tmp_path, step).files[-1], b"?")
    (tmp_path / "job/out/ckpt").mkdir(parents=True)
    with pytest.raises(NothingRestores, match=r"none of the 2 newest .* is whole") as caught:
        restore(chain.store, chain.entries(), tmp_path / "job")
    assert "submit a new job" in caught.value.hint
    assert [path.name for path in (tmp_path / "job/out").iterdir()] == ["ckpt"]
    assert [path.name for path in (tmp_path / "job").iterdir()] == ["out"]


def test_pruned_ones_are_passed_over_silently(chain: Chain, tmp_path: Path) -> None:
    for step in range(1, 6):
        save(chain, tmp_path, step)
    assert [entry.step for entry in prune(chain.store, JOB, 0)] == [1, 2, 3]
    for entry in chain.entries()[-2:]:
        assert isinstance(entry, Entry)
        replace_data(chain, entry.files[-1], b"?")
    with pytest.raises(NothingRestores) as caught:
        restore(chain.store, chain.entries(), tmp_path / "job")
    assert re.findall(r"\((step \d)", caught.value.message) == ["step 5", "step 4"]


def lose(chain: Chain, entry: Entry) -> None:
    chain.store.delete([record.key for record in entry.files if not record.is_folder])


def steps(rejected: list[str]) -> list[str]:
    return re.findall(r"\(step (\d)", " ".join(rejected))


def test_only_data_older_than_the_newest_two_may_be_gone_silently(
    chain: Chain, tmp_path: Path
) -> None:
    saves = [save(chain, tmp_path, step) for step in (1, 2, 3, 4)]
    for entry in saves[1:]:
        lose(chain, entry)
    restored = restore(chain.store, chain.entries(), tmp_path / "job")
    assert (restored.step, steps(restored.rejected)) == (1, ["4", "3"])


def test_what_a_later_attempt_gave_up_may_be_gone_silently(chain: Chain, tmp_path: Path) -> None:
    first, given_up = (save(chain, tmp_path, step) for step in (1, 2))
    chain.fence(2)
    files = upload(chain.store, JOB, 2, 3, SaveKind.PERIODIC, tmp_path / "source-1")
    newest = chain.commit(
        2, step=3, kind=SaveKind.PERIODIC, files=files, root="c", is_dir=True, meta={},
        parent=first.n,
    )  # fmt: skip
    lose(chain, given_up)
    lose(chain, newest)
    restored = restore(chain.store, chain.entries(), tmp_path / "job")
    assert (restored.step, steps(restored.rejected)) == (1, ["3"])


def test_wrong_data_is_never_passed_over_silently(chain: Chain, tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        entry = save(chain, tmp_path, step)
        if step > 1:
            replace_data(chain, entry.files[-1], b"?")
    restored = restore(chain.store, chain.entries(), tmp_path / "job")
    assert (restored.step, steps(restored.rejected)) == (1, ["4", "3", "2"])


def test_what_is_missing_is_not_asked_for_twice(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "one"
    source.write_bytes(b"1")
    files = upload(chain.store, JOB, 1, 1, SaveKind.PERIODIC, source)
    chain.commit(1, step=1, kind=SaveKind.PERIODIC, files=files, root="one", is_dir=False, meta={})
    replace_data(chain, files[0], None)
    fetch, asked = type(chain.store).fetch, []

    def counted(store: ObjectStore, key: str, *arguments: object, **more: object) -> Fetched:
        asked.append(key)
        return fetch(store, key, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(type(chain.store), "fetch", counted)
    with pytest.raises(NothingRestores):
        restore(chain.store, chain.entries(), tmp_path / "job")
    assert asked == [files[0].key]


def test_every_name_that_was_restored_is_durable(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(chain, tmp_path, 1)
    synced: list[Path] = []
    module = importlib.import_module("spothop.checkpoints.restore")  # hidden by its function
    monkeypatch.setattr(module, "sync_folder", synced.append)
    restore(chain.store, chain.entries(), tmp_path / "job")
    fresh, place = synced[0], tmp_path / "job" / "out"
    assert {path.relative_to(fresh).as_posix() for path in synced[:-1]} == {
        ".", "deep", "deep/empty",
    }  # fmt: skip
    assert synced[-1] == place  # after the rename


def test_one_bad_read_is_read_again(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(chain, tmp_path, 1)
    save(chain, tmp_path, 2)
    fetch, reads = type(chain.store).fetch, itertools.count(1)

    def torn_once(*arguments: object, **more: object) -> Fetched:
        read = next(reads)  # files are read side by side: each read knows its own number
        fetched: Fetched = fetch(*arguments, **more)  # type: ignore[arg-type]
        return Fetched("0" * 64, fetched.size) if read == 1 else fetched

    monkeypatch.setattr(type(chain.store), "fetch", torn_once)
    restored = restore(chain.store, chain.entries(), tmp_path / "job")
    assert (restored.step, restored.rejected) == (2, [])


@pytest.mark.parametrize("error", [StorageDenied("403"), StorageBadUrl("400")])
def test_a_refusal_of_the_store_is_no_damage(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: StorageError
) -> None:
    save(chain, tmp_path, 1)
    save(chain, tmp_path, 2)

    def refuse(*arguments: object, **more: object) -> str:
        raise error

    monkeypatch.setattr(type(chain.store), "fetch", refuse)
    with pytest.raises(type(error)):
        restore(chain.store, chain.entries(), tmp_path / "job")


def test_a_store_that_does_not_answer_costs_no_steps(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(chain, tmp_path, 1)
    save(chain, tmp_path, 2)

    def fail(*arguments: object, **more: object) -> str:
        raise StorageUnavailable("503")

    monkeypatch.setattr(type(chain.store), "fetch", fail)
    with pytest.raises(StorageUnavailable):
        restore(chain.store, chain.newest_first(), tmp_path / "job")


@pytest.mark.parametrize("root", ["../out", "/etc/out", "", ".", "a/../../out", "link/out"])
def test_an_entry_never_leads_out_of_the_directory(chain: Chain, tmp_path: Path, root: str) -> None:
    save(chain, tmp_path, 1)
    (tmp_path / "job").mkdir()
    (tmp_path / "job/link").symlink_to(tmp_path)
    save(chain, tmp_path, 2, root=root)
    restored = restore(chain.store, chain.entries(), tmp_path / "job")
    assert restored.step == 1
    assert "leads out" in restored.rejected[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("path", ["../w", "/w", "deep/o.bin/w", "deep"])
def test_a_file_record_never_leads_out_or_collides(chain: Chain, tmp_path: Path, path: str) -> None:
    entry = save(chain, tmp_path, 1)
    bad = dataclasses.replace(entry.files[-1], path=path)
    bad_entry = dataclasses.replace(entry, n=9, files=(*entry.files, bad))
    restored = restore(chain.store, [entry, bad_entry], tmp_path / "job")
    assert restored.step == 1
    assert restored.entry == entry
    assert len(restored.rejected) == 1


@pytest.mark.parametrize("name", ["..", ".", "../../w", "w\0"])
def test_nor_does_one_in_a_folder_that_is_known_already(
    chain: Chain, tmp_path: Path, name: str
) -> None:
    """Only the first file of a folder is looked at part by part."""
    entry = save(chain, tmp_path, 1)
    [in_folder] = [record for record in entry.files if record.path == "deep/o.bin"]
    bad = dataclasses.replace(in_folder, path=f"deep/{name}")
    bad_entry = dataclasses.replace(entry, n=9, files=(in_folder, bad))
    restored = restore(chain.store, [entry, bad_entry], tmp_path / "job")
    assert (restored.entry, len(restored.rejected)) == (entry, 1)


def test_an_impossible_key_is_damage(chain: Chain, tmp_path: Path) -> None:
    entry = save(chain, tmp_path, 1)
    bad = dataclasses.replace(entry.files[-1], key="../../etc/passwd")
    with pytest.raises(NothingRestores, match="impossible key"):
        restore(chain.store, [dataclasses.replace(entry, files=(bad,))], tmp_path / "job")


def test_a_killed_restore_is_cleared_by_the_next(chain: Chain, tmp_path: Path) -> None:
    save(chain, tmp_path, 1)
    (tmp_path / "job/.spothop-restore-dead/new").mkdir(parents=True)
    restore(chain.store, chain.entries(), tmp_path / "job")
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == ["out"]


def test_entries_are_read_only_as_far_as_needed(chain: Chain, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(chain, tmp_path, step)
    asked: list[int] = []

    def newest_first() -> Iterator[object]:
        for entry in chain.newest_first():
            asked.append(entry.n)
            yield entry

    restore(chain.store, newest_first(), tmp_path / "job")  # type: ignore[arg-type]
    assert asked == [4]


def test_another_jobs_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    chain = Chain(FolderStore(tmp_path / "store"), JOB)
    chain.fence(1)
    save(chain, tmp_path, 4)
    spec = StorageSpec(url=(tmp_path / "store").as_uri())
    assert restore_from_job(spec, JOB, tmp_path / "new").step == 4
    assert restore_from_job(spec, "nobody", tmp_path / "new").entry is None


def test_a_job_that_prunes_while_it_is_read_is_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").mkdir()
    chain = Chain(FolderStore(tmp_path / "store"), JOB)
    chain.fence(1)
    save(chain, tmp_path, 1)
    fetch, trained_on = FolderStore.fetch, False

    def trains_on(store: FolderStore, *arguments: object, **more: object) -> Fetched:
        nonlocal trained_on
        if not trained_on:
            trained_on = True
            for step in (2, 3, 4):
                save(chain, tmp_path, step)
            prune(chain.store, JOB, 0, chain=chain)
        return fetch(store, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(FolderStore, "fetch", trains_on)
    spec = StorageSpec(url=(tmp_path / "store").as_uri())
    restored = restore_from_job(spec, JOB, tmp_path / "new")
    assert (restored.step, restored.rejected) == (4, [])


def test_another_jobs_storage_is_never_made(tmp_path: Path) -> None:
    """A wrong URL in `init_from` is an error, not an empty chain: the job would begin anew."""
    spec = StorageSpec(url=(tmp_path / "nowhere").as_uri())
    with pytest.raises(StorageBadUrl, match="nowhere"):
        restore_from_job(spec, JOB, tmp_path / "new")
    assert not (tmp_path / "nowhere").exists()


def test_a_link_that_leads_out_by_the_way_of_another_one_is_damage(
    chain: Chain, tmp_path: Path
) -> None:
    empty = "0" * 64
    links = (
        FileRecord("x/", 0, empty, ""),
        FileRecord("x/top", 0, empty, "", link=".."),
        FileRecord("out", 0, empty, "", link="x/top/../secret"),
    )
    entry = Entry(
        n=2, attempt=1, id="e", step=1, kind=SaveKind.PERIODIC, files=links, root="c", is_dir=True
    )
    with pytest.raises(NothingRestores, match="leads out of the checkpoint"):
        restore(chain.store, [entry], tmp_path / "job")
    assert not (tmp_path / "job" / "c").exists()


def test_a_chain_of_an_unreadable_fence_alone_has_lost_no_checkpoint(
    chain: Chain, tmp_path: Path
) -> None:
    fence = chain.newest_number()
    chain.store.put(layout.chain_key(JOB, fence), b"\0" * 64)
    restored = restore(chain.store, Chain(chain.store, JOB).newest_first(), tmp_path / "job")
    assert (restored.entry, restored.step) == (None, 0)
    assert "chain entry 1 is unreadable" in restored.rejected[0]


def test_an_unreadable_entry_above_a_fence_may_have_been_a_checkpoint(
    chain: Chain, tmp_path: Path
) -> None:
    chain.store.put(layout.chain_key(JOB, 2), b"\0" * 64)
    with pytest.raises(NothingRestores, match="chain entry 2 is unreadable"):
        restore(chain.store, Chain(chain.store, JOB).newest_first(), tmp_path / "job")


LINK = importlib.import_module("spothop.checkpoints.restore")._link  # `restore` is the function


@pytest.mark.parametrize(
    ("path", "leads_to"),
    [
        ("l", "x"),
        ("sub/l", "x"),
        ("sub/l", "../x"),
        ("a/b/l", "../../x"),
        ("l", "..x"),
        ("l", "sub/.."),
    ],
)
def test_a_link_that_stays_inside_is_made(tmp_path: Path, path: str, leads_to: str) -> None:
    place = tmp_path / "link"
    LINK(FileRecord(path, 0, "", "", leads_to), place)
    assert os.readlink(place) == leads_to


@pytest.mark.parametrize(
    ("path", "leads_to"),
    [
        ("l", ".."),
        ("l", "../x"),
        ("sub/l", "../../x"),
        ("l", "/etc"),
        ("sub/l", "x/../../.."),
        ("l", "a\0b"),
    ],
)
def test_a_link_that_leads_out_is_not_even_made(tmp_path: Path, path: str, leads_to: str) -> None:
    place = tmp_path / "link"
    with pytest.raises(Exception, match="leads out of the checkpoint"):
        LINK(FileRecord(path, 0, "", "", leads_to), place)
    assert not os.path.lexists(place)


def test_a_rejection_says_which_path_leads_out(chain: Chain, tmp_path: Path) -> None:
    entry = save(chain, tmp_path, 1)
    bad = dataclasses.replace(entry.files[-1], path="../out")
    bad_entry = dataclasses.replace(entry, n=9, files=(*entry.files, bad))
    (rejected,) = restore(chain.store, [entry, bad_entry], tmp_path / "job").rejected
    assert "the path '../out' leads out" in rejected


def test_a_restore_from_another_job_says_how_far_it_is(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    chain = Chain(FolderStore(tmp_path / "store"), JOB)
    chain.fence(1)
    size = save(chain, tmp_path, 4).size
    seen: list[tuple[int, int]] = []
    spec = StorageSpec(url=(tmp_path / "store").as_uri())
    restore_from_job(spec, JOB, tmp_path / "new", on_progress=lambda *f: seen.append(f))
    assert seen[-1] == (size, size)


def test_a_single_file_is_durable_when_it_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").mkdir()
    store = FolderStore(tmp_path / "store")
    (tmp_path / "c.pt").write_bytes(b"data")
    files = upload(store, JOB, 1, 1, SaveKind.PERIODIC, tmp_path / "c.pt")
    entry = Entry(n=2, attempt=1, id="i", step=1, files=tuple(files), root="c.pt")
    fetch, synced = FolderStore.fetch, []

    def noted(*arguments: object, **more: object) -> object:
        synced.append(more["sync"])
        return fetch(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(FolderStore, "fetch", noted)
    assert restore(store, [entry], tmp_path / "new").step == 1
    assert synced == [True]
