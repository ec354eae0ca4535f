"""Watcher and prices: what the loops remember, and what they ask."""

from __future__ import annotations

import logging
import random
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from fakes.fake_cloud import FakeClock, FakeCloud, Machine, RegionalCloud
from fakes.master_harness import OWNER, Inline, Later, MasterHarness
from spothop.wire import AgentConfig, Dialect
from spothop_master.clouds.base import OWNER_TAG, BadRequest, LaunchSpec, Unavailable
from spothop_master.clouds.watcher import ADAPTER_FAULT, CloudWatcher
from spothop_master.core.evidence import EndCause
from spothop_master.loops import supervise
from spothop_master.loops.contacts import Contacts
from spothop_master.loops.prices import Prices
from spothop_master.loops.sweep import Sweep, hold_limits
from spothop_master.store.schema import Price

pytestmark = pytest.mark.databases


def watcher(clock: FakeClock, cloud: FakeCloud, executor: Executor) -> CloudWatcher:
    return CloudWatcher(
        {"fake": cloud}, OWNER, executor=executor, clock=clock, rng=random.Random(0)
    )


def test_a_listing_is_shared_while_it_is_fresh_and_asked_for_once_at_a_time() -> None:
    clock, executor = FakeClock(), Later()
    asked = watcher(clock, FakeCloud(clock=clock), executor)
    asked.ask_listing("fake")
    asked.ask_listing("fake")
    assert len(executor.given) == 1
    assert asked.listing("fake") is None
    executor.given.pop()()
    listing = asked.listing("fake")
    assert listing is not None
    assert listing.began_at == clock()
    asked.ask_listing("fake")
    assert executor.given == []
    clock.advance(1)
    asked.ask_listing("fake")
    assert len(executor.given) == 1


def test_each_listing_tells_what_differs_and_offers_only_when_they_do() -> None:
    clock = FakeClock()
    cloud = FakeCloud(clock=clock, zones=("a",))
    asked = watcher(clock, cloud, Inline())
    listed: list[frozenset[str]] = []
    offered: list[tuple[str, ...]] = []
    asked.subscribe(listed=listed.append, offered=lambda: offered.append(cloud.zones))

    def launch(token: str) -> None:
        config = AgentConfig(
            master="http://m", token="t", vm=token, dialect=Dialect.AWS, directory="/d"
        )
        tags = {OWNER_TAG: OWNER}
        cloud.launch(LaunchSpec(pool=cloud.pool("a"), user_data=config, tags=tags), token)

    for step in (
        lambda: None,
        lambda: launch("one"),
        lambda: None,
        lambda: launch("two"),
        lambda: cloud.kill("i-1", EndCause.PREEMPTED),
        cloud.machines.clear,
    ):
        step()
        asked.ask_listing("fake")
        asked.ask_offers()
        cloud.zones = ("a", "b")
        clock.advance(60)
    one, two, none = frozenset({"one"}), frozenset({"two"}), frozenset[str]()
    assert listed[:2] == [none, one]
    assert listed[2] == one, "it runs now"
    assert listed[3:] == [two, one | two, one | two]
    assert offered == [("a",), ("a", "b")]


def test_a_cloud_is_asked_as_often_as_it_allows() -> None:
    clock, executor = FakeClock(), Later()
    asked = watcher(clock, FakeCloud(clock=clock, list_every_s=3.0), executor)
    for _ in range(7):
        asked.ask_listing("fake")
        while executor.given:
            executor.given.pop()()
            at = clock()
        clock.advance(1)
    listing = asked.listing("fake")
    assert listing is not None
    assert listing.began_at == at == clock() - timedelta(seconds=1)


def test_while_the_loop_rests_the_listing_stays_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "LISTEN_S", 0.001)
    harness = MasterHarness(tmp_path, supervise_every_s=60)
    harness.submit()
    harness.settle(4)
    [machine] = harness.cloud.alive()
    stop, passes = threading.Event(), []
    run_due = harness.supervisor.run_due

    def counted() -> None:
        run_due()
        passes.append(harness.clock())
        if len(passes) == 2:
            stop.set()
            harness.supervisor.wake.set()
        else:  # what happens now is news that nobody but the listing tells
            harness.cloud.kill(machine.id, EndCause.PREEMPTED)
            harness.clock.advance(2)

    harness.supervisor.run_due = counted  # type: ignore[method-assign]
    harness.supervisor.wake.clear()
    harness.supervisor.run_forever(stop)
    assert len(passes) == 2, "not after 60 s, but at once"


def test_a_failing_cloud_is_asked_less_often_and_its_last_answer_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    cloud = FakeCloud(clock=clock)
    asked = watcher(clock, cloud, Inline())
    asked.ask_listing("fake")
    cloud.away = Unavailable("503")
    with caplog.at_level(logging.WARNING):
        for _ in range(60):
            clock.advance(1)
            asked.ask_listing("fake")
    assert 3 <= len(caplog.records) <= 10
    assert asked.listing("fake") is not None


def test_offers_are_unknown_until_every_cloud_answered_or_one_has_pools() -> None:
    clock = FakeClock()
    cloud = FakeCloud(clock=clock, zones=())
    asked = watcher(clock, cloud, Inline())
    assert asked.offers() is None
    asked.ask_offers()
    assert asked.offers() == {}
    cloud.zones = ("a",)
    clock.advance(60)
    asked.ask_offers()
    assert set(asked.offers() or {}) == {cloud.pool("a")}


def test_what_decisions_read_of_the_offers_is_made_once_for_each_answer() -> None:
    clock = FakeClock()
    cloud = FakeCloud(clock=clock, zones=("a",))
    asked = watcher(clock, cloud, Inline())
    asked.ask_offers()
    before = asked.market()
    assert before is not None
    assert asked.market() is before
    assert set(before.prices) == {cloud.pool("a")}
    cloud.zones = ("a", "b")
    clock.advance(60)
    asked.ask_offers()
    after = asked.market()
    assert after is not None
    assert set(after.prices) == {cloud.pool("a"), cloud.pool("b")}
    assert set(before.prices) == {cloud.pool("a")}, "whoever reads it reads on"


def test_a_reader_waits_for_a_fresh_listing_but_not_for_a_cloud_that_is_away() -> None:
    clock = FakeClock()
    cloud = FakeCloud(clock=clock)
    with ThreadPoolExecutor(1) as executor:
        asked = watcher(clock, cloud, executor)
        [first] = asked.fresh_listings("fake", wait_s=60)
        assert first.began_at == clock()
        [same] = asked.fresh_listings("fake", wait_s=60)
        assert same is first, "it is still fresh"
        clock.advance(1)
        [second] = asked.fresh_listings("fake", wait_s=60)
        assert second.began_at == clock()
        cloud.away = Unavailable("503")
        for _ in range(3):  # it fails, and then it is not asked before the back-off is over
            clock.advance(1)
            [last] = asked.fresh_listings("fake", wait_s=60)
            assert last is second


def test_nobody_waits_longer_than_told_nor_for_a_watcher_that_is_closed() -> None:
    clock, executor = FakeClock(), Later()
    asked = watcher(clock, FakeCloud(clock=clock), executor)
    assert asked.fresh_listings("fake", wait_s=0) == []
    asked.ask_offers()
    asked.wait_for_first_offers(wait_s=0)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(asked.fresh_listings, "fake", wait_s=60)
        asked.close()
        assert waiting.result() == []
    asked.wait_for_first_offers(wait_s=60)
    asked.ask_offers()
    assert len(executor.given) == 2, "and nothing more is asked"


def test_first_offers_are_waited_for_once() -> None:
    clock = FakeClock()
    cloud = FakeCloud(clock=clock)
    with ThreadPoolExecutor(1) as executor:
        asked = watcher(clock, cloud, executor)
        assert asked.unanswered() == {"fake": ""}
        asked.ask_offers()
        asked.wait_for_first_offers(wait_s=60)
        assert asked.unanswered() == {}
    later = Later()
    asked._executor = later
    clock.advance(60)
    asked.ask_offers()
    assert len(later.given) == 1
    asked.wait_for_first_offers(wait_s=60)  # the answer that there is will do
    assert asked.offers_by_cloud()["fake"].began_at < clock()


def test_a_cloud_that_failed_is_not_waited_for_again() -> None:
    clock, later = FakeClock(), Later()
    asked = watcher(clock, FakeCloud(clock=clock, away=Unavailable("timed out")), later)
    asked.ask_offers()
    later.given.pop()()
    clock.advance(60)
    asked.ask_offers()
    assert len(later.given) == 1
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(asked.wait_for_first_offers, wait_s=60)
        waiting.result(timeout=30)
    assert asked.unanswered() == {"fake": "timed out"}


def test_each_cloud_has_its_whole_time_for_its_first_offers() -> None:
    clock, executor = FakeClock(), Later()
    clouds = {name: FakeCloud(clock=clock) for name in ("early", "late", "away")}
    asked = CloudWatcher(clouds, OWNER, executor=executor, clock=clock, rng=random.Random(0))
    waits: list[float] = []
    asked._wait = lambda done, wait_s: waits.append(wait_s)
    asked.wait_for_first_offers(wait_s=60)  # nobody was asked yet
    assert waits == []
    clouds["away"].away = Unavailable("503")
    asked._ask("offers", "early", asked._pools)
    clock.advance(20)
    asked._ask("offers", "late", asked._pools)
    asked._ask("offers", "away", asked._pools)
    executor.given.pop()()  # that one has failed: nothing to wait for
    clock.advance(10)
    asked.wait_for_first_offers(wait_s=60)
    assert waits == [50]


def test_a_cloud_that_never_answered_has_a_reason() -> None:
    clock = FakeClock()
    cloud = FakeCloud(clock=clock, away=Unavailable("503"))
    asked = watcher(clock, cloud, Inline())
    asked.ask_offers()
    asked.wait_for_first_offers(wait_s=60)
    assert asked.unanswered() == {"fake": "503"}


def test_a_fault_of_an_adapter_is_a_failure_like_any_other() -> None:
    clock, cloud = FakeClock(), FakeCloud(clock=FakeClock())
    asked, news = watcher(clock, cloud, Inline()), []
    asked.subscribe(listed=lambda tokens: None, offered=lambda: news.append(1))
    calls = []

    def broken() -> list[Any]:
        calls.append(clock())
        raise KeyError("zone")

    cloud.pools = broken  # type: ignore[method-assign]
    asked.ask_offers()
    asked.wait_for_first_offers(wait_s=60)  # it has failed: nobody waits
    assert asked.unanswered() == {"fake": ADAPTER_FAULT}
    clock.advance(0.4)
    asked.ask_offers()
    assert len(calls) == 1, "half of the first pause is not over"
    clock.advance(0.6)
    asked.ask_offers()
    assert len(calls) == 2
    del cloud.pools
    clock.advance(2)
    asked.ask_offers()
    assert (asked.unanswered(), news) == ({}, [1])


def test_a_watcher_that_is_closed_asks_nothing() -> None:
    clock, executor = FakeClock(), Later()
    asked = watcher(clock, FakeCloud(clock=clock), executor)
    asked.close()
    asked.ask_offers()
    asked.ask_listing("fake")
    assert executor.given == []


def test_a_cloud_that_the_master_does_not_have_lists_nothing() -> None:
    clock = FakeClock()
    asked = watcher(clock, FakeCloud(clock=clock), Inline())
    assert asked.fresh_listings("gone", wait_s=60) == []


def test_prices_are_written_when_they_change(tmp_path: Path) -> None:
    harness = MasterHarness(tmp_path)
    prices = Prices(harness.db, harness.watcher)
    prices.run_once()
    prices.run_once()
    assert len(harness.rows(Price)) == 3
    harness.cloud.zones = ("b", "a", "c")  # the fake's price follows the place in this list
    prices.run_once()
    assert len(harness.rows(Price)) == 3, "the cloud is not asked again yet"
    harness.clock.advance(60)
    prices.run_once()
    assert len(harness.rows(Price)) == 5
    harness.cloud.away = Unavailable("503")
    harness.clock.advance(60)
    prices.run_once()
    assert len(harness.rows(Price)) == 5
    harness.db.close()


def test_prices_that_did_not_change_cost_no_query(tmp_path: Path) -> None:
    harness = MasterHarness(tmp_path)
    prices = Prices(harness.db, harness.watcher)
    prices.run_once()
    statements: list[str] = []

    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        statements.append(statement)

    sa.event.listen(harness.db.engine, "before_cursor_execute", note)
    for _ in range(5):
        harness.clock.advance(60)
        prices.run_once()
    assert statements == []
    harness.db.close()


def test_prices_are_those_of_the_moment_when_the_cloud_was_asked(tmp_path: Path) -> None:
    harness = MasterHarness(tmp_path)
    harness.watcher.ask_offers()
    asked_at = harness.clock()
    harness.clock.advance(7)
    Prices(harness.db, harness.watcher).run_once()
    assert {row.at for row in harness.rows(Price)} == {asked_at}
    harness.db.close()


def orphan(harness: MasterHarness, token: str = "nobody's") -> Machine:
    """A VM of this installation without a row."""
    spec = LaunchSpec(
        pool=harness.cloud.pool("a"),
        user_data=AgentConfig(
            master="http://m", token="t", vm="v", dialect=Dialect.AWS, directory="/d"
        ),
        tags={OWNER_TAG: OWNER},
    )
    return harness.cloud.machines[harness.cloud.launch(spec, token).id]


def test_an_orphan_ends_after_two_listings_however_many_passes_there_are(tmp_path: Path) -> None:
    harness = MasterHarness(tmp_path)
    sweep = Sweep(
        harness.db,
        {"fake": harness.cloud},
        harness.watcher,
        harness.clock,
        limits=hold_limits(harness.settings),
        grace=timedelta(0),
    )
    machine = orphan(harness)
    for _ in range(3):
        sweep.run_once()
    assert machine.ends_at is None, "the cloud was asked once"
    harness.cloud.away = Unavailable("503")
    for _ in range(3):
        harness.clock.advance(10)
        sweep.run_once()
    assert machine.ends_at is None, "its listing from before proves nothing more"
    harness.cloud.away = None
    harness.clock.advance(60)
    sweep.run_once()
    assert machine.ends_at is not None
    harness.db.close()


@pytest.mark.parametrize("fault", [BadRequest("termination protection is on"), OSError("broken")])
def test_an_orphan_that_the_cloud_does_not_end_keeps_no_other_alive(
    tmp_path: Path, fault: Exception
) -> None:
    harness = MasterHarness(tmp_path)
    protected, other = orphan(harness, "1"), orphan(harness, "2")
    terminate = harness.cloud.terminate

    def refuse(vm_id: str) -> None:
        if vm_id == protected.id:
            raise fault
        terminate(vm_id)

    harness.cloud.terminate = refuse  # type: ignore[method-assign]
    for _ in range(3):
        harness.sweep.run_once()
        harness.clock.advance(5)
    assert (protected.ends_at, other.ends_at is not None) == (None, True)
    told = [(event.data["cloud_id"], event.text) for event in harness.events("orphan")]
    assert len(told) == 2
    assert (other.id, f"terminating fake VM {other.id}: no row has its token") in told
    harness.db.close()


def test_the_grace_of_an_orphan_is_between_its_listings(tmp_path: Path) -> None:
    harness = MasterHarness(tmp_path)
    machine = orphan(harness)
    for _ in range(5):  # GRACE is 5 s
        harness.sweep.run_once()
        harness.clock.advance(1)
    assert machine.ends_at is None
    harness.sweep.run_once()
    assert machine.ends_at is not None
    harness.db.close()


def test_a_slow_launch_delays_no_other_job(tmp_path: Path) -> None:
    harness = MasterHarness(tmp_path)
    harness.submit("job-1")
    harness.submit("job-2")
    harness.look()
    harness.calls = later = Later()
    harness.restart()
    harness.cloud.preempt(harness.machine(job_id="job-1").id, 0)
    harness.tick(3)
    assert len(later.given) == 1  # job-1's replacement hangs in its launch
    harness.join(job_id="job-2").prepare()
    harness.tick()
    assert harness.job("job-2").state == "preparing"
    assert len(later.given) == 1, "and is not launched twice"
    later.given.pop()()
    harness.look()
    assert len(harness.cloud.launches) == 3
    harness.db.close()


# --- contacts -----------------------------------------------------------------------------------


def test_contacts_are_written_for_all_vms_at_once_and_only_forward(tmp_path: Path) -> None:
    harness = MasterHarness(tmp_path)
    agents = []
    for job in ("job-1", "job-2"):
        agents.append(harness.training(job))
    before = harness.vm(agents[1].vm).last_contact_at
    harness.clock.advance(9)
    harness.heartbeats.heard(agents[0].vm, harness.clock())
    assert before is not None
    harness.heartbeats.heard(agents[1].vm, before - timedelta(seconds=5))
    harness.heartbeats.heard("no-such-vm", harness.clock())
    told: list[frozenset[str]] = []
    harness.db.on_change(told.append)
    contacts = Contacts(harness.db, harness.heartbeats, harness.clock)
    contacts.run_once()
    assert harness.vm(agents[0].vm).last_contact_at == harness.clock()
    assert harness.vm(agents[1].vm).last_contact_at == before
    assert told == [], "it decides nothing"
    contacts.run_once()
    harness.db.close()


def test_without_new_contacts_nothing_is_locked(tmp_path: Path) -> None:
    harness = MasterHarness(tmp_path)
    asked: list[str] = []
    event.listen(harness.db.engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
    Contacts(harness.db, harness.heartbeats, harness.clock).run_once()
    assert asked == []
    harness.db.close()


def test_a_region_that_hangs_or_fails_keeps_no_other_one_from_being_asked() -> None:
    clock, executor = FakeClock(), Later()
    cloud = RegionalCloud(clock=clock)
    asked = watcher(clock, cloud, executor)
    asked.ask_listing("fake")
    hangs, answers = executor.given
    executor.given.clear()
    answers()
    assert asked.listing("fake", "r-a") is None
    first = asked.listing("fake", "r-b")
    assert first is not None
    assert (first.covers("r-a"), first.covers("r-b")) == (False, True)
    clock.advance(1)
    asked.ask_listing("fake")
    [again] = executor.given
    executor.given.clear()
    again()
    second = asked.listing("fake", "r-b")
    assert second is not None
    assert second.began_at > first.began_at
    cloud.silent = {"r-a"}
    hangs()
    asked.ask_listing("fake")
    assert executor.given == [], "one waits for its back-off, the other is fresh"
