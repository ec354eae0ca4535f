"""The setting `chaos` of the master: who is killed, when, and how often."""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path

import pytest

from spothop_master.chaos import from_text
from spothop_master.program import CannotStart, plan_chaos
from spothop_master.settings import MasterSettings


def reach(text: str, home: Path, times: int) -> int:
    """Exit code of a process that comes to `after_launch` so often."""

    def work() -> None:
        chaos = from_text(text, home)
        for _ in range(times):
            chaos.reach("after_launch")

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(30)
    code = process.exitcode
    assert code is not None
    return code


def test_a_kill_strikes_once_per_home(tmp_path: Path) -> None:
    assert reach("after_launch=kill", tmp_path, 1) == -signal.SIGKILL
    assert reach("after_launch=kill", tmp_path, 1) == 0


@pytest.mark.parametrize(("times", "code"), [(1, 0), (2, -signal.SIGKILL)])
def test_it_can_wait_for_the_nth_time(tmp_path: Path, times: int, code: int) -> None:
    assert reach("before_plan=kill, after_launch@2=kill", tmp_path, times) == code


@pytest.mark.parametrize("text", ["after_lunch=kill", "after_launch=wait", "after_launch"])
def test_what_makes_no_sense_is_refused_at_the_start(tmp_path: Path, text: str) -> None:
    with pytest.raises(CannotStart, match="no chaos"):
        plan_chaos(MasterSettings(home=tmp_path, chaos=text))
