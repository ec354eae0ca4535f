"""What is deleted and what stays, and that a run may end anywhere. Which points of a curve stay is
in `test_core_thinning`."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from fakes import sample_rows
from fakes.fake_cloud import FakeClock
from fakes.old_database import contents
from spothop_master.agents.sessions import Sessions, VmSession
from spothop_master.bundles import Bundles
from spothop_master.core.thinning import Point, Rule, kept, stays
from spothop_master.logs import Logs
from spothop_master.loops import retention
from spothop_master.loops.retention import Retention
from spothop_master.settings import MasterSettings
from spothop_master.store import observations, policy_inputs, pool_figures
from spothop_master.store.db import Database
from spothop_master.store.schema import (
    Attempt,
    Base,
    BundleUpload,
    Event,
    Injection,
    Job,
    Metric,
    Observation,
    Place,
    Price,
    Refusal,
    Stray,
    User,
    VmRow,
)
from spothop_master.store.statistics import FRESH
from spothop_master.store.vms import pool_of
from support.database import new_database

pytestmark = pytest.mark.databases

DAY = timedelta(days=1)
OLD, NEW = "a" * 64, "b" * 64


class Room:
    """A master's database and files, with a job that runs and one that ended, and no loop but this
    one."""

    def __init__(self, folder: Path, **section: float) -> None:
        self.clock = FakeClock()
        self.db = new_database(folder / "master.db")
        self.logs = Logs(folder / "logs")
        self.bundles = Bundles(folder / "bundles", limit=1000)
        self.sessions = Sessions(self.db)
        self.settings = MasterSettings.model_validate({"home": folder, "retention": section})
        self.rests: list[float] = []
        self.until = 10**9
        """Rests until the master is ended."""
        with self.db.begin() as session:
            session.add(User(id=1, name="u", role="user", created_at=self.clock()))
            session.flush()
            runs = sample_rows.job("runs-1", "running", 0, 1)
            ended = sample_rows.job("ended-1", "succeeded", 0, 1, bundle=OLD)
            runs.submitted_at = ended.submitted_at = self.ago(400)
            ended.ended_at = self.ago(200)
            session.add_all([runs, ended])

    def ago(self, days: float) -> datetime:
        return self.clock() - days * DAY

    def retention(self) -> Retention:
        return Retention(
            self.db,
            self.settings,
            logs=self.logs,
            bundles=self.bundles,
            sessions=self.sessions,
            clock=self.clock,
            rest=self._rest,
            monotonic=iter(range(10**9)).__next__,
        )

    def _rest(self, seconds: float) -> bool:
        self.rests.append(seconds)
        return len(self.rests) >= self.until

    def run(self) -> None:
        self.retention().run_once()

    def add(self, model: type[Base], *rows: dict[str, Any]) -> None:
        with self.db.begin() as session:
            session.execute(sa.insert(model), list(rows))

    def curve(self, job: str, name: str, count: int, *, days: float) -> None:
        """Evenly over the last `days`."""
        self.add(
            Metric,
            *(
                {"job_id": job, "attempt": 1, "step": 10 * i, "name": name, "value": i % 97,
                 "at": self.ago(days * (1 - i / count))}
                for i in range(count)
            ),
        )  # fmt: skip

    def points(self, job: str, name: str) -> list[Point]:
        with self.db.read() as session:
            rows = session.scalars(
                sa.select(Metric)
                .where(Metric.job_id == job, Metric.name == name)
                .order_by(Metric.id)
            )
            return [Point(row.id, row.step, row.value, row.at) for row in rows]

    def kinds(self, job: str | None = "runs-1") -> list[str]:
        with self.db.read() as session:
            query = sa.select(Event.kind).where(Event.job_id == job).order_by(Event.id)
            return list(session.scalars(query))

    def bundle(self, name: str, *, days: float, size: int = 10) -> Path:
        path = self.bundles._folder / name
        path.write_bytes(b"x" * size)
        os.utime(path, (self.ago(days).timestamp(),) * 2)
        return path


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


# --- metrics ------------------------------------------------------------------------------------


def test_curves_are_thinned_by_the_rule_each_by_itself(room: Room) -> None:
    room.curve("runs-1", "loss", 3000, days=60)
    room.curve("runs-1", "accuracy", 500, days=3)
    room.curve("ended-1", "loss", 25, days=300)
    rule = Rule(full=DAY, tenth=30 * DAY)
    expected = {}
    for of in (("runs-1", "loss"), ("runs-1", "accuracy"), ("ended-1", "loss")):
        before = room.points(*of)
        marked = kept(before, rule, now=room.clock())
        expected[of] = [p for p in before if stays(p, marked, rule, now=room.clock())]
    room.run()
    assert {of: room.points(*of) for of in expected} == expected
    assert len(expected["runs-1", "loss"]) < 400
    assert len(expected["ended-1", "loss"]) == 25


def test_a_second_run_changes_nothing_and_writes_nothing(room: Room) -> None:
    room.curve("runs-1", "loss", 2000, days=60)
    room.run()
    once, rests = contents(room.db), len(room.rests)
    room.run()
    assert (contents(room.db), len(room.rests)) == (once, rests)


def test_a_run_that_is_ended_anywhere_is_finished_by_the_next(tmp_path: Path) -> None:
    ends = []
    for until in (1, 3, 10**9):
        (folder := tmp_path / str(until)).mkdir()
        room = Room(folder)
        room.curve("runs-1", "loss", 2500, days=60)
        room.until = until
        room.run()
        left = len(room.points("runs-1", "loss"))
        assert until > 3 or left == 2500 - until * retention.ROWS
        room.until = 10**9
        room.run()
        ends.append(room.points("runs-1", "loss"))
    assert ends[0] == ends[1] == ends[2]


def test_no_transaction_deletes_more_than_a_few_rows_and_each_rests(room: Room) -> None:
    room.curve("runs-1", "loss", 3000, days=60)
    before = len(room.points("runs-1", "loss"))
    many: list[int] = []

    def note(_c: Any, cursor: Any, text: str, _v: Any, _x: Any, _m: bool) -> None:
        if text.startswith("DELETE"):
            many.append(cursor.rowcount)

    sa.event.listen(room.db.engine, "after_cursor_execute", note)
    room.run()
    assert sum(many) == before - len(room.points("runs-1", "loss"))
    assert max(many) <= retention.ROWS
    assert len([rest for rest in room.rests if rest > 0]) >= len(many)


# --- events -------------------------------------------------------------------------------------


def test_old_chatter_goes_and_changes_of_states_stay(room: Room) -> None:
    def event(kind: str, days: float, job: str | None = "runs-1") -> dict[str, Any]:
        return {"job_id": job, "at": room.ago(days), "kind": kind, "text": kind, "data": {}}

    old = ("submitted", "vm", "insurance", "committed", "attempt", "notice", "job", "insurance")
    room.add(
        Event,
        *(event(kind, 40) for kind in old),
        *(event(kind, 2) for kind in ("committed", "phase")),
        *(event("cloud", 40, None), event("orphan", 40, None)),
    )
    room.run()
    stay = ["submitted", "vm", "attempt", "notice", "job", "insurance", "committed", "phase"]
    assert room.kinds() == stay
    assert room.kinds(None) == ["orphan"]


# --- observations -------------------------------------------------------------------------------


def observed(room: Room) -> Any:
    """What the statistics and the policy make of it."""
    with room.db.read() as session:
        pool = pool_of(session.get_one(VmRow, "vm-1"))
        figures = pool_figures.of_pools(session, [pool], room.settings, now=room.clock())[pool]
        inputs = policy_inputs.read(
            session, pool, "runs-1", FRESH, policy="thesis", now=room.clock(), grace_s=30
        )
    return figures, inputs


def test_observations_that_the_sums_hold_go_and_no_figure_changes(room: Room) -> None:
    with room.db.begin() as session:
        for number, end in ((1, -1.0), (2, None)):
            row = sample_rows.vm(number, "runs-1", 0, -2, end, "released" if end else None)
            session.add(row)
            session.flush()
            for days in (0, 40, 50):
                for kind, value in (("life", 50.0), ("allocation", 3.0), ("emergency", 1.0)):
                    observations.add(session, row, kind, value + days, n=days, now=room.ago(days))
            for n in range(12):
                for kind, value in (("save", 0.5), ("backup", 2.0)):
                    observations.add(
                        session, row, kind, value + n, n=n, now=room.ago(60),
                        censored=kind == "save" and number == 2,
                    )  # fmt: skip
    before = observed(room)
    room.run()
    assert observed(room) == before
    with room.db.read() as session:
        left = session.execute(
            sa.select(Observation.vm_id, Observation.kind, sa.func.count()).group_by(
                Observation.vm_id, Observation.kind
            )
        )
        counts = {(row[0], row[1]): row[2] for row in left}
    assert counts == {
        **{("vm-1", kind): 1 for kind in ("life", "allocation", "emergency")},
        **{("vm-2", kind): 3 for kind in ("life", "allocation", "emergency")},  # it lives
        ("vm-2", "save"): 5,  # bounds, of which the newest count
    }


# --- files --------------------------------------------------------------------------------------


def test_logs_of_a_job_that_ended_long_ago_go_and_say_so(room: Room) -> None:
    for job in ("runs-1", "ended-1", "unknown-1"):
        room.logs.append(job, 1, offset=0, data=b"hello\n")
        room.logs.append(job, 2, 1, offset=0, data=b"hello\n")
    room.run()
    assert room.logs.folders() == {"runs-1": 12, "ended-1": 0, "unknown-1": 12}
    said = room.logs.removed("ended-1")
    assert said.startswith("this log (12 B) was deleted on 20")
    assert said.endswith("logs stay for 90 days after the end of a job")
    assert room.logs.removed("runs-1") == ""


def test_beyond_their_size_the_logs_go_whose_jobs_ended_first(tmp_path: Path) -> None:
    room = Room(tmp_path, logs_bytes=25, logs_s=1e9)
    with room.db.begin() as session:
        for number, days in ((2, 100.0), (3, 0.5)):
            row = sample_rows.job(f"ended-{number}", "failed", 0, 1)
            row.ended_at = room.ago(days)
            session.add(row)
    for job in ("runs-1", "ended-1", "ended-2", "ended-3"):
        room.logs.append(job, 1, offset=0, data=b"x" * 10)
    room.run()
    assert room.logs.folders() == {"runs-1": 10, "ended-1": 0, "ended-2": 0, "ended-3": 10}
    assert "all logs together had more than 25 B" in room.logs.removed("ended-2")


def test_over_a_users_quota_the_logs_go_of_their_job_that_ended_first(tmp_path: Path) -> None:
    room = Room(tmp_path, logs_s=1e9)
    with room.db.begin() as session:
        session.add(User(id=2, name="v", role="user", created_at=room.clock(), max_log_bytes=15))
        session.flush()
        for number, days in ((2, 100.0), (3, 50.0)):
            row = sample_rows.job(f"ended-{number}", "failed", 0, 2)
            row.ended_at = room.ago(days)
            session.add(row)
    for job in ("ended-1", "ended-2", "ended-3"):
        room.logs.append(job, 1, offset=0, data=b"x" * 10)
    room.run()
    assert room.logs.folders() == {"ended-1": 10, "ended-2": 0, "ended-3": 10}
    assert "the logs of its user had more than 15 B, their quota" in room.logs.removed("ended-2")


def test_a_bundle_stays_while_a_job_that_has_not_ended_needs_it(tmp_path: Path) -> None:
    room = Room(tmp_path, bundles_bytes=1)
    with room.db.begin() as session:
        session.get_one(Job, "runs-1").bundle = NEW
    needed, unneeded = room.bundle(NEW, days=300), room.bundle(OLD, days=300)
    asked, half = room.bundle("c" * 64, days=0.5), room.bundle(f".{'d' * 64}.12ab", days=40)
    room.run()
    assert [path.exists() for path in (needed, unneeded, asked, half)] == [True, False, True, False]


def test_a_bundle_goes_by_age_and_stays_while_it_is_used(room: Room) -> None:
    with room.db.begin() as session:
        session.get_one(Job, "ended-1").ended_at = room.ago(10)
    by_job, old = room.bundle(OLD, days=300), room.bundle(NEW, days=31)
    room.run()
    assert (by_job.exists(), old.exists()) == (True, False)
    room.clock.advance(21 * 86_400)
    room.run()
    assert not by_job.exists()


def test_a_bundle_that_is_asked_for_at_the_last_moment_stays(room: Room) -> None:
    path = room.bundle(OLD, days=300)
    seen = room.bundles.files()[OLD]
    assert room.bundles.use(OLD)
    with room.db.begin() as session:
        assert not room.bundles.remove(session, OLD, seen)
    assert path.exists()


# --- memory, and the file of the database -------------------------------------------------------


def test_sessions_of_vms_that_are_over_are_forgotten(room: Room) -> None:
    with room.db.begin() as session:
        session.add(sample_rows.vm(1, "runs-1", 0, -9, None, None))
        session.add(sample_rows.vm(2, "runs-1", 0, -9, -1, "released"))
    for number in (1, 2):
        row = VmSession(vm=f"vm-{number}", job="runs-1", pool=sample_rows_pool(), owner=1)
        room.sessions._known[f"hash-{number}"] = row
        room.sessions.acknowledge(f"vm-{number}", 7)
        room.sessions.allow_log(f"vm-{number}", 1, 0)
    room.run()
    assert [*room.sessions._known] == ["hash-1"]
    assert (room.sessions.acked("vm-1"), room.sessions.acked("vm-2")) == (7, None)
    assert (room.sessions.node_of("vm-1", 1), room.sessions.node_of("vm-2", 1)) == (0, None)


def sample_rows_pool() -> Any:
    return pool_of(sample_rows.vm(1, "runs-1", 0, -9, None, None))


@pytest.mark.databases(only="sqlite")
def test_the_database_gives_its_free_pages_back(room: Room) -> None:
    room.curve("runs-1", "loss", 5000, days=300)
    before, _ = room.db.bytes()
    room.run()
    after, free = room.db.bytes()
    assert after < before - 100_000
    assert free == 0


@pytest.mark.databases(only="sqlite")
def test_a_database_from_before_keeps_its_size_and_says_what_is_free(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.curve("runs-1", "loss", 5000, days=300)
    room.db.close()
    path = tmp_path / "master.db"
    with sa.create_engine(f"sqlite:///{path}").connect() as connection:
        raw: Any = connection.connection.dbapi_connection
        raw.isolation_level = None
        raw.execute("PRAGMA journal_mode=DELETE")
        raw.execute("PRAGMA auto_vacuum=NONE")
        raw.execute("VACUUM")
    room.db = Database(f"sqlite:///{path}")
    before, _ = room.db.bytes()
    room.run()
    after, free = room.db.bytes()
    assert after >= before
    assert free > 100_000
    room.db.close()


def test_folders_that_are_none_of_ours_are_left_alone(tmp_path: Path) -> None:
    """A file system of its own has a `lost+found`."""
    room = Room(tmp_path)
    for folder in ("logs", "bundles"):
        (tmp_path / folder / "lost+found").mkdir()
        os.utime(tmp_path / folder / "lost+found", (0, 0))
    room.run()
    assert (tmp_path / "logs" / "lost+found").is_dir()
    assert (tmp_path / "bundles" / "lost+found").is_dir()


# --- what belongs to nothing that lives -----------------------------------------------------------


def test_refusals_of_jobs_that_ended_long_ago_go(room: Room) -> None:
    where = {"cloud": "aws", "region": "r", "zone": "a", "vm_type": "gpu", "spot": True}
    at = {"first_at": room.ago(300), "last_at": room.ago(300), "error": "NoCapacity"}
    for job in ("runs-1", "ended-1"):
        room.add(Refusal, {"job_id": job, **where, **at, "count": 3, "in_row": 1})
    room.run()
    with room.db.read() as session:
        assert list(session.scalars(sa.select(Refusal.job_id))) == ["runs-1"]


def test_the_newest_price_of_each_pool_stays_however_old(room: Room) -> None:
    for zone, ages in (("a", (900, 800, 10)), ("b", (900, 800))):
        where = {"cloud": "aws", "region": "r", "zone": zone, "vm_type": "gpu", "spot": True}
        room.add(Price, *({**where, "price": float(age), "at": room.ago(age)} for age in ages))
    room.run()
    with room.db.read() as session:
        left = session.execute(sa.select(Price.zone, Price.price).order_by(Price.id)).all()
    assert [tuple(row) for row in left] == [("a", 10.0), ("b", 800.0)]


def test_strays_of_clouds_that_are_gone_go_and_others_stay(room: Room) -> None:
    where = {"region": "r", "zone": "a", "vm_type": "gpu", "spot": True}
    known = room.settings.clouds[0]
    for cloud, days in ((known, 200), ("left", 200), ("leaves", 10)):
        at = {"launched_at": room.ago(days), "found_at": room.ago(days)}
        room.add(Stray, {"cloud": cloud, "cloud_id": "i-1", **where, **at})
    room.run()
    with room.db.read() as session:
        assert set(session.scalars(sa.select(Stray.cloud))) == {known, "leaves"}


def test_who_sent_a_bundle_is_forgotten_after_it(room: Room) -> None:
    room.bundle(NEW, days=1)
    for sha256, days in ((OLD, 40), (NEW, 40), ("c" * 64, 0.5)):
        row = {"sha256": sha256, "user_id": 1, "uploaded_at": room.ago(days)}
        room.add(BundleUpload, row)
    room.run()
    with room.db.read() as session:
        assert set(session.scalars(sa.select(BundleUpload.sha256))) == {NEW, "c" * 64}


# --- whole jobs -----------------------------------------------------------------------------------


def lived(room: Room, job: str) -> None:
    """Rows of every sort."""
    at, number = room.ago(201), len(job)
    vm = f"vm-{number}"
    with room.db.begin() as session:
        row = sample_rows.vm(number, job, 0, 0.0, 1.0, "released")
        session.add(row)
        session.flush()
        attempt = Attempt(job_id=job, number=1, state="ended", reason="succeeded", created_at=at)
        attempt.ended_at, attempt.places = at, [Place(vm_id=vm, living=False)]
        session.add(attempt)
        session.add(sample_rows.checkpoint(job, 1, 1, "periodic", 0))
        session.flush()
        observations.add(session, row, "save", 1.0, attempt=1, n=1, now=room.ago(1))
        observations.add(session, row, "life", 60.0, evidence="notice", now=room.ago(1))
    room.add(Event, *({"job_id": job, "vm_id": vm, "at": at, "kind": "vm", "text": ""},) * 300)
    room.add(Event, {"job_id": None, "vm_id": vm, "at": at, "kind": "vm", "text": "of the VM"})
    room.curve(job, "loss", 10, days=300)
    room.logs.append(job, 1, offset=0, data=b"hello\n")
    row = {"job_id": job, "plan": {}, "started_at": at, "ended_at": at, "vm_id": vm}
    room.add(Injection, row)


def rows_of(room: Room, job: str) -> dict[str, int]:
    """In every table that names jobs, VMs or attempts."""
    found = {}
    with room.db.read() as session:
        for table in Base.metadata.sorted_tables:
            if "job_id" in table.c:
                query = sa.select(sa.func.count()).where(table.c.job_id == job)
                found[table.name] = session.scalar(query) or 0
        found["jobs"] = session.scalar(sa.select(sa.func.count()).where(Job.id == job)) or 0
    return found


def test_whole_jobs_go_when_a_setting_says_so(tmp_path: Path) -> None:
    for section in ({}, {"jobs_s": 100 * 86_400.0}):
        (tmp_path / str(len(section))).mkdir()
        room = Room(tmp_path / str(len(section)), **section)
        for job in ("runs-1", "ended-1"):
            lived(room, job)
        before = rows_of(room, "runs-1")
        room.run()
        assert rows_of(room, "runs-1") == before
        assert room.logs.size("runs-1", 1) == 6
        left = {name: count for name, count in rows_of(room, "ended-1").items() if count}
        if section:
            assert left == {"observations": 1}, "a life, which the region's figures are made of"
            assert not (tmp_path / "1" / "logs" / "ended-1").exists()
        else:
            assert left.keys() == {name for name, count in before.items() if count}
        with room.db.engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
        room.db.close()


def test_a_job_with_a_vm_that_may_live_stays(tmp_path: Path) -> None:
    room = Room(tmp_path, jobs_s=86_400.0)
    lived(room, "ended-1")
    with room.db.begin() as session:
        session.get_one(VmRow, "vm-7").ended_at = None
    room.run()
    assert rows_of(room, "ended-1")["jobs"] == 1


def test_a_removal_that_is_ended_anywhere_is_finished_by_the_next(tmp_path: Path) -> None:
    room = Room(tmp_path, jobs_s=86_400.0)
    lived(room, "ended-1")
    for _ in range(50):
        room.rests.clear()
        room.until = 1
        room.run()
        if not rows_of(room, "ended-1")["jobs"]:
            break
    assert {name for name, count in rows_of(room, "ended-1").items() if count} == {"observations"}
