"""What is written of each VM's and attempt's life; `test_store_statistics` reads it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.master_harness import MasterHarness
from spothop.wire import SaveKind
from spothop_master.store import observations
from spothop_master.store.schema import VmRow

pytestmark = pytest.mark.databases


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    harness = MasterHarness(tmp_path)
    yield harness
    harness.db.close()


def test_the_same_figure_twice_is_one(harness: MasterHarness) -> None:
    agent = harness.training()
    for value in (100.0, 200.0):
        with harness.db.begin() as session:
            vm = session.get_one(VmRow, agent.vm)
            observations.add(session, vm, "life", value, now=harness.clock())
    assert [o.value for o in harness.observations("life")] == [100.0]


def test_preparation_leaves_out_the_wait_for_the_fence(harness: MasterHarness) -> None:
    harness.training().notice(20.0)
    harness.settle(3)
    new = harness.join(2)
    harness.tick()
    new.prepare()
    waited = 0
    while new.phase == "prepared":
        harness.tick()
        new.obey()
        waited += 1
    new.train(1)
    assert waited > 5
    lived = (harness.clock() - new.machine.running_at).total_seconds()
    second = max(harness.observations("preparation"), key=lambda o: o.attempt)
    assert second.value == pytest.approx(lived - waited)


@pytest.mark.parametrize(
    ("kind", "kept"), [(SaveKind.EMERGENCY, 1.0), (SaveKind.PERIODIC, 0.0), (None, 0.0)]
)
def test_an_emergency_is_kept_only_by_its_own_save(
    harness: MasterHarness, kind: SaveKind | None, kept: float
) -> None:
    agent = harness.training()
    agent.notice()
    if kind is not None:
        agent.save(kind)
    agent.exit(None, signal=15)
    assert [o.value for o in harness.observations("emergency")] == [kept]


def test_a_preemption_before_the_first_step_says_nothing_of_notices(harness: MasterHarness) -> None:
    harness.submit()
    harness.settle(4)
    agent = harness.join()
    agent.notice()
    agent.exit(None, signal=15)
    assert harness.observations("emergency") == []
