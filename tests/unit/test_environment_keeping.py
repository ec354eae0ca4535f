"""What becomes of `setup:` where its result is kept: found, made anew, or left alone."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import obstore.store
import pytest

from fakes.attempt_harness import AttemptHarness
from fakes.scripted_process import ScriptedProcess
from fakes.virtual_time import play
from spothop.storage import RemoteStore, StorageDenied, StorageUnavailable
from spothop.wire import MessageReport
from spothop_agent.environment import keeping
from spothop_agent.environment.keeping import SetupCacheOfAttempt
from spothop_agent.environment.key import Machine, of_job, of_result, this_machine
from spothop_agent.environment.manifest import Manifest
from spothop_agent.environment.shelf import Shelf
from spothop_agent.notice_states import NoticeState
from spothop_agent.prepare import Preparation
from spothop_agent.process import Exit
from spothop_agent.state import NoticeSeen, Phase

SETUP = "echo ran >> ../ran; mkdir -p env; echo content > env/file"
CACHE = {"folders": ["env"], "max_bytes": 10**6}


@dataclass
class Job:
    """One job with its storage; `vm` makes VMs of it, of which each has an attempt."""

    root: Path
    store: RemoteStore = field(
        default_factory=lambda: RemoteStore(obstore.store.MemoryStore(), "memory:///")
    )
    attempts: int = 0

    @property
    def shelf(self) -> Shelf:
        return Shelf(self.store, "jobs/job-1", part=1000)

    def vm(self, setup: str = SETUP, **changes: Any) -> AttemptHarness:
        self.attempts += 1
        folder = self.root / str(self.attempts)
        folder.mkdir()
        process: ScriptedProcess | None = changes.pop("process", None)
        run = AttemptHarness(
            folder,
            **{"setup": setup, "setup_cache": CACHE, "attempt": self.attempts, **changes},
            process=process,
        )
        run.store.environments = self.shelf
        return run

    def kept(self) -> list[str]:
        return [key for key in self.keys() if key.endswith(".json")]

    def parts(self) -> list[str]:
        return [key for key in self.keys() if "/parts/" in key]

    def keys(self) -> list[str]:
        return sorted(info.key for info in self.store.scan(""))


async def prepared(run: AttemptHarness) -> Preparation:
    preparation = Preparation(run.context, {"PATH": os.defpath}, random.Random(1))
    await preparation.run()
    await run.context.link.close()
    return preparation


async def trained(run: AttemptHarness) -> None:
    """Until what `setup:` made is kept, or given up."""
    preparation = await prepared(run)
    run.context.state_file.set(phase=Phase.STARTED)
    await preparation.setup_cache.keep(lambda: False)


def ran(run: AttemptHarness) -> bool:
    return (run.context.agent_paths.root / "ran").exists()


def told(run: AttemptHarness) -> str:
    return "\n".join(f"{r.level}: {r.text}" for r in run.reports(MessageReport))


def in_real_time(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """For real shells, which know no virtual time; nothing here waits for a clock."""
    asyncio.run(scenario())


def test_the_second_vm_unpacks_what_the_first_one_made(tmp_path: Path) -> None:
    job = Job(tmp_path)

    async def scenario() -> None:
        first = job.vm()
        await trained(first)
        assert ran(first)
        assert "info: setup_cache: kept env (8 B in 2 files)" in told(first)
        second = job.vm()
        await trained(second)
        assert not ran(second)
        assert (second.context.paths.work / "env/file").read_text() == "content\n"
        assert "info: setup_cache: env (8 B in 2 files), of attempt 1, unpacked in" in told(second)
        assert second.state.prepared == ("bundle", "setup", "data")
        assert len(job.kept()) == 1

    in_real_time(scenario)


def test_without_the_key_nothing_is_kept(tmp_path: Path) -> None:
    job = Job(tmp_path)

    async def scenario() -> None:
        for _ in range(2):
            run = job.vm(setup_cache=None)
            await trained(run)
            assert (run.context.paths.root / "ran").exists()
        assert job.keys() == []

    in_real_time(scenario)


def test_what_names_its_own_path_is_found_on_that_path_only(tmp_path: Path) -> None:
    job = Job(tmp_path)

    async def scenario() -> None:
        script = f"{SETUP}; pwd > env/script"
        await trained(job.vm(script))
        other = job.vm(script)
        await trained(other)
        assert ran(other)
        assert len(job.kept()) == 2  # one for each path
        (tmp_path / "2").rename(tmp_path / "old")
        job.attempts = 1
        same = job.vm(script)
        await trained(same)
        assert not ran(same)

    in_real_time(scenario)


def test_all_attempts_on_a_vm_have_one_path(tmp_path: Path) -> None:
    """What the attempt before has left there is gone."""
    job = Job(tmp_path)

    async def scenario() -> None:
        first = job.vm("mkdir env; pwd > env/path; touch left")
        await trained(first)
        work = first.context.paths.work
        second = AttemptHarness(
            tmp_path / "1", setup="mkdir env", setup_cache=CACHE, attempt=2, state={}
        )
        second.context.state_file.assign(
            second.context.assignment.model_copy(update={"attempt": 2}), ends_at=None
        )
        again = AttemptHarness(tmp_path / "1")
        again.store.environments = job.shelf
        await trained(again)
        assert again.context.paths.work == work
        assert not (work / "left").exists()

    in_real_time(scenario)


def test_what_is_damaged_is_told_and_made_anew(tmp_path: Path) -> None:
    job = Job(tmp_path)

    async def scenario() -> None:
        await trained(job.vm())
        part = job.parts()[0]
        job.store.put(part, b"damaged!")
        second = job.vm()
        await trained(second)
        assert ran(second)
        assert "warning: setup_cache: a part of it does not match its SHA-256" in told(second)
        assert "setup runs instead" in told(second)
        assert part not in job.parts()
        third = job.vm()
        await trained(third)
        assert not ran(third)

    in_real_time(scenario)


def refusing(shelf: Shelf, name: str, error: Exception) -> Shelf:
    """One call of it fails."""

    def call(*_: Any, **__: Any) -> Any:
        raise error

    setattr(shelf, name, call)
    return shelf


def test_a_store_that_refuses_costs_the_job_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = Job(tmp_path).vm()
        refusing(run.store.environments, "find", StorageDenied("no right"))
        await prepared(run)
        assert ran(run)
        assert "warning: setup_cache: no right; setup runs instead" in told(run)

    in_real_time(scenario)


@pytest.mark.parametrize(
    ("error", "waits"), [(StorageDenied("no right"), False), (StorageUnavailable("full"), True)]
)
def test_a_store_that_takes_nothing_is_given_up(
    tmp_path: Path, error: Exception, waits: bool
) -> None:
    async def scenario() -> None:
        job = Job(tmp_path)
        run = job.vm()
        cache = await made(run)
        refusing(run.store.environments, "publish", error)
        began = run.context.now()
        await cache.keep(lambda: False)
        assert (run.context.now() > began) is waits
        assert f"warning: setup_cache: nothing is kept: {error}" in told(run)
        assert job.keys() == []
        await run.context.link.close()

    play(scenario)


async def made(run: AttemptHarness) -> SetupCacheOfAttempt:
    """As after a `setup:`, with a process that trains."""
    folder = run.context.paths.work / "env"
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(os.urandom(5000))
    cache = SetupCacheOfAttempt(run.context, {}, wall=lambda: 0.0)
    await cache.look(1.0)
    run.context.state_file.set(phase=Phase.STARTED)
    return cache


def test_nothing_is_packed_before_the_process_runs(tmp_path: Path) -> None:
    job = Job(tmp_path)

    async def scenario() -> None:
        run = job.vm()
        cache = await made(run)
        run.context.state_file.set(phase=Phase.PREPARED)
        work = asyncio.create_task(cache.keep(lambda: False))
        await asyncio.sleep(1000.0)
        assert job.keys() == []
        run.context.state_file.set(phase=Phase.STARTED)
        await work
        assert len(job.kept()) == 1
        await run.context.link.close()

    play(scenario)


def test_a_save_interrupts_it_and_it_goes_on_afterwards(tmp_path: Path) -> None:
    job = Job(tmp_path)

    async def scenario() -> None:
        run = job.vm()
        cache, asked = await made(run), 0

        def busy() -> bool:
            nonlocal asked
            asked += 1
            return 2 <= asked <= 50

        began = run.context.now()
        await cache.keep(busy)
        assert run.context.now() - began >= 40 * keeping.LOOK_S
        assert len(job.kept()) == 1
        await run.context.link.close()

    play(scenario)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_notice_ends_it_and_nothing_half_done_is_found(tmp_path: Path, at_once: bool) -> None:
    job = Job(tmp_path)

    async def scenario() -> None:
        run = job.vm()
        cache, asked = await made(run), 0

        def busy() -> bool:
            nonlocal asked
            asked += 1
            if asked == 2 or at_once:
                notice = NoticeSeen(
                    event="e", seen=0.0, deadline=30.0, announced=True, state=NoticeState.SEEN
                )
                run.context.state_file.set(notice=notice)
            return False

        await cache.keep(busy)
        assert job.kept() == []
        second = job.vm()
        assert not await SetupCacheOfAttempt(second.context, {}).restore()
        await (await made(second)).keep(lambda: False)
        assert not any("parts/1-" in key for key in job.parts())
        await run.context.link.close()
        await second.context.link.close()

    play(scenario)


def test_one_that_comes_too_slowly_is_given_up(tmp_path: Path) -> None:
    job = Job(tmp_path)

    async def scenario() -> None:
        run = job.vm()
        await (await made(run)).keep(lambda: False)
        second = job.vm()
        second.context.paths.work.mkdir(parents=True)

        async def hang(*_: Any, **__: Any) -> None:
            await asyncio.sleep(1e6)

        cache = SetupCacheOfAttempt(second.context, {})
        second.context.threads.storage = hang  # type: ignore[method-assign]
        assert not await cache.restore()
        assert "warning: setup_cache: not there after 30 s; setup runs instead" in told(second)
        await run.context.link.close()
        await second.context.link.close()

    play(scenario)


@pytest.mark.parametrize(
    ("ended", "left"), [(Exit(code=0, signal=None), 0), (Exit(code=1, signal=None), 1)]
)
def test_a_job_that_has_succeeded_keeps_nothing(tmp_path: Path, ended: Exit, left: int) -> None:
    job = Job(tmp_path)

    async def scenario() -> None:
        run = job.vm()
        await (await made(run)).keep(lambda: False)
        assert len(job.kept()) == 1
        await run.training()
        await run.over(ended)
        assert len(job.kept()) == left

    play(scenario)


def test_what_a_result_depends_on_changes_its_name(tmp_path: Path) -> None:
    job = of_job("pip install x", "abc", ["env"], "")
    assert job != of_job("pip install y", "abc", ["env"], "")
    assert job != of_job("pip install x", "abd", ["env"], "")
    assert job != of_job("pip install x", "abc", ["env", "b"], "")
    assert job != of_job("pip install x", "abc", ["env"], "ami-1")
    machine = Machine(system="ubuntu", libc="2.35", architecture="x", python="3", gpu="")
    other = Machine(system="ubuntu", libc="2.35", architecture="x", python="3", gpu="H100")
    names = {of_result(j, m, p) for j in ("1", "2") for m in (machine, other) for p in ("", "/w")}
    assert len(names) == 8


def test_a_machine_is_told_by_its_system_its_cpu_and_its_gpus(tmp_path: Path) -> None:
    def put(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    bare = this_machine({"PATH": "/nowhere"}, tmp_path)
    assert (bare.system, bare.gpu) == (" ", "")
    put("etc/os-release", 'ID=ubuntu\nVERSION_ID="22.04"\n')
    put("proc/driver/nvidia/version", "NVRM version: 550.1\nGCC\n")
    put("proc/driver/nvidia/gpus/0/information", "Model: \t NVIDIA H100\n")
    put("proc/driver/nvidia/gpus/1/information", "Model: \t NVIDIA H100\n")
    found = this_machine({"PATH": "/nowhere"}, tmp_path)
    assert found.system == "ubuntu 22.04"
    assert found.gpu == "NVIDIA H100 NVRM version: 550.1"


def test_a_manifest_for_another_name_is_damage() -> None:
    """An object that was copied over another one."""
    from spothop_agent.environment.index import Damaged

    store = RemoteStore(obstore.store.MemoryStore(), "memory:///")
    shelf = Shelf(store, "jobs/j")
    part = {"sha256": "0" * 64, "size": 1, "codec": "raw"}
    manifest = Manifest.model_validate(
        {
            "key": "a" * 64,
            "folder": f"1-{'0' * 16}",
            "folders": ["env"],
            "part": 1,
            "parts": [],
            "index": part,
            "size": 0,
            "files": 1,
            "setup_s": 0,
            "made": 0,
        }
    )
    assert shelf.publish(manifest)
    store.put(f"jobs/j/env/{'b' * 64}.json", manifest.to_bytes())
    with pytest.raises(Damaged, match="of another environment"):
        shelf.find(["b" * 64])
