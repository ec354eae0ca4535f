"""Alarms of a whole master: rows, events, marks, and the outbox of the webhooks."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select

from fakes.master_harness import Killed, MasterHarness
from spothop.wire import Alarm, ProtectionReport, SaveKind, Unprotected, UseReport
from spothop_master.loops.alarms import GIVE_UP, Alarms
from spothop_master.store import alarms as rows
from spothop_master.store import job_lists
from spothop_master.store.schema import AlarmRow, Delivery
from spothop_master.webhooks import Failed, Message, Target

pytestmark = pytest.mark.databases


class Room:
    """A master, its alarms loop, and a webhook that notes what it is told."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.told: list[tuple[Target, Message]] = []
        self.fails: list[BaseException] = []
        self.ids = iter(range(1000))
        self.harness = MasterHarness(folder, **settings)
        self.loop = Alarms(
            self.harness.db,
            self.harness.settings,
            self.harness.clock,
            send=self._send,
            rand=lambda: 0.0,
            new_id=lambda: f"d{next(self.ids)}",
        )

    def _send(self, target: Target, message: Message) -> None:
        self.told.append((target, message))
        if self.fails:
            raise self.fails.pop()

    @property
    def ids_told(self) -> list[str]:
        return [message.id for _, message in self.told]

    def lasting(self) -> list[str]:
        with self.harness.db.read() as session:
            job = job_lists.job_view(
                session, "job-1", now=self.harness.clock(), storage_url="file:///bucket"
            )
            found = rows.lasting(session).get("job-1", {})
        assert {alarm.kind for alarm in job.alarms} == found.keys()
        return [alarm.kind.value for alarm in job.alarms]


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path, alarm_webhook="http://10.0.0.1/hook", alarm_webhook_secret="s")


def test_an_alarm_begins_and_is_over(room: Room) -> None:
    agent = room.harness.training()
    agent.report(ProtectionReport(cause=Unprotected.STORAGE, reason="denied"))
    room.loop.run_once()
    assert room.lasting() == ["storage"]
    room.loop.run_once()
    agent.report(ProtectionReport())
    room.loop.run_once()
    assert room.lasting() == []
    texts = [event.text for event in room.harness.events("alarm")]
    assert texts == ["alarm storage: the storage takes no save: denied", "alarm storage is over"]
    told = [(message.told.alarm, message.told.over) for _, message in room.told]
    assert told == [("storage", False), ("storage", True)]
    assert {target.url for target, _ in room.told} == {"http://10.0.0.1/hook"}
    assert len(room.harness.rows(AlarmRow)) == 1


def test_its_count_is_there_for_metrics(room: Room) -> None:
    room.harness.training().report(ProtectionReport(cause=Unprotected.NO_CHECK, reason="none"))
    room.loop.judge()
    with room.harness.db.read() as session:
        found = rows.counts(session)
    assert found == {kind: int(kind is Alarm.UNPROTECTED) for kind in Alarm}


def test_no_capacity_for_15_minutes(room: Room) -> None:
    from spothop_master.clouds.base import NoCapacity

    for zone in ("a", "b", "c"):
        room.harness.cloud.refusing[zone] = NoCapacity("none is left")
    room.harness.submit()
    for _ in range(14):
        room.harness.tick(60)
    room.loop.judge()
    assert room.lasting() == []
    room.harness.tick(60)
    room.harness.tick(60)
    room.loop.judge()
    assert room.lasting() == ["no_capacity"]
    room.harness.cloud.refusing.clear()
    for _ in range(25):
        room.harness.tick(1)
    room.loop.judge()
    assert room.lasting() == []


def test_a_commit_that_is_late(room: Room) -> None:
    agent = room.harness.training()
    for _ in range(30):
        agent.train(20)
        room.harness.tick(1)
    agent.save(SaveKind.INSURANCE)
    agent.train(20)
    interval_s = (room.harness.job().insurance or {})["tau_s"]
    room.loop.judge()
    assert room.lasting() == []
    room.harness.clock.advance(max(121.0, 2 * interval_s + 1))
    room.loop.judge()
    assert room.lasting() == ["stale"]
    agent.save(SaveKind.INSURANCE)
    room.loop.judge()
    assert room.lasting() == []


def test_a_job_that_ends_has_no_alarm_any_more(room: Room) -> None:
    agent = room.harness.training()
    agent.report(ProtectionReport(cause=Unprotected.NO_SAVE, reason="none"))
    room.loop.judge()
    room.harness.want("cancelled", at_once=True)
    room.harness.look()
    agent.obey()
    room.harness.settle(5)
    room.loop.judge()
    assert (room.harness.job().state, room.lasting()) == ("cancelled", [])


def test_a_master_that_is_killed_between_the_row_and_the_message_loses_none(room: Room) -> None:
    room.harness.training().report(ProtectionReport(cause=Unprotected.STORAGE, reason="denied"))
    room.loop.judge()
    room.fails = [Killed("while it sends")]
    with pytest.raises(Killed):
        room.loop.tell()
    room.loop.run_once()
    assert room.ids_told == ["d0", "d0"], "who gets it twice knows it by its id"
    room.loop.run_once()
    assert len(room.told) == 2


def test_a_webhook_that_is_away_is_told_later_and_not_for_ever(room: Room) -> None:
    room.harness.training().report(ProtectionReport(cause=Unprotected.STORAGE, reason="denied"))
    room.loop.judge()
    room.fails = [Failed("hook answered 500")] * 1000
    for _ in range(200):
        room.loop.tell()
        room.harness.clock.advance(600.0)
    (row,) = room.harness.rows(Delivery)
    assert row.done_at is not None
    assert row.done_at - row.at >= GIVE_UP
    assert 10 < len(room.told) < 60
    (event,) = [e for e in room.harness.events("message") if "webhook" in e.text]
    assert event.text == "the installation's webhook was not told of an alarm: hook answered 500"


def test_a_jobs_own_webhook_is_sealed_and_hears_but_what_is_muted(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.harness.submit(
        alarms={
            "webhook": "https://hooks.example.com/T0K3N",
            "secret": "s3cret",
            "format": "slack",
            "mute": ["unprotected"],
        }
    )
    job = room.harness.job()
    assert "T0K3N" not in str(job.spec)
    assert "s3cret" not in str(job.spec)
    room.harness.look()
    room.harness.settle(3)
    agent = room.harness.join()
    agent.prepare()
    agent.train(5)
    agent.report(ProtectionReport(cause=Unprotected.NO_CHECK, reason="none"))
    room.loop.run_once()
    assert (room.lasting(), room.told) == ([], [])
    agent.report(ProtectionReport(cause=Unprotected.STORAGE, reason="denied"))
    room.loop.run_once()
    ((target, _),) = room.told
    assert target == Target(
        url="https://hooks.example.com/T0K3N", secret="s3cret", slack=True, private=False
    )
    with room.harness.db.read() as session:
        assert session.scalar(select(Delivery.target)) == "job"


def test_a_vm_that_is_hardly_used_for_20_minutes(room: Room) -> None:
    agent = room.harness.training()
    agent.report(UseReport(idle_s=60.0, reason="the GPUs are used 1 %"))
    room.harness.clock.advance(18 * 60.0)
    room.loop.judge()
    assert "idle" not in room.lasting()
    room.harness.clock.advance(120.0)
    room.loop.judge()
    assert "idle" in room.lasting()
    agent.report(UseReport())
    room.loop.judge()
    assert "idle" not in room.lasting()
