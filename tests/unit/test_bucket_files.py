"""Logs and bundles in a bucket, which masters share that have no common disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.fake_cloud import FakeClock
from spothop.storage import FolderStore, ObjectStore, StorageUnavailable
from spothop_master.boot import agent_zip
from spothop_master.boot.agent_zip import AgentZips
from spothop_master.bucket_bundles import FORGOTTEN, BucketBundles
from spothop_master.bucket_logs import RESTS, BucketLogs
from spothop_master.bundles import BadBundleName, BundleMismatch, BundleTooLarge
from spothop_master.problems import ApiError
from spothop_master.store.db import Database
from spothop_master.store.schema import LogPiece
from support.database import new_database, open_database
from support.examples import examples

pytestmark = pytest.mark.databases

SEGMENT = 64
DATA = b"bundle"
NAME = hashlib.sha256(DATA).hexdigest()


class Bucket(FolderStore):
    """A folder that may be away."""

    away = False

    def put(self, key: str, data: bytes) -> None:
        if self.away:
            raise StorageUnavailable("away")
        super().put(key, data)

    def get(self, key: str) -> bytes:
        if self.away:
            raise StorageUnavailable("away")
        return super().get(key)

    def keys(self, prefix: str) -> list[str]:
        return sorted(info.key for info in self.scan(prefix))


class Room:
    """Two masters on one database and one bucket."""

    def __init__(self, folder: Path) -> None:
        (folder / "bucket").mkdir()
        self.clock, self.bucket = FakeClock(), Bucket(folder / "bucket")
        self.db = new_database(folder / "master.db")
        other = open_database(folder / "master.db")
        self.one, self.two = (self.logs(db) for db in (self.db, other))
        self.mine, self.theirs = (
            self.bundles(db, folder / name) for db, name in ((self.db, "1"), (other, "2"))
        )

    def logs(self, db: Database, limit: int = 10_000, **more: Any) -> BucketLogs:
        return BucketLogs(db, self.bucket, clock=self.clock, limit=limit, segment=SEGMENT, **more)

    def bundles(self, db: Database, folder: Path) -> BucketBundles:
        return BucketBundles(db, self.bucket, folder, limit=10, clock=self.clock, cached=10)

    def pieces(self) -> list[int]:
        with self.db.read() as session:
            return sorted(piece.begin for piece in session.query(LogPiece))


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def text(size: int) -> bytes:
    return bytes(33 + n % 90 for n in range(size))


# --- logs -----------------------------------------------------------------------------------------


def test_what_one_master_takes_another_one_gives_at_once(room: Room) -> None:
    assert room.one.append("job", 1, offset=0, data=b"first ") == 6
    assert room.two.append("job", 1, offset=0, data=b"first second") == 12
    assert room.one.append("job", 1, offset=20, data=b"a gap") == 12
    assert room.one.read("job", 1, offset=0).data == b"first second"
    assert room.two.size("job", 1) == 12
    assert room.bucket.keys("logs") == []


def test_full_segments_go_to_the_bucket_and_the_rest_when_it_rests(room: Room) -> None:
    log = text(150)
    room.one.append("job", 1, offset=0, data=log)
    assert room.bucket.keys("logs/job") == [
        "logs/job/1-0/00000000-0000064",
        "logs/job/1-0/00000001-0000064",
    ]
    assert room.pieces() == [128]
    room.one.settle()
    assert room.pieces() == [128]  # it has just grown
    room.clock.advance(RESTS.total_seconds() + 1)
    room.two.settle()
    assert room.pieces() == []
    assert room.two.read("job", 1, offset=0).data == log
    log += text(60)  # it goes on after all
    room.two.append("job", 1, offset=150, data=log[150:])
    assert room.one.read("job", 1, offset=100).data == log[100:]
    assert room.bucket.keys("logs/job")[-1] == "logs/job/1-0/00000002-0000064"
    assert len(room.bucket.keys("logs/job")) == 3


def test_a_chunk_never_waits_for_the_bucket(room: Room) -> None:
    later: list[Callable[[], None]] = []
    logs = room.logs(room.db, limit=500, later=later.append)
    room.bucket.away = True
    log = text(700)
    for offset in range(0, 700, 50):
        assert logs.append("job", 1, offset=offset, data=log[offset : offset + 50]) == offset + 50
    assert room.bucket.keys("logs") == []
    assert len(later) == 1, "one call waits, whatever the number of chunks"
    later.pop()()
    assert room.bucket.keys("logs") == []
    room.bucket.away = False
    logs.append("job", 1, offset=700, data=b"x")
    later.pop()()
    assert room.bucket.keys("logs") != []
    assert later == []
    assert room.two.read("job", 1, offset=640).data == log[640:] + b"x"


def test_a_log_whose_bucket_is_away_says_so(room: Room) -> None:
    room.one.append("job", 1, offset=0, data=text(150))
    room.bucket.away = True
    with pytest.raises(ApiError, match="the master's bucket says: away") as raised:
        room.two.read("job", 1, offset=0)
    assert raised.value.status == 503
    assert room.two.read("job", 1, offset=128).data == text(150)[128:]


def test_while_the_bucket_is_away_logs_wait_in_the_database(room: Room) -> None:
    room.bucket.away = True
    log = text(300)
    for offset in range(0, 300, 50):
        room.one.append("job", 1, offset=offset, data=log[offset : offset + 50])
    assert room.two.read("job", 1, offset=0).data == log
    room.bucket.away = False
    room.one.append("job", 1, offset=300, data=b"x")
    assert room.pieces() == [256, 300]
    assert room.two.read("job", 1, offset=0).data == log + b"x"


@pytest.mark.parametrize("away", [False, True])
def test_of_a_long_log_the_newest_part_stays_at_its_offsets(room: Room, away: bool) -> None:
    logs, log = room.logs(room.db, limit=4 * SEGMENT), text(20 * SEGMENT)
    room.bucket.away = away
    for offset in range(0, len(log), 40):
        end = logs.append("job", 1, offset=offset, data=log[offset : offset + 40])
    assert end == logs.size("job", 1) == len(log)
    assert logs.bytes_of("job") <= 4 * SEGMENT
    assert len(room.bucket.keys("logs/job")) <= 4
    gap = logs.read("job", 1, offset=0)
    assert (
        gap.data == f"spothop: {gap.next_offset} bytes of output are not kept any more\n".encode()
    )
    assert logs.read("job", 1, offset=gap.next_offset).data == log[gap.next_offset :]


def test_a_removed_log_says_why_and_a_forgotten_one_nothing(room: Room) -> None:
    room.one.append("job", 1, offset=0, data=text(100))
    room.one.append("other", 1, offset=0, data=text(100))
    assert room.two.folders() == {"job": 100, "other": 100}
    room.one.remove("job", "too old")
    assert room.two.removed("job") == "too old"
    assert (room.two.bytes_of("job"), room.two.bytes_of("other")) == (0, 100)
    assert room.bucket.keys("logs") == ["logs/other/1-0/00000000-0000064"]
    room.two.forget("job")
    assert room.one.removed("job") == ""
    assert room.one.newest_tail("other", [1]).endswith(text(100).decode()[-20:])


@pytest.mark.parametrize("job", ["", "..", "a/b", ".hidden", "x" * 81])
def test_logs_stay_in_their_folder(room: Room, job: str) -> None:
    with pytest.raises(ValueError, match="log folder"):
        room.one.append(job, 1, offset=0, data=b"x")


@examples(25)
@given(
    log=st.text(alphabet="a\u00e4\u20ac\U0001f600", max_size=120),
    cuts=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300), st.booleans()), max_size=12),
    limit=st.integers(4, 80),
)
def test_any_resending_to_either_gives_the_same_log(
    tmp_path_factory: pytest.TempPathFactory,
    log: str,
    cuts: list[tuple[int, int, bool]],
    limit: int,
) -> None:
    """And reading it in pieces cuts no character."""
    room, data = Room(tmp_path_factory.mktemp("room")), log.encode()
    for begin, end, first in cuts:
        begin = min(begin, len(data))
        logs = room.one if first else room.two
        assert logs.append("job", 1, offset=begin, data=data[begin:end]) == logs.size("job", 1)
        room.clock.advance(700)
        room.two.settle()
    size = room.one.size("job", 1)
    room.one.append("job", 1, offset=size, data=data[size:])
    offset, read = 0, ""
    while offset < len(data):
        piece = room.two.read("job", 1, offset=offset, limit=limit)
        assert piece.next_offset > offset
        read += piece.data.decode()
        offset = piece.next_offset
    assert read == log


# --- bundles --------------------------------------------------------------------------------------


def send(bundles: BucketBundles, data: bytes = DATA) -> str:
    name = hashlib.sha256(data).hexdigest()
    with bundles.upload(name) as upload:
        upload.write(data)
        upload.finish()
    return name


def test_a_bundle_that_one_master_was_sent_another_one_has(room: Room) -> None:
    assert room.theirs.path(NAME) is None
    assert not room.theirs.use(NAME)
    send(room.mine)
    path = room.theirs.path(NAME)
    assert path is not None
    assert path.read_bytes() == DATA
    assert room.theirs.use(NAME)
    assert room.theirs.bytes_of([NAME, "0" * 64]) == len(DATA)


def test_one_that_was_sent_twice_lies_there_once(room: Room) -> None:
    send(room.mine)
    send(room.theirs)
    assert len(room.bucket.keys("bundles")) == 1


def test_a_broken_upload_leaves_nothing(room: Room) -> None:
    with room.mine.upload(NAME) as upload:
        upload.write(b"other")
        with pytest.raises(BundleMismatch):
            upload.finish()
    with room.mine.upload(NAME) as upload, pytest.raises(BundleTooLarge):
        upload.write(b"x" * 11)
    with pytest.raises(BadBundleName):
        room.mine.path("../x")
    assert room.bucket.keys("bundles") == []
    assert room.mine.files() == {}


def test_one_that_is_sent_while_it_is_deleted_stays(room: Room) -> None:
    send(room.mine)
    known = room.mine.files()[NAME]
    with room.db.begin() as session:
        assert room.mine.remove(session, NAME, known)
    room.clock.advance(1)
    send(room.theirs)
    room.mine.tidy()
    assert len(room.bucket.keys("bundles")) == 1
    fresh = room.bundles(room.db, room.bucket._root / "fresh")
    path = fresh.path(NAME)
    assert path is not None
    assert path.read_bytes() == DATA


def test_one_that_was_used_meanwhile_is_not_removed(room: Room) -> None:
    send(room.mine)
    known = room.mine.files()[NAME]
    room.clock.advance(1)
    room.theirs.use(NAME)
    with room.db.begin() as session:
        assert not room.mine.remove(session, NAME, known)


def test_an_object_of_a_master_that_died_goes_after_a_day(room: Room) -> None:
    send(room.mine)
    room.clock.advance(1)
    moment = f"{int((room.clock() - timedelta(0)).timestamp() * 1000):014d}"
    room.bucket.put(f"bundles/{NAME}/{moment}-dead", b"half")
    room.mine.tidy()
    assert len(room.bucket.keys("bundles")) == 2
    room.clock.advance(FORGOTTEN.total_seconds() + 1)
    room.mine.tidy()
    assert len(room.bucket.keys("bundles")) == 1


def test_a_master_keeps_only_some_copies(room: Room, tmp_path: Path) -> None:
    names = [send(room.mine, b"%08d" % number) for number in range(3)]
    for name in names:
        assert room.theirs.path(name) is not None
    assert [path.name for path in (tmp_path / "2").iterdir()] == names[-1:]


def test_a_bundle_that_the_bucket_does_not_give_is_asked_for_again(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(room.mine)

    def fetch(*_args: object, **_more: object) -> None:
        raise StorageUnavailable("away")

    store: ObjectStore = room.bucket
    monkeypatch.setattr(store, "fetch", fetch)
    with pytest.raises(ApiError, match="away"):
        room.theirs.path(NAME)


# --- the agent's files ----------------------------------------------------------------------------


def test_an_agents_file_that_one_master_built_another_one_gives(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another release, too: a VM may ask any of them for what it was told of."""
    monkeypatch.setattr(agent_zip, "_native", lambda: {"a.py": b"native"})
    monkeypatch.setattr(agent_zip, "_portable", lambda: {"a.py": b"portable"})
    one, two = (AgentZips(tmp_path / name, bucket=room.bucket) for name in ("one", "two"))
    built = one.current().by_tag
    assert len(room.bucket.keys("agents")) == 2
    for sha256 in built.values():
        mine, theirs = one.path(sha256), two.path(sha256)
        assert mine is not None
        assert theirs is not None
        assert mine.read_bytes() == theirs.read_bytes()
    assert two.path("0" * 64) is None
    assert two.path("../x") is None
