"""The parts of the preparation, and what becomes of an error in one."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fakes.attempt_harness import AttemptHarness
from fakes.virtual_time import play
from spothop.checkpoints import Fenced
from spothop.storage import StorageDenied, StorageUnavailable
from spothop_agent.prepare import SETUP_PID, Preparation, PreparationFailed, failures
from spothop_agent.state import Phase
from support.waiting import WITHIN_S


@pytest.mark.parametrize(
    ("error", "user", "told"),
    [
        (StorageDenied("no right to read"), True, "no right to read"),
        (OSError(errno.ENOSPC, "No space left on device"), False, "No space left"),
        (OSError(errno.E2BIG, "Argument list too long"), True, "`env` is too long"),
        (ValueError("odd"), False, "unexpected ValueError: odd"),
        (PreparationFailed("setup", "exit code 1", user=True), True, "exit code 1"),
    ],
)
def test_every_error_ends_the_attempt_and_not_the_agent(
    error: Exception, user: bool, told: str
) -> None:
    """An agent that ends is started again, and would meet the same without a word to the user."""
    with pytest.raises(PreparationFailed, match=told) as caught, failures("setup"):
        raise error
    assert (caught.value.phase, caught.value.user) == ("setup", user)


def test_a_fence_is_no_failure() -> None:
    with pytest.raises(Fenced), failures("fence"):
        raise Fenced("job", 1, 2)


def prepare(run: AttemptHarness) -> Preparation:
    return Preparation(run.context, {"PATH": os.defpath}, random.Random(1))


def in_real_time(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """For real shells, which know no virtual time; nothing here waits for a clock."""
    asyncio.run(scenario())


def test_setup_runs_in_the_jobs_directory_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        script = "pwd; echo once >> count; ls train.py"
        run = AttemptHarness(tmp_path, setup=script, data={"x": "file:///data"})
        await prepare(run).run()
        assert run.state.prepared == ("bundle", "setup", "data")
        assert run.state.phase is Phase.RESTORED
        assert {str(run.context.paths.work), "train.py"} <= {*run.log().splitlines()}
        run.context.state_file.set(phase=Phase.ASSIGNED)  # an agent that died before it was noted
        await prepare(run).run()
        assert (run.context.paths.work / "count").read_text() == "once\n"
        assert not (run.context.paths.run / SETUP_PID).exists()
        await run.context.link.close()

    in_real_time(scenario)


def test_what_setup_prints_is_limited_while_the_master_is_away(tmp_path: Path) -> None:
    """Nobody ships the log here."""

    async def scenario() -> None:
        size = "$(($(stat -c %b ../log) * 512))"
        script = f"head -c 3000000 /dev/zero; while [ {size} -gt 300000 ]; do sleep 0.01; done"
        run = AttemptHarness(tmp_path, setup=script, log_max=200_000)
        await asyncio.wait_for(prepare(run).run(), WITHIN_S)
        await run.context.link.close()

    in_real_time(scenario)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("exit 7", "`setup:` ended with exit code 7"),
        ("kill -9 $$", "signal 9"),
        ("echo ERROR: no such package >&2; exit 1", r"^ERROR: no such package \(exit code 1\)$"),
    ],
)
def test_a_failed_setup_names_its_end(tmp_path: Path, script: str, told: str) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path, setup=script)
        with pytest.raises(PreparationFailed, match=told) as caught:
            await prepare(run).run()
        assert (caught.value.phase, caught.value.user) == ("setup", True)
        assert "setup" not in run.state.prepared
        await run.context.link.close()

    in_real_time(scenario)


def test_a_bundle_that_the_master_does_not_have_ends_the_attempt(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path)
        run.master.bundle = b"another one"
        with pytest.raises(PreparationFailed, match="404") as caught:
            await prepare(run).run()
        assert (caught.value.phase, caught.value.user) == ("bundle", False)
        await run.context.link.close()

    in_real_time(scenario)


def test_a_master_that_is_away_delays_the_bundle(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path)
        run.master.away = True
        work = asyncio.create_task(prepare(run).run())
        await asyncio.sleep(300.0)
        assert run.state.prepared == ()
        run.master.away = False
        await work
        assert run.log().count("bundle: ") > 50  # every few seconds
        await run.context.link.close()

    play(scenario)


def test_data_is_fetched_while_setup_runs(tmp_path: Path) -> None:
    """This `setup:` would never end otherwise."""

    async def scenario() -> None:
        script = "while [ ! -e ../came ]; do sleep 0.01; done"
        run = AttemptHarness(tmp_path, setup=script, data={"x": "file:///data"})

        def fetch_data(*_: Any) -> int:
            (run.context.paths.root / "came").touch()
            return 1

        run.store.fetch_data = fetch_data  # type: ignore[method-assign]
        await asyncio.wait_for(prepare(run).run(), WITHIN_S)
        assert run.state.prepared == ("bundle", "setup", "data")
        await run.context.link.close()

    in_real_time(scenario)


def test_a_failed_setup_does_not_wait_for_the_data(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path, setup="exit 7", data={"x": "file:///data"})
        run.store.fails["fetch_data"] = [StorageUnavailable("away") for _ in range(1000)]
        with pytest.raises(PreparationFailed, match="exit code 7"):
            await asyncio.wait_for(prepare(run).run(), WITHIN_S)
        assert run.state.prepared == ("bundle",)
        await run.context.link.close()

    in_real_time(scenario)
