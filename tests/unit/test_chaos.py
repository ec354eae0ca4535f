"""Failures at named points: who is struck, when, and how often."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from spothop import chaos
from spothop.chaos import Chaos
from spothop_agent import chaos as of_agent
from spothop_master import chaos as of_master

POINTS = ("before", "after")


def test_a_plan_is_carried_out_once_and_at_its_turn() -> None:
    made = Chaos(POINTS)
    struck: list[str] = []
    made.at("before", lambda: struck.append("before"))
    made.at("after", lambda: struck.append("after"), nth=2)
    for _ in range(3):
        made.reach("before")
        struck.append("-")
        made.reach("after")
    assert struck == ["before", "-", "-", "after", "-"]


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no chaos point 'later'; there are after, before"):
        Chaos(POINTS).at("later", lambda: None)
    with pytest.raises(ValueError, match="no chaos at time 0"):
        chaos.from_text("after@0=kill", tmp_path, POINTS)
    with pytest.raises(ValueError, match="no chaos action 'wait' in 'after=wait'"):
        chaos.from_text("after=wait", tmp_path, POINTS)


def test_entries_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    made = chaos.from_text("b:no_point=what, a:after=kill", tmp_path, POINTS, program="a")
    (tmp_path / "chaos.after").touch()  # it has struck before
    made.reach("before")
    made.reach("after")


@pytest.mark.parametrize(
    ("text", "number"), [("a:after=kill", signal.SIGKILL), ("a:after=pause", signal.SIGSTOP)]
)
def test_each_action_is_its_signal_and_strikes_once_per_directory(
    text: str, number: int, tmp_path: Path
) -> None:
    def work() -> None:
        chaos.from_text(text, tmp_path, POINTS, program="a").reach("after")
        os._exit(0)

    for expected in (number, None):
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        pid = process.pid
        assert pid is not None
        if expected == signal.SIGSTOP:
            _, status = os.waitpid(pid, os.WUNTRACED)
            assert os.WSTOPSIG(status) == signal.SIGSTOP
            process.kill()
        process.join(30)
        assert (tmp_path / "chaos.after").exists()
        if expected == signal.SIGKILL:
            assert process.exitcode == -signal.SIGKILL
        if expected is None:
            assert process.exitcode == 0


@pytest.mark.parametrize("points", [of_agent.POINTS, of_master.POINTS])
def test_the_programs_name_each_point_once(points: tuple[str, ...]) -> None:
    assert len(points) == len(set(points)) > 4
