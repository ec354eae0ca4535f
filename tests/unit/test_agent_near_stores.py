"""Several stores: saves go to the nearest, the chain stays one, and any VM restores any save."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.agent_vm import JOB, assignment
from fakes.s3_server import FOR_EVER, Fault, S3Server
from spothop.checkpoints import Chain, FileRecord, Stores
from spothop.storage import (
    FolderStore,
    ObjectStore,
    SourceChanged,
    StorageDenied,
    StorageError,
    StorageUnavailable,
    open_store,
)
from spothop.wire import Assignment, InitFrom, PlacedStorage, StorageSpec
from spothop_agent.checkpoint_store import CheckpointStore
from spothop_agent.near_stores import NearStores, Send
from spothop_agent.outbox import Entry as Accepted
from spothop_agent.outbox import Meta

HERE, THERE = ("local", "east"), ("local", "west")
LARGE = 20_000_000
"""Bytes: three parts in a bucket."""


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with S3Server() as running:
        yield running


def ignore(done: int, total: int) -> None:
    """Of progress."""


def job(first: Path, *others: PlacedStorage, attempt: int = 1, at: tuple[str, str]) -> Assignment:
    """A VM at `at`; the folder `first` lies in the east and holds the chain."""
    main = PlacedStorage(storage=StorageSpec(url=first.as_uri()), cloud=HERE[0], region=HERE[1])
    where = {"cloud": at[0], "region": at[1]}
    return assignment(first, attempt=attempt, stores=[main, *others], **where)


def in_the_west(spec: StorageSpec) -> PlacedStorage:
    return PlacedStorage(storage=spec, cloud=THERE[0], region=THERE[1])


def accepted(root: Path, step: int, size: int = 10) -> Accepted:
    """A backup in the outbox."""
    made = root / f"{step:020d}-1"
    (made / "payload").mkdir(parents=True)
    (made / "payload" / "c").write_bytes(step.to_bytes(1, "big") * size)
    meta = {"v": 1, "id": made.name, "name": "c", "path": "c", "is_dir": False, "step": step}
    meta |= {"kind": "periodic", "request": None, "delta_s": 0.5, "mono": 1.0}
    (made / "meta.json").write_text(json.dumps(meta))
    return Accepted(made, Meta.model_validate(meta), size)


def data_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "/data/" in str(path)]


def test_a_vm_of_one_place_saves_near_it_and_one_of_another_goes_on_bit_for_bit(
    s3: S3Server, tmp_path: Path
) -> None:
    """The VM in the west commits to the bucket there; its replacement in the east restores that,
    from a chain that it has at hand, and saves at home."""
    main, bucket = tmp_path / "main", in_the_west(s3.spec())
    west = CheckpointStore(job(main, bucket, at=THERE), first=True, vm="a")
    west.fence()
    backup = accepted(tmp_path / "outbox", 7, LARGE)
    west.commit(backup, west.upload(backup, ignore), None)
    assert data_below(main) == []
    assert len(list((main / "jobs" / JOB / "chain").iterdir())) == 2
    assert s3.count("PutObject", "*/data/*") == 3
    assert s3.count("PutObject", "*/chain/*") == 0

    east = CheckpointStore(job(main, bucket, attempt=2, at=HERE), first=False, vm="b")
    fence = east.fence()
    work = tmp_path / "work"
    found = east.restore(work, fence=fence, on_progress=ignore)
    assert (found.step, found.n) == (7, 2)
    assert (work / "c").read_bytes() == backup.payload.read_bytes()
    backup = accepted(tmp_path / "outbox", 8)
    east.commit(backup, east.upload(backup, ignore), found.n)
    assert len(data_below(main)) == 1
    with pytest.raises(Exception, match="fenced by attempt 2"):
        west.commit(backup, [], None)
    mine = assignment(
        tmp_path / "new",
        init_from=InitFrom(
            storage=StorageSpec(url=main.as_uri()), job=JOB, others=[bucket.storage]
        ),
    )
    begun = CheckpointStore(mine, first=True).restore(
        tmp_path / "begun", fence=1, on_progress=ignore
    )
    assert begun.path == "c"


def test_a_near_store_that_fails_costs_no_save(s3: S3Server, tmp_path: Path) -> None:
    """It goes to the next one, whole, and the user is told once."""
    main = tmp_path / "main"
    west = CheckpointStore(job(main, in_the_west(s3.spec()), at=THERE), first=True)
    west.fence()
    s3.add(Fault(operation="PutObject", status=403, code="AccessDenied", times=FOR_EVER))
    for step in (7, 8):
        backup = accepted(tmp_path / "outbox", step, LARGE)
        files = west.upload(backup, ignore)
        west.commit(backup, files, None)
        assert {record.url for record in files} == {""}
    assert len(data_below(main)) == 2
    (told,) = west.news()
    assert "cannot save to s3://bucket/runs" in told
    assert "AccessDenied" in told
    assert west.news() == []
    work = tmp_path / "work"
    assert west.restore(work, fence=None, on_progress=ignore).step == 8


def test_a_store_that_deletes_nothing_may_still_be_the_nearest(
    s3: S3Server, tmp_path: Path
) -> None:
    main = tmp_path / "main"
    west = CheckpointStore(job(main, in_the_west(s3.spec()), at=THERE), first=True)
    west.fence()
    s3.add(Fault(operation="Delete*", status=403, code="AccessDenied", times=FOR_EVER))
    west.measure()
    assert s3.count("Delete*") > 0
    files = west.upload(accepted(tmp_path / "outbox", 7), ignore)
    assert {record.url for record in files} == {"s3://bucket/runs"}
    assert west.news() == []


def test_without_the_first_store_nothing_is_committed(s3: S3Server, tmp_path: Path) -> None:
    """The near one has the data, and that is no promise; what was sent is not sent again."""
    main = tmp_path / "main"
    west = CheckpointStore(job(main, in_the_west(s3.spec()), at=THERE), first=True)
    west.fence()
    backup = accepted(tmp_path / "outbox", 7, LARGE)
    (main / "jobs").rename(tmp_path / "away")
    (main / "jobs").write_text("no folder")
    files = west.upload(backup, ignore)
    with pytest.raises(StorageError):
        west.commit(backup, files, None)
    (main / "jobs").unlink()
    (tmp_path / "away").rename(main / "jobs")
    assert west.committed(backup.id) is None
    sent = s3.count("PutObject", "*/data/*")
    west.commit(backup, west.upload(backup, ignore), None)
    assert s3.count("PutObject", "*/data/*") == sent


@pytest.mark.parametrize("cut", ["before the upload", "after the upload", "after the commit"])
def test_an_agent_that_is_killed_leaves_no_entry_without_its_data(
    cut: str, s3: S3Server, tmp_path: Path
) -> None:
    main, bucket = tmp_path / "main", in_the_west(s3.spec(f"s3://bucket/{cut.replace(' ', '-')}"))
    west = CheckpointStore(job(main, bucket, at=THERE), first=True)
    west.fence()
    backup = accepted(tmp_path / "outbox", 7)
    if cut != "before the upload":
        files = west.upload(backup, ignore)
        if cut == "after the commit":
            west.commit(backup, files, None)
    again = CheckpointStore(job(main, bucket, at=THERE), first=False)
    there = again.committed(backup.id)
    assert (there is not None) == (cut == "after the commit")
    found = again.restore(tmp_path / "work", fence=None, on_progress=ignore)
    assert found.step == (7 if there else 0)
    again.commit(backup, again.upload(backup, ignore), None)
    entries = Chain(open_store(StorageSpec(url=main.as_uri())), JOB).entries()
    assert len(entries) == 2, "one fence and one checkpoint, however often it was tried"


# --- the order, with a scripted upload ----------------------------------------------------------


class Bench:
    """Three folders, a clock that a test sets, and uploads that do what it says."""

    def __init__(self, root: Path) -> None:
        self.now = 0.0
        self.left_s: float | None = None
        self.sent: list[str] = []
        self.fails: dict[str, StorageError] = {}
        self.hangs: set[str] = set()
        self.urls = [(root / name).as_uri() for name in ("a", "b", "c")]
        for name in ("a", "b", "c"):
            (root / name).mkdir()
        placed = [PlacedStorage(storage=StorageSpec(url=url)) for url in self.urls]
        work = assignment(root / "a", stores=placed)
        stores = Stores(FolderStore(root / "a"), [each.storage for each in placed])
        self.near = NearStores(work, stores, clock=lambda: self.now)

    def upload(self) -> str:
        """The store that took it."""
        found = self.near.upload(self._send(), ignore, lambda: None, lambda: self.left_s)
        return found[0].url or self.urls[0]

    def _send(self) -> Send:
        def send(
            store: ObjectStore,
            url: str,
            on_progress: Callable[[int, int], None],
            still_wanted: Callable[[], object],
        ) -> list[FileRecord]:
            name = url or self.urls[0]
            self.sent.append(name[-1])
            if name in self.fails:
                raise self.fails[name]
            if name in self.hangs:
                for _ in range(1000):
                    self.now += 0.5
                    still_wanted()
                raise StorageUnavailable("its client gave up")
            return [FileRecord("p", 1, "0", "k", url=url)]

        return send


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_measured_stores_come_first_and_the_probe_is_deleted(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "a").rename(tmp_path / "away")
    bench.near.measure()
    assert [choice.url[-1] for choice in bench.near.order()][-1] == "a"
    (told,) = bench.near.news()
    assert "/a: " in told
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_one_that_failed_is_tried_again_later(bench: Bench) -> None:
    bench.fails[bench.urls[0]] = StorageUnavailable("down")
    assert bench.upload() == bench.urls[1]
    assert bench.upload() == bench.urls[1]
    assert bench.sent == ["a", "b", "b"]
    bench.now += 301.0
    del bench.fails[bench.urls[0]]
    assert bench.upload() == bench.urls[0]


def test_after_a_notice_one_that_hangs_leaves_time_for_the_next(bench: Bench) -> None:
    bench.left_s, bench.hangs = 40.0, {bench.urls[0], bench.urls[1]}
    assert bench.upload() == bench.urls[2]
    assert bench.now <= 22.0


def test_the_last_one_may_take_its_time(bench: Bench) -> None:
    bench.left_s, bench.hangs = 4.0, set(bench.urls)
    with pytest.raises(StorageUnavailable):
        bench.upload()
    assert bench.now > 100.0


def test_where_all_fail_trying_again_is_not_given_up_for_one_that_refuses(bench: Bench) -> None:
    bench.fails = {
        bench.urls[0]: StorageUnavailable("down"),
        bench.urls[1]: StorageDenied("no"),
        bench.urls[2]: StorageDenied("no"),
    }
    with pytest.raises(StorageUnavailable, match="down"):
        bench.upload()
    assert bench.sent == ["a", "b", "c"]
    first, second, third = bench.near.news()
    assert "saves go to " + bench.urls[1] in first
    assert "saves go to " + bench.urls[2] in second
    assert "no other one of the list has taken this save" in third


def test_what_is_wrong_with_the_payload_is_no_fault_of_a_store(bench: Bench) -> None:
    bench.fails[bench.urls[0]] = SourceChanged("it was written to")
    with pytest.raises(SourceChanged):
        bench.upload()
    assert (bench.sent, bench.near.news()) == (["a"], [])
