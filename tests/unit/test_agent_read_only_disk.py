"""A disk that the kernel has mounted read-only, as it does at the first error of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.attempt_harness import AttemptHarness
from fakes.virtual_time import play, until
from spothop.wire import ExitedReport
from support.disks import read_only


@pytest.mark.parametrize("dies", [False, True])
def test_on_a_disk_that_becomes_read_only_what_was_accepted_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """By the agent that is there, and by one that is started then."""

    async def scenario() -> None:
        run = AttemptHarness(tmp_path)
        run.store.takes = {10: 5.0}
        await run.training(step=10)
        run.process.hand_over(10)
        run.process.hand_over(20)
        await until(lambda: run.store.uploads == [10])
        with read_only(monkeypatch, tmp_path):
            if dies:
                await run.die()
                run = run.again()
                run.start()
            await until(lambda: run.store.steps[-1:] == [20])
            await run.over()
        assert run.store.steps == [10, 20]
        assert [report.uncommitted for report in run.reports(ExitedReport)] == [0]

    play(scenario)
