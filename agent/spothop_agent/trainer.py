"""Messages of the training process, and the save requests and stops that go to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from spothop.wire import (
    MAX_METRIC_NAME,
    MAX_METRICS,
    MetricsReport,
    PhaseReport,
    SaveRequestedReport,
    StepsReport,
    plain_text,
)
from spothop_agent.context import Context
from spothop_agent.pipes import Pipes
from spothop_agent.saves import Ask, Saves
from spothop_agent.sendable import fault_of

TRAINS = frozenset({"trains", "phase", "steps", "saving", "missed"})
"""Who says this trains: it counts among those that save together."""

_log = logging.getLogger(__name__)


class Trainer:
    """One per attempt. `on_backup` is called when a backup is in the outbox, `on_resume` with the
    question of a process that wants the newest save in its place and whether another one trains,
    `on_restart` when the script was started again inside the attempt, with the moment. `on_sign`
    with the kind of each message, when it is dealt with. `on_stopping` when a process has heard a
    stop, with the seconds for which it lets the save that was asked for before it be made."""

    def __init__(
        self,
        context: Context,
        saves: Saves,
        on_backup: Callable[[], object],
        on_resume: Callable[[str, bool], object],
        on_restart: Callable[[float], object] = lambda at: None,
        on_sign: Callable[[str], object] = lambda kind: None,
        on_stopping: Callable[[float], object] = lambda wait_s: None,
    ) -> None:
        self._context = context
        self._saves = saves
        self._on_backup = on_backup
        self._on_resume = on_resume
        self._on_restart = on_restart
        self._on_sign = on_sign
        self._on_stopping = on_stopping
        self._processes = dict(context.state.processes)
        self._training = list(context.state.training)
        self._stepped = False
        self._handlers: dict[str, Callable[[dict[str, Any]], object]] = {
            "hello": self._hello,
            "phase": self._phase,
            "steps": self._steps,
            "metrics": self._metrics,
            "diverged": self._diverged,
            "saving": self._saving,
            "missed": self._missed,
            "trains": lambda message: None,
            "backup": lambda message: self._on_backup(),
            "resume": self._resume,
            "stopping": lambda message: self._on_stopping(float(message["wait_s"])),
            "done": lambda message: self._context.note(f"done at step {message['step']}"),
        }
        saves.ranks = set(self._training)
        self.pipes = Pipes(context.paths, self.hear)
        self.refresh()

    @property
    def known(self) -> bool:
        """A process that lives has said hello: requests and stops reach it."""
        self.refresh()
        return bool(self._processes)

    # --- in -------------------------------------------------------------------------------------

    def hear(self, message: dict[str, Any]) -> None:
        """One message. A malformed one is logged: it must not end the agent."""
        if fault := fault_of(message):
            _log.warning("message of the training process: %s in %.200r", fault, message)
            return
        handler = self._handlers.get(str(message.get("t")))
        if handler is None:
            _log.info("unknown message of the training process: %.200r", message)
            return
        try:
            if message["t"] == "hello":
                self._begin_anew(int(message["pid"]), float(message.get("at", 0.0)))
            self._meet(int(message["pid"]), int(message["rank"]), str(message["t"]))
            handler(message)
            self._on_sign(str(message["t"]))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            _log.warning("message of the training process: %r in %.200r", error, message)

    def _meet(self, pid: int, rank: int, kind: str) -> None:
        """Every message introduces its sender: an agent that is started again hears no hello. Who
        only says hello, such as a launcher or a worker that loads data, does not train."""
        before = (len(self._processes), len(self._training))
        if pid not in self._processes:
            self.pipes.meet(pid, rank)
            self._processes[pid] = rank
        if kind in TRAINS and pid not in self._training:
            self._training.append(pid)
        if (len(self._processes), len(self._training)) != before or kind == "hello":
            self._note()

    def _begin_anew(self, pid: int, at: float) -> None:
        """The same process (execv), or the first one after all that trained have ended."""
        trained = bool(self._training)
        if pid in self._processes:
            self._drop(pid)
        self.refresh()
        if trained and not self._training:
            self._saves.restarted()
            self._on_restart(at)

    def refresh(self) -> None:
        """Forget the processes that have ended: nobody waits for them."""
        gone = [pid for pid in self._processes if not self.pipes.lives(pid)]
        for pid in gone:
            self._drop(pid)
            self.pipes.forget(pid)
        if gone:
            self._note()

    def _drop(self, pid: int) -> None:
        self._processes.pop(pid, None)
        if pid in self._training:
            self._training.remove(pid)

    def _note(self) -> None:
        self._saves.ranks = set(self._training)
        self._context.state_file.set(
            processes=dict(self._processes), training=tuple(self._training)
        )

    def _leads(self, message: dict[str, Any]) -> bool:
        """Its steps are told to the master: those of the lowest rank, of several without one those
        of the first."""
        rank = self._processes.get
        return int(message["pid"]) == min(self._training, key=lambda pid: rank(pid, 0))

    def _hello(self, message: dict[str, Any]) -> None:
        self._saves.world = max(1, int(message.get("world", 1)))
        pending = self._saves.pending
        if pending is not None:
            self._send(pending, [int(message["pid"])])  # it empties its pipe when it opens it

    def _phase(self, message: dict[str, Any]) -> None:
        report = PhaseReport(phase=str(message["phase"]), duration_s=float(message["s"]))
        if self._leads(message):
            self._context.report(report, key=f"phase-{report.phase}")

    def _steps(self, message: dict[str, Any]) -> None:
        report = StepsReport(
            step=int(message["step"]),
            count=int(message["count"]),
            step_s=float(message["step_s"]),
            load_s=float(message["load_s"]),
        )
        self._saves.stepped(report.step, count=report.count, step_s=report.step_s)
        if not self._leads(message):
            return
        self._context.progress(report)
        if not self._stepped:
            self._stepped = True
            self._context.link.wake()

    def _metrics(self, message: dict[str, Any]) -> None:
        values = [
            (plain_text(str(name), MAX_METRIC_NAME), float(value))
            for name, value in message["values"].items()
        ]
        for begin in range(0, len(values), MAX_METRICS):
            some = dict(values[begin : begin + MAX_METRICS])
            self._context.progress(MetricsReport(step=int(message["step"]), values=some))

    def _diverged(self, message: dict[str, Any]) -> None:
        self._context.tell_user(
            f"{plain_text(str(message['name']), MAX_METRIC_NAME)} is {str(message['value'])[:8]} at"
            f" step {int(message['step'])}: charts and lists show its last finite value",
            level="warning",
        )

    def _saving(self, message: dict[str, Any]) -> None:
        self._context.note(f"saving at step {message['step']} for {message['request']}")

    def _missed(self, message: dict[str, Any]) -> None:
        again = self._saves.missed(
            str(message["request"]),
            int(message["step"]),
            now=self._context.now(),
            missing=[int(pid) for pid in message.get("missing", ())],
        )
        if again is not None:
            self.ask(again)

    def _resume(self, message: dict[str, Any]) -> None:
        self.refresh()
        others = [pid for pid in self._training if pid != int(message["pid"])]
        self._on_resume(str(message["token"]), bool(others))

    # --- out ------------------------------------------------------------------------------------

    def ask(self, ask: Ask) -> None:
        """Request a save, and report that to the master."""
        self._send(ask)
        report = SaveRequestedReport(request=ask.request, save=ask.kind, reason=ask.reason)
        self._context.report(report, key=f"asked-{ask.request}")
        self._context.note(f"asked for {ask.request}: {ask.reason}")

    def _send(self, ask: Ask, to: Iterable[int] | None = None) -> None:
        self.pipes.send(
            [*self._processes] if to is None else to,
            {
                "t": "save",
                "request": ask.request,
                "kind": ask.kind.value,
                "at_step": ask.at_step,
                "ranks": list(ask.ranks),
                "deadline": ask.deadline,
            },
        )

    def stop(self, reason: str) -> None:
        """The next `enter_step()` ends it; a save that was asked for before comes first."""
        self.pipes.send([*self._processes], {"t": "stop", "reason": reason[:500]})
