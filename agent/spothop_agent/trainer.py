"""Messages of the training process, and the save requests and stops that go to it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from spothop.wire import MetricsReport, PhaseReport, SaveRequestedReport, StepsReport
from spothop_agent.context import Context
from spothop_agent.pipes import Pipes
from spothop_agent.saves import Ask, Saves

_log = logging.getLogger(__name__)


class Trainer:
    """One per attempt. `on_backup` is called when a backup is in the outbox, `on_resume` with the
    question of a process that wants the newest save in its place."""

    def __init__(
        self,
        context: Context,
        saves: Saves,
        on_backup: Callable[[], object],
        on_resume: Callable[[str], object],
    ) -> None:
        self._context = context
        self._saves = saves
        self._on_backup = on_backup
        self._ranks = dict(context.state.ranks)
        self._stepped = False
        self._handlers: dict[str, Callable[[dict[str, Any]], object]] = {
            "hello": self._hello,
            "phase": self._phase,
            "steps": self._steps,
            "metrics": self._metrics,
            "saving": self._saving,
            "missed": self._missed,
            "backup": lambda message: self._on_backup(),
            "resume": lambda message: on_resume(str(message["token"])),
            "done": lambda message: self._context.note(f"done at step {message['step']}"),
        }
        saves.ranks = set(self._ranks)
        self.pipes = Pipes(context.paths, self.hear)

    @property
    def known(self) -> bool:
        """It has said hello: requests and stops reach it."""
        return bool(self._ranks)

    # --- in -------------------------------------------------------------------------------------

    def hear(self, message: dict[str, Any]) -> None:
        """One message. A malformed one is logged: it must not end the agent."""
        handler = self._handlers.get(str(message.get("t")))
        if handler is None:
            _log.info("unknown message of the training process: %.200r", message)
            return
        try:
            if message["t"] == "hello" and message["rank"] in self._ranks:
                self._saves.restarted()
            self._meet(int(message["rank"]), int(message["pid"]))
            handler(message)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            _log.warning("message of the training process: %r in %.200r", error, message)

    def _meet(self, rank: int, pid: int) -> None:
        """Every message introduces its sender: an agent that is started again hears no hello."""
        if self._ranks.get(rank) == pid:
            return
        self._ranks[rank] = pid
        self._saves.ranks = set(self._ranks)
        self._context.state_file.set(ranks=dict(self._ranks))

    def _hello(self, message: dict[str, Any]) -> None:
        if self._saves.pending is not None:
            self._send(self._saves.pending)  # the process empties its pipe when it opens it

    def _phase(self, message: dict[str, Any]) -> None:
        report = PhaseReport(phase=str(message["phase"]), duration_s=float(message["s"]))
        if message["rank"] == 0:
            self._context.report(report, key=f"phase-{report.phase}")

    def _steps(self, message: dict[str, Any]) -> None:
        report = StepsReport(
            step=int(message["step"]),
            count=int(message["count"]),
            step_s=float(message["step_s"]),
            load_s=float(message["load_s"]),
        )
        self._saves.stepped(report.step, count=report.count, step_s=report.step_s)
        if message["rank"] != 0:
            return
        self._context.progress(report)
        if not self._stepped:
            self._stepped = True
            self._context.link.wake()

    def _metrics(self, message: dict[str, Any]) -> None:
        values = {str(name): float(value) for name, value in message["values"].items()}
        self._context.progress(MetricsReport(step=int(message["step"]), values=values))

    def _saving(self, message: dict[str, Any]) -> None:
        self._context.note(f"saving at step {message['step']} for {message['request']}")

    def _missed(self, message: dict[str, Any]) -> None:
        again = self._saves.missed(
            str(message["request"]), int(message["step"]), now=self._context.now()
        )
        if again is not None:
            self.ask(again)

    # --- out ------------------------------------------------------------------------------------

    def ask(self, ask: Ask) -> None:
        """Request a save, and report that to the master."""
        self._send(ask)
        report = SaveRequestedReport(request=ask.request, save=ask.kind, reason=ask.reason)
        self._context.report(report, key=f"asked-{ask.request}")
        self._context.note(f"asked for {ask.request}: {ask.reason}")

    def _send(self, ask: Ask) -> None:
        self.pipes.send(
            self._ranks,
            {
                "t": "save",
                "request": ask.request,
                "kind": ask.kind.value,
                "at_step": ask.at_step,
                "deadline": ask.deadline,
            },
        )

    def stop(self, reason: str) -> None:
        """The next `enter_step()` ends it; a save that was asked for before comes first."""
        self.pipes.send(self._ranks, {"t": "stop", "reason": reason[:500]})
