"""Calls to clouds side by side: each account has threads of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from fakes.fake_cloud import FakeCloud
from fakes.master_harness import Inline, Later, MasterHarness
from spothop.wire import VmReason
from spothop_master.clouds.base import Vm
from spothop_master.core.facts import Limits
from spothop_master.loops.calls import Terminate
from spothop_master.loops.effects import FRESH, Effects, threads
from spothop_master.loops.results import Results
from spothop_master.store import launches, vms
from spothop_master.store.schema import BackOffRow, VmRow

pytestmark = pytest.mark.databases


def test_a_cloud_that_hangs_takes_no_thread_of_another(tmp_path: Path) -> None:
    harness = MasterHarness(tmp_path)
    agents = [harness.training("job-1"), harness.training("job-2")]
    hangs, made, done = Later(), list[str](), list[str]()

    def executor_of(cloud: str) -> Later | Inline:
        made.append(cloud)
        return hangs if cloud == "hangs" else Inline()

    other = FakeCloud(clock=harness.clock, name="other")
    effects = Effects(
        db=harness.db,
        clouds={"hangs": harness.cloud, "other": other},
        clock=harness.clock,
        chaos=harness.chaos,
        executor_of=executor_of,
        growth=lambda: Limits().growth(0.5),
        done=done.append,
    )
    for cloud, agent in (("hangs", agents[0]), ("other", agents[1]), ("hangs", agents[0])):
        job = harness.vm(agent.vm).job_id or ""
        effects.start([Terminate(job=job, vm=agent.vm, cloud=cloud, lease="a", cloud_id="i")])
    assert made == ["hangs", "other"]
    assert (len(hangs.given), done) == (2, ["job-2"])
    harness.db.close()


def test_the_threads_of_a_cloud_are_limited() -> None:
    executor = threads("local", 3)
    assert isinstance(executor, ThreadPoolExecutor)
    assert executor._max_workers == 3
    executor.shutdown()


def asked_at_once(harness: MasterHarness) -> Later:
    """The calls for the VMs of three jobs, which wait."""
    for number in (1, 2, 3):
        harness.submit(f"job-{number}")
    calls = Later()
    harness.supervisor._effects.executor_of = lambda cloud: calls
    harness.look()
    assert len(calls.given) == 3
    return calls


def answered_together(harness: MasterHarness, calls: Later) -> list[int]:
    """All clouds have answered before the first result is written; how many each transaction
    wrote."""
    effects, sizes = harness.supervisor._effects, list[int]()
    write, results = effects._results._write, list[Any]()
    effects._results.bring = results.append  # type: ignore[method-assign]
    for call in calls.given:
        call()
    taken_all = launches.taken_all

    def counting(session: Any, taken: Sequence[Any], **options: Any) -> None:
        taken_all(session, taken, **options)
        sizes.append(len(taken))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launches, "taken_all", counting)
        write(results)
    return sizes


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    made = MasterHarness(tmp_path)
    yield made
    made.supervisor.close()
    made.db.close()


def test_launches_that_were_taken_together_are_written_in_one_transaction(
    harness: MasterHarness,
) -> None:
    assert answered_together(harness, asked_at_once(harness)) == [3]
    assert [(vm.state, vm.lease_token) for vm in harness.vms()] == [("booting", None)] * 3
    assert {vm.cloud_id for vm in harness.vms()} == set(harness.cloud.machines)
    launched = [event for event in harness.events("vm") if event.data.get("to") == "booting"]
    assert [event.text.startswith("launched in ") for event in launched] == [True] * 3


def test_one_whose_lease_is_lost_takes_no_other_with_it(harness: MasterHarness) -> None:
    calls = asked_at_once(harness)
    lost = harness.vms()[2].id
    with harness.db.begin() as session:
        session.get_one(VmRow, lost).lease_token = "another's"
    assert answered_together(harness, calls) == []
    found = {vm.id: (vm.state, vm.lease_token) for vm in harness.vms()}
    assert found.pop(lost) == ("requested", "another's")
    assert [*found.values()] == [("booting", None)] * 2


def test_a_vm_with_less_notice_than_its_pool_promised_is_planned_with_that(
    harness: MasterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, graces = harness.cloud.launch, iter([None, 7.0, None])

    def less(*args: Any) -> Vm:
        return replace(launch(*args), grace_s=next(graces))

    monkeypatch.setattr(harness.cloud, "launch", less)
    assert answered_together(harness, asked_at_once(harness)) == [2]
    assert [(vm.state, vm.lease_token) for vm in harness.vms()] == [("booting", None)] * 3
    promised, own = sorted({vm.grace_s for vm in harness.vms()}, reverse=True)
    assert (own, promised > 7) == (7.0, True)


def back_off(at: datetime, scope: str, name: str) -> BackOffRow:
    return BackOffRow(
        cloud="fake",
        scope=scope,
        name=name,
        until=at,
        refusals=1,
        last_at=at,
        error="Throttled",
    )


def test_what_an_account_refused_before_is_forgotten_when_it_takes_a_launch(
    harness: MasterHarness,
) -> None:
    calls = asked_at_once(harness)
    with harness.db.begin() as session:
        before = harness.clock() - timedelta(seconds=1)
        for scope, name in (("account", ""), ("region", "r1")):
            session.add(back_off(before, scope, name))
    assert answered_together(harness, calls) == [], "that is not the plain case"
    assert {vm.state for vm in harness.vms()} == {"booting"}
    assert [row.scope for row in harness.back_offs()] == ["region"]


def looks(harness: MasterHarness, calls: Later) -> list[str]:
    """The statements that one call makes before its cloud is asked."""
    found: list[str] = []
    harness.supervisor._effects._results.bring = lambda result: None  # type: ignore[method-assign]

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        found.append(statement)

    sa.event.listen(harness.db.engine, "before_cursor_execute", note)
    calls.given.pop(0)()
    sa.event.remove(harness.db.engine, "before_cursor_execute", note)
    return found


def test_a_launch_that_goes_out_at_once_asks_no_row(harness: MasterHarness) -> None:
    assert looks(harness, asked_at_once(harness)) == []
    assert len(harness.cloud.machines) == 1


@pytest.mark.parametrize("what", ["later", "its job changed", "something was refused"])
def test_a_launch_that_may_be_unwanted_asks_its_row(harness: MasterHarness, what: str) -> None:
    calls = asked_at_once(harness)
    if what == "later":
        harness.clock.advance(FRESH.total_seconds())
    elif what == "its job changed":
        harness.want("cancelled", "job-1")
    else:
        with harness.db.begin() as session:
            session.add(back_off(harness.clock(), "account", ""))
    assert looks(harness, calls)


def test_what_comes_while_another_is_written_is_left_to_its_thread() -> None:
    written: list[list[int]] = []

    def write(batch: Sequence[int]) -> None:
        written.append([*batch])
        if batch == [1]:
            for number in (2, 3, 4):
                results.bring(number)
            assert written == [[1]], "nobody else writes, and nobody waits"

    results = Results(write, most=2)
    results.bring(1)
    results.bring(5)
    assert written == [[1], [2, 3], [4], [5]]


def test_launches_that_hang_keep_no_vm_from_being_ended(harness: MasterHarness) -> None:
    made: list[Later] = []

    def executor_of(cloud: str) -> Later:
        made.append(Later())
        return made[-1]

    agent = harness.training("job-1")
    harness.submit("job-2")
    harness.supervisor._effects.executor_of = executor_of
    harness.supervisor._effects._executors.clear()
    harness.look()  # the launch for the second job hangs
    with harness.db.begin() as session:
        vms.release(
            session,
            session.get_one(VmRow, agent.vm),
            VmReason.RELEASED,
            reason="test",
            now=harness.clock(),
        )
    harness.look()
    launching, ending = made
    assert (len(launching.given), len(ending.given)) == (1, 1)
    ending.given.pop()()
    assert harness.cloud.machines[harness.vm(agent.vm).cloud_id or ""].ends_at is not None
    launching.given.pop()()
