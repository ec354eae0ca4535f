"""I11: a resumed run of an example equals an uninterrupted one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.require import need_torch

ROOT = Path(__file__).parents[2]
GPT = ROOT / "examples" / "gpt"
COUNTER = ROOT / "examples" / "counter"
SMALL = "--batch 2 --context 16 --width 16 --layers 2 --heads 2 --corpus-mb 0.2 --log-every 1"


class Run:
    """One job directory, with the run directory of each attempt beside it, and no agent."""

    def __init__(self, root: Path, example: Path, *, attempt: int = 0) -> None:
        """`attempt`: the newest one that is there already."""
        self.root = root
        self.work = root / "work"
        self.example = example
        self.attempt = attempt
        self.work.mkdir(parents=True, exist_ok=True)

    def train(self, options: str) -> subprocess.CompletedProcess[str]:
        self.attempt += 1
        run_dir = self.root / f"run{self.attempt}"
        (run_dir / "outbox").mkdir(parents=True)
        if self.attempt > 1:
            self._restore(run_dir)
        environ = {"SPOTHOP_RUN_DIR": str(run_dir), "SPOTHOP_JOB_DIR": str(self.work)}
        return subprocess.run(
            [sys.executable, str(self.example / "train.py"), *options.split()],
            cwd=self.work,
            env={**os.environ, **environ},  # noqa: TID251  torch needs the path of its libraries
            capture_output=True,
            text=True,
        )

    def backups(self) -> list[Path]:
        return sorted((self.root / f"run{self.attempt}" / "outbox").iterdir())

    def _restore(self, run_dir: Path) -> None:
        """What the agent does: the newest backup of the attempt before is put back in its place."""
        newest = sorted((self.root / f"run{self.attempt - 1}" / "outbox").iterdir())[-1]
        meta = json.loads((newest / "meta.json").read_text())
        shutil.copy(newest / "payload" / meta["name"], self.work / meta["path"])
        restored = {"path": meta["path"], "step": meta["step"]}
        (run_dir / "restored.json").write_text(json.dumps(restored))


@pytest.fixture(scope="module")
def five_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT that was interrupted: the import of PyTorch is seconds, so all go on from this one."""
    need_torch()
    run = Run(tmp_path_factory.mktemp("gpt") / "run", GPT)
    done = run.train(f"--steps 5 {SMALL}")
    assert done.returncode == 0, done.stderr
    return run.root


def goes_on_from(interrupted: Path, folder: Path) -> Run:
    shutil.copytree(interrupted, folder, ignore=shutil.ignore_patterns("up", "down.*"))  # pipes
    return Run(folder, GPT, attempt=1)


@pytest.mark.thorough
def test_a_resumed_gpt_has_bit_identical_weights(tmp_path: Path, five_steps: Path) -> None:
    whole, hopped = Run(tmp_path / "whole", GPT), goes_on_from(five_steps, tmp_path / "hopped")
    first = whole.train(f"--steps 12 {SMALL}")
    assert first.returncode == 0, first.stderr
    second = hopped.train(f"--steps 12 {SMALL}")
    assert second.returncode == 0, second.stderr
    assert "resumed at step 5" in second.stdout

    def losses(output: str) -> list[str]:
        return [line.split("ms/step")[0].rsplit("  ", 1)[0] for line in output.splitlines()]

    assert losses(first.stdout)[6:13] == losses(second.stdout)[2:9]  # every loss, not only the end
    files = [run.work / "outputs" / "model.pt" for run in (whole, hopped)]
    done = subprocess.run(
        [sys.executable, str(GPT / "weights_hash.py"), *map(str, files)],
        capture_output=True,
        text=True,
        check=True,
    )
    one, other = (line.split()[0] for line in done.stdout.splitlines())
    assert len(one) == 64
    assert one == other


@pytest.mark.thorough
def test_a_checkpoint_of_another_text_is_a_clear_error(tmp_path: Path, five_steps: Path) -> None:
    run = goes_on_from(five_steps, tmp_path / "run")
    other = run.train(f"--steps 6 {SMALL} --corpus-mb 0.1")
    assert other.returncode == 1
    assert "its corpus_hash is" in other.stderr
    assert "resume with the Python version and options" in other.stderr
    assert "Traceback" not in other.stderr


def test_a_resumed_counter_has_the_same_last_link(tmp_path: Path) -> None:
    whole, hopped = Run(tmp_path / "whole", COUNTER), Run(tmp_path / "hopped", COUNTER)
    options = "--step-ms 0 --save-every 5 --payload-kb 3"
    assert whole.train(f"--steps 12 {options}").returncode == 0
    assert [json.loads((b / "meta.json").read_text())["step"] for b in whole.backups()] == [
        5,
        10,
        12,
    ]
    assert hopped.train(f"--steps 7 {options}").returncode == 0
    assert "resumed at step 7" in hopped.train(f"--steps 12 {options}").stdout
    results = [(run.work / "outputs" / "result.json").read_text() for run in (whole, hopped)]
    assert results[0] == results[1]
    assert json.loads(results[0])["step"] == 12


@pytest.mark.parametrize("example", [GPT, COUNTER])
def test_every_line_that_calls_spothop_is_marked(example: Path) -> None:
    lines = (example / "train.py").read_text().splitlines()
    calls = [line for line in lines if "sp." in line or "spothop as sp" in line]
    assert len(calls) == 7  # import, resume, context, log, check, backup, done
    assert all(line.endswith("# spothop") for line in calls)
