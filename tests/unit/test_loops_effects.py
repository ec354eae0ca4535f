"""Calls to clouds side by side: each account has threads of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fakes.fake_cloud import FakeCloud
from fakes.master_harness import Inline, Later, MasterHarness
from spothop_master.core.facts import Limits
from spothop_master.loops.effects import Effects, Terminate, threads


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
