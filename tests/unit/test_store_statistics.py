"""Figures of pools that are kept for a while: how long, who reads them, and in which session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from spothop.wire import Pool
from spothop_master.store import pool_figures, statistics
from spothop_master.store.db import Database
from spothop_master.store.observations import STATED
from spothop_master.store.schema import Observation
from spothop_master.store.statistics import LEAST_S, MOST_S, SHARE, KeptStatistics
from support.database import new_database

pytestmark = pytest.mark.databases

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
A = Pool(cloud="aws", region="r", zone="a", vm="gpu")
B = A.model_copy(update={"zone": "b"})


class Room:
    """A database with one life, a clock that is set by hand, and reading that takes `took_s`."""

    def __init__(self, folder: Path) -> None:
        self.db: Database = new_database(folder / "kept.db")
        self.at, self.took_s = 0.0, 0.0
        self.readings: list[list[Pool]] = []
        self.kept = KeptStatistics(STATED, self.read, monotonic=lambda: self.at)
        self.died(3600)

    def died(self, life_s: float) -> None:
        with self.db.begin() as session:
            session.add(
                Observation(
                    kind="life", cloud="aws", region="r", zone="a", vm_type="gpu", spot=True,
                    value=life_s, vm_id=f"vm-{life_s}", at=NOW, evidence="notice",
                )
            )  # fmt: skip

    @contextmanager
    def read(self) -> Iterator[Session]:
        with self.db.read() as session:
            yield session
            self.at += self.took_s

    def lives(self, pool: Pool = A) -> int:
        with self.db.read() as session:
            return self.kept.of(session, pool, now=NOW).region_lives


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    made = Room(tmp_path)

    def slow(*args: object, **kwargs: object) -> object:
        made.at += made.took_s
        made.readings.append(sorted(args[1], key=str))  # type: ignore[call-overload]
        return pool_figures.of_pools(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(statistics, "of_pools", slow)
    yield made
    made.db.close()


def test_they_are_read_once_and_then_kept(room: Room) -> None:
    room.kept.warm(A, now=NOW)
    room.died(60)
    room.at += LEAST_S * 0.9
    room.kept.warm(A, now=NOW)
    assert room.lives() == 1
    room.at += LEAST_S
    room.kept.warm(A, now=NOW)
    assert room.lives() == 2
    assert room.readings == [[A], [A]]


@pytest.mark.parametrize(
    ("took_s", "kept_s"), [(0.0, LEAST_S), (0.5, SHARE * 0.5), (900.0, MOST_S)]
)
def test_what_took_long_is_kept_long(room: Room, took_s: float, kept_s: float) -> None:
    room.took_s = took_s
    with room.db.read() as session:
        room.kept.of(session, A, now=NOW)
    room.took_s = 0.0
    room.at += kept_s - 0.1
    room.kept.warm(A, now=NOW)
    assert len(room.readings) == 1
    room.at += 0.2
    room.kept.warm(A, now=NOW)
    assert len(room.readings) == 2


def test_a_transaction_uses_what_there_is_however_old(room: Room) -> None:
    room.kept.warm(A, now=NOW)
    room.died(60)
    room.at += 1e6
    asked: list[str] = []
    event.listen(room.db.engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
    with room.db.begin() as session:
        assert room.kept.of(session, A, now=NOW).region_lives == 1
    assert asked == []


def test_the_pools_of_a_region_are_read_together(room: Room) -> None:
    for pool in (A, B):
        room.kept.warm(pool, now=NOW)
    assert room.readings == [[A], [A, B]]
    room.at += MOST_S
    room.kept.warm(B, now=NOW)
    room.kept.warm(A, now=NOW)
    assert room.readings[2:] == [[A, B]]


def test_nobody_waits_for_another_ones_reading_while_there_are_older_figures(room: Room) -> None:
    room.kept.warm(A, now=NOW)
    room.at += MOST_S
    with room.kept._reading:  # another thread reads
        room.kept.warm(A, now=NOW)
    assert len(room.readings) == 1


def test_nobody_waits_for_newer_figures_while_there_are_older_ones(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    given: list[Callable[[], None]] = []
    room.kept = KeptStatistics(STATED, room.read, monotonic=lambda: room.at, later=given.append)
    room.kept.warm(A, now=NOW)
    assert (len(room.readings), given) == (1, [])
    room.died(60)
    room.at += MOST_S
    room.kept.warm_all([A, B], now=NOW)  # of B nothing was known
    room.at += MOST_S
    for _ in range(2):
        room.kept.warm(A, now=NOW)
    assert (len(room.readings), len(given)) == (2, 1)
    room.died(30)
    given.pop()()
    assert (room.lives(), len(room.readings)) == (3, 3)

    room.at += MOST_S
    room.kept.warm(A, now=NOW)
    room.db.close()
    room.kept._read = None  # type: ignore[assignment]  # the database is away
    given.pop()()
    assert "could not be read anew" in caplog.text
    room.kept.warm(A, now=NOW)
    assert len(given) == 1, "and somebody tries again"


def test_without_a_thread_for_it_older_figures_serve(room: Room) -> None:
    def refuse(work: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    room.kept = KeptStatistics(STATED, room.read, monotonic=lambda: room.at, later=refuse)
    room.kept.warm(A, now=NOW)
    for _ in range(2):
        room.at += MOST_S
        room.kept.warm(A, now=NOW)
    assert (room.lives(), len(room.readings)) == (1, 1)
    assert not room.kept._reading.locked()


def test_the_fresh_ones_are_read_at_every_question(room: Room) -> None:
    with room.db.read() as session:
        assert statistics.FRESH.of(session, A, now=NOW).region_lives == 1
    room.died(60)
    with room.db.read() as session:
        assert statistics.FRESH.of(session, A, now=NOW).region_lives == 2
