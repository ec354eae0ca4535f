"""`make demo`'s program: its promises hold, and however it ends, nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.leftovers import carrying
from support.require import need_torch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo"
SMALL = "--batch 2 --context 16 --width 32 --layers 1 --heads 2 --corpus-mb 0.5 --pause-ms 60"
"""A GPT that takes a core a tenth of the time, and as long for a step: what happens to its VMs must
find it training."""
KEYS = {
    *("preemptions", "noticed", "steps_recomputed_noticed", "steps_recomputed_unnoticed"),
    *("notice_to_commit_s", "kill_to_step_s", "effective_training_time", "saving"),
    "weights_identical",
}


def demo(folder: Path, *options: str, in_terminal: int | None = None) -> subprocess.Popen[str]:
    """Its output goes to a pipe, or to the terminal behind the file descriptor."""
    need_torch()
    terminal = [] if in_terminal is None else ["setsid", "--ctty"]
    return subprocess.Popen(
        [*terminal, sys.executable, "-u", str(DEMO), "--home", str(folder / "demo"), *options],
        cwd=folder,
        stdin=in_terminal,
        stdout=subprocess.PIPE if in_terminal is None else in_terminal,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "DEMO_TEST": str(folder)},  # noqa: TID251  passed on whole, plus a marker
    )


def left_behind(folder: Path) -> list[str]:
    """Command lines of processes that inherited this test's marker."""
    return list(carrying("DEMO_TEST", str(folder)).values())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert left_behind(tmp_path) == []


@pytest.fixture
def hangups() -> Iterator[None]:
    """Children take SIGHUP as usual, even where the tests were started with nohup."""
    before = signal.signal(signal.SIGHUP, lambda *_: None)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("options", "preemptions", "noticed"),
    [
        pytest.param(["--short", "--steps", "400", "--train", SMALL], 3, 1, id="short"),
        pytest.param([], 6, 3, id="whole", marks=pytest.mark.thorough),
    ],
)
def test_the_demo_keeps_its_promises(
    folder: Path, options: list[str], preemptions: int, noticed: int
) -> None:
    with demo(folder, *options) as process:
        output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "All promises held" in output
    assert [line for line in output.splitlines() if len(line.rstrip()) > 80] == []
    report = json.loads((folder / "demo-report.json").read_text(encoding="utf-8"))
    assert report.keys() >= KEYS
    assert report["weights_identical"]
    assert report["preemptions"] >= preemptions
    assert report["noticed"] >= noticed
    assert report["steps_recomputed_noticed"] == 0


@pytest.mark.thorough
def test_ctrl_c_leaves_no_process_behind(folder: Path) -> None:
    with demo(folder, "--steps", "1000", "--train", SMALL) as process:
        assert process.stdout is not None
        guard = threading.Timer(600, process.kill)
        guard.start()
        told = ""
        for line in process.stdout:  # both train, one has been preempted
            told += line
            if line.startswith("> preemption 1"):
                process.send_signal(signal.SIGINT)
            elif line.startswith("cleaning up"):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stdout.read()
        process.wait()
        guard.cancel()
    assert process.returncode == 130, rest
    assert "interrupted" in rest
    assert "newest checkpoint kept" in told  # what it knew by then


@pytest.mark.thorough
@pytest.mark.usefixtures("hangups")
def test_a_closed_terminal_leaves_no_process_behind(folder: Path) -> None:
    ours, its = os.openpty()
    shown = b""
    with demo(folder, in_terminal=its) as process:
        os.close(its)
        guard = threading.Timer(600, process.kill)
        guard.start()
        while b"begins at" not in shown:  # there are VMs, with agents on them
            shown += os.read(ours, 65536)
        os.close(ours)
        process.wait()
        guard.cancel()
    assert process.returncode > 0  # not killed by the signal: it ended the others first
