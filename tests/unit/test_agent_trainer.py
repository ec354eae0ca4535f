"""What the training process says, and what it is told, through real pipes in virtual time."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from fakes.attempt_harness import AttemptHarness
from fakes.scripted_process import PID
from fakes.virtual_time import play, until
from spothop.training.pipes import LineDecoder, encode, open_fifo
from spothop.wire import (
    MessageReport,
    MetricsReport,
    PhaseReport,
    SaveKind,
    SaveRequestedReport,
    StepsReport,
)
from spothop_agent.saves import Ask, Saves
from spothop_agent.trainer import Trainer


class Ears:
    """A trainer of its own, without an attempt around it."""

    def __init__(self, root: Path) -> None:
        self.run = AttemptHarness(root)
        self.say = self.run.process.say
        policy = self.run.context.assignment.policy
        self.saves = Saves(params=policy, attempt=1, started=self.run.context.now())
        self.bells = 0
        self.trainer = Trainer(self.run.context, self.saves, self._ring, lambda token, beside: None)

    def _ring(self) -> None:
        self.bells += 1

    def heard(self, pid: int = PID) -> list[dict[str, Any]]:
        return self.run.process.heard(pid)

    async def close(self) -> None:
        self.trainer.pipes.close()
        await self.run.context.link.close()


def ask(request: str = "insurance-1", at_step: int | None = None) -> Ask:
    return Ask(
        request=request, kind=SaveKind.INSURANCE, at_step=at_step, deadline=9.0, reason="because"
    )


async def settle() -> None:
    await asyncio.sleep(0.1)


def test_a_request_goes_down_the_pipe_and_to_the_master(tmp_path: Path) -> None:
    async def scenario() -> None:
        ears = Ears(tmp_path)
        assert not ears.trainer.known
        ears.say("hello", v=1)
        await until(lambda: ears.trainer.known)
        ears.trainer.ask(ask())
        assert ears.heard() == [
            {
                "t": "save",
                "request": "insurance-1",
                "kind": "insurance",
                "at_step": None,
                "ranks": [],
                "deadline": 9.0,
                "pid": PID,
            }
        ]
        ears.trainer.ask(ask())  # by an agent that was started again: told once
        assert ears.run.reports(SaveRequestedReport) == [
            SaveRequestedReport(request="insurance-1", save=SaveKind.INSURANCE, reason="because")
        ]
        await ears.close()

    play(scenario)


def test_a_process_that_says_hello_late_gets_the_pending_request(tmp_path: Path) -> None:
    """It empties its pipe when it opens it."""

    async def scenario() -> None:
        ears = Ears(tmp_path)
        ears.saves.pending = ask()
        ears.say("hello", v=1)
        await until(lambda: ears.trainer.known)
        assert [m["request"] for m in ears.heard()] == ["insurance-1"]
        await ears.close()

    play(scenario)


def test_every_message_introduces_its_sender(tmp_path: Path) -> None:
    """An agent that is started again hears no hello; a process that is started again has another
    process id."""

    async def scenario() -> None:
        ears = Ears(tmp_path)
        ears.say("steps", rank=1, pid=77, step=3, count=3, step_s=0.1, load_s=0.0)
        await until(lambda: ears.trainer.known)
        ears.run.process.gone(77)
        ears.say("hello", rank=1, pid=78, v=1)
        await settle()
        assert ears.saves.ranks == set()  # it does not train yet
        ears.say("trains", rank=1, pid=78)
        await settle()
        ears.trainer.stop("r")
        assert [m["pid"] for m in ears.heard(78)] == [78]
        assert ears.run.on_disk().processes == {78: 1}
        assert ears.saves.ranks == {78}
        later = Trainer(ears.run.context, ears.saves, lambda: None, lambda *asked: None)
        assert later.known
        later.pipes.close()
        await ears.close()

    play(scenario)


def test_steps_of_all_ranks_count_and_those_of_the_first_are_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        ears = Ears(tmp_path)
        for rank, step in ((0, 10), (1, 12)):
            ears.say(
                "steps", rank=rank, pid=PID + rank, step=step, count=10, step_s=0.2, load_s=0.1
            )
        await until(lambda: ears.saves.step == 12)
        assert ears.saves.step_s == pytest.approx(0.2)
        assert ears.run.reports(StepsReport) == [
            StepsReport(step=10, count=10, step_s=0.2, load_s=0.1)
        ]
        await ears.close()

    play(scenario)


def test_phases_and_metrics(tmp_path: Path) -> None:
    async def scenario() -> None:
        ears = Ears(tmp_path)
        for rank in (0, 1):
            ears.say("phase", rank=rank, pid=PID + rank, phase="starting", s=2.5)
        ears.say("metrics", step=3, values={"loss": 1})
        await until(lambda: ears.run.reports(MetricsReport))
        assert ears.run.reports(PhaseReport) == [PhaseReport(phase="starting", duration_s=2.5)]
        assert ears.run.reports(MetricsReport) == [MetricsReport(step=3, values={"loss": 1.0})]
        await ears.close()

    play(scenario)


def test_a_value_that_is_not_finite_is_told_to_the_user(tmp_path: Path) -> None:
    async def scenario() -> None:
        ears = Ears(tmp_path)
        ears.say("diverged", step=3, name="loss", value="nan")
        await until(lambda: ears.run.reports(MessageReport))
        [told] = ears.run.reports(MessageReport)
        assert told.level == "warning"
        assert told.text.startswith("loss is nan at step 3")
        await ears.close()

    play(scenario)


def test_names_that_an_older_client_lets_through_are_cut(tmp_path: Path) -> None:
    async def scenario() -> None:
        ears = Ears(tmp_path)
        ears.say("metrics", step=3, values={"n" * 100: 1, "a\0b": 2})
        await until(lambda: ears.run.reports(MetricsReport))
        [report] = ears.run.reports(MetricsReport)
        assert report.values == {"n" * 61 + "...": 1.0, "a\ufffdb": 2.0}
        await ears.close()

    play(scenario)


def test_the_bell_and_the_words_for_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        ears = Ears(tmp_path)
        ears.say("saving", step=5, request="emergency-1")
        ears.say("done", step=6)
        ears.say("backup", id="1")
        await until(lambda: ears.bells)
        assert "saving at step 5 for emergency-1" in ears.run.log()
        assert "done at step 6" in ears.run.log()
        await ears.close()

    play(scenario)


def test_a_rank_that_was_late_is_asked_again_further_ahead(tmp_path: Path) -> None:
    async def scenario() -> None:
        ears = Ears(tmp_path)
        ears.say("hello", v=1)
        await until(lambda: ears.trainer.known)
        ears.saves.pending = ask(at_step=5)
        ears.say("missed", request="another", step=8)
        ears.say("missed", request="insurance-1", step=9)
        await until(lambda: ears.run.reports(SaveRequestedReport))
        again = ears.heard()[-1]
        assert again["request"] != "insurance-1"
        assert again["at_step"] == 13
        assert again["ranks"] == [PID]
        await ears.close()

    play(scenario)


@pytest.mark.parametrize(
    "message",
    [
        {"t": "no such message"},
        {"t": ["a", "list"]},
        {"t": "steps", "rank": 0, "pid": 1},
        {"t": "steps", "rank": "x", "pid": 1, "step": 1, "count": 1, "step_s": 0.1, "load_s": 0},
        {"t": "metrics", "rank": 0, "pid": 1, "step": 1, "values": {"loss": "high"}},
        {"t": "phase", "rank": 0, "pid": 1, "phase": "starting", "s": None},
        {"t": "metrics", "rank": 0, "pid": 1, "step": 1, "values": 7},
        {"t": "steps", "rank": 0, "pid": 1e999, "step": 1, "count": 1, "step_s": 1, "load_s": 0},
        {"t": "steps", "rank": 0, "pid": 1, "step": 1, "count": 1, "step_s": 1e999, "load_s": 0},
        {"t": "steps", "rank": 0, "pid": 1, "step": 2**64, "count": 1, "step_s": 1, "load_s": 0},
        {"t": "metrics", "rank": 0, "pid": 1, "step": 1, "values": {"loss": 1e999}},
        {"t": "metrics", "rank": 0, "pid": 1, "step": 1, "values": {"lo\udcffss": 1}},
        {"t": "phase", "rank": 0, "pid": 1, "phase": "half \ud800", "s": 1},
        {"t": "\ud800"},
        {"t": "hello", "rank": 10**30, "pid": 1},
        {},
    ],
)
def test_what_makes_no_sense_does_not_end_the_agent(
    tmp_path: Path, message: dict[str, Any]
) -> None:
    async def scenario() -> None:
        ears = Ears(tmp_path)
        ears.trainer.hear(message)
        assert ears.run.kinds() == []
        ears.say("backup", id="1")
        await until(lambda: ears.bells)
        await ears.close()

    play(scenario)


def test_a_process_of_an_older_client_is_asked_through_the_pipe_of_its_rank(tmp_path: Path) -> None:
    """The agent was replaced by a newer one while it trained."""

    async def scenario() -> None:
        ears = Ears(tmp_path)
        paths = ears.run.context.paths
        down = open_fifo(paths.down(0))
        steps = {"step": 5, "count": 5, "step_s": 0.1, "load_s": 0.0}
        ears.run.process.say_raw(encode({"t": "steps", "rank": 0, "pid": 77, **steps}))
        await settle()
        assert ears.trainer.known
        ask = ears.saves.last_save("why", now=ears.run.context.now())
        assert ask is not None
        ears.trainer.ask(ask)
        (message,) = LineDecoder().feed(os.read(down, 4096))
        assert (message["pid"], message["request"], message["at_step"]) == (77, ask.request, None)
        os.close(down)
        assert not ears.trainer.known  # it has ended
        await ears.close()

    play(scenario)
