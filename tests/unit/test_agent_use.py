"""How much an attempt uses of its VM, and when that is told."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.attempt_harness import OK, AttemptHarness
from fakes.virtual_time import play
from spothop.wire import UseReport
from spothop_agent import use
from spothop_agent.use import Sample, Use, cpu_s, gpu_share


def sample(at: float, used_s: float, gpu: float | None = None) -> Sample:
    return Sample(at=at, cpu_s={7: used_s}, gpu=gpu)


def test_next_to_nothing_of_one_core_is_idle_since_the_sample_before() -> None:
    found = Use()
    assert not found.measured(sample(0.0, 0.0)), "one sample says nothing"
    assert not found.measured(sample(60.0, 3.0))
    assert found.measured(sample(120.0, 5.9))
    assert (found.idle_since, found.reason) == (60.0, "of one CPU core it uses 5 %")
    assert not found.measured(sample(180.0, 5.9)), "told once"
    assert found.idle_since == 60.0
    assert found.measured(sample(240.0, 20.0))
    assert found.idle_since is None


def test_where_there_are_gpus_they_alone_count() -> None:
    found = Use()
    found.measured(sample(0.0, 0.0, gpu=0.0))
    assert found.measured(sample(60.0, 60.0, gpu=0.01))
    assert found.reason == "the GPUs are used 1 %"
    assert found.measured(sample(120.0, 60.0, gpu=0.9))


def test_processes_come_and_go() -> None:
    found = Use()
    found.measured(Sample(at=0.0, cpu_s={1: 50.0, 2: 1.0}, gpu=None))
    assert not found.measured(Sample(at=60.0, cpu_s={2: 1.5, 3: 30.0}, gpu=None))
    assert found.measured(Sample(at=120.0, cpu_s={4: 0.1}, gpu=None))


def test_cpu_time_is_read_from_proc(tmp_path: Path) -> None:
    stat = tmp_path / "5" / "stat"
    stat.parent.mkdir()
    stat.write_text("5 (a (b) c) S " + " ".join(str(n) for n in range(4, 30)))
    (tmp_path / "6").mkdir()
    (tmp_path / "6" / "stat").write_text("6 (short) S 1")
    tick = os.sysconf("SC_CLK_TCK")
    assert cpu_s([5, 6, 7], proc=tmp_path) == {5: pytest.approx((14 + 15) / tick)}
    assert cpu_s([os.getpid()])[os.getpid()] > 0.0


@pytest.mark.parametrize(
    ("out", "share"),
    [("0\n100\n", 0.5), ("7\n", 0.07), ("", None), ("[N/A]\n", None), ("900\n", 1.0)],
)
def test_nvidia_smi_tells_the_mean(out: str, share: float | None) -> None:
    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        assert command[0] == "/usr/bin/nvidia-smi"
        assert options["timeout"] == use.TIMEOUT_S
        return subprocess.CompletedProcess(command, 0, stdout=out)

    assert gpu_share(run, lambda name: f"/usr/bin/{name}") == share


@pytest.mark.parametrize(
    "error",
    [
        OSError("gone"),
        subprocess.TimeoutExpired("smi", 10),
        subprocess.CalledProcessError(9, "smi"),
    ],
)
def test_without_an_answer_there_is_no_gpu(error: Exception) -> None:
    def run(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
        raise error

    assert gpu_share(run, lambda name: name) is None
    assert gpu_share(run, lambda name: None) is None


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    none: Callable[[], None] = lambda: None  # noqa: E731
    monkeypatch.setattr("spothop_agent.attempt.gpu_share", none)


@pytest.mark.parametrize("wanted", [True, False])
def test_the_master_is_told_when_it_changes(tmp_path: Path, wanted: bool) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path, wants_use=wanted).training(step=10)
        await asyncio.sleep(190.0)
        run.process.used_s = 100.0
        await asyncio.sleep(60.0)
        told = [report.idle_s for report in run.reports(UseReport)]
        assert told == ([pytest.approx(60.0, abs=1.0), None] if wanted else [])
        run.process.end(OK)
        await run.over()

    play(scenario)
