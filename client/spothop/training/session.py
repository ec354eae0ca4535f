"""One training process on one VM: counts steps, answers save requests, hands backups over.

Nothing here waits (I6): step timings and metrics coalesce in memory while the pipe is full. What
must not get lost, backups and `done`, is in files of the run directory; the pipe only rings the
bell. Standard library only, and little of it: this is imported by every training script. Time is an
argument (`clock`: CLOCK_MONOTONIC, seconds).
"""

from __future__ import annotations

import json
import os
import time

from spothop.training import outbox, pipes
from spothop.training.channel import Channel
from spothop.training.metrics import Metrics, warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Any

POLL_EVERY_S = 0.005
"""check_save() looks at the down pipe at most this often."""
STOP_POLL_EVERY_S = 0.1
"""enter_step() looks too, more rarely: for scripts that never call check_save()."""
REPORT_EVERY_S = 0.1
"""Step timings and metrics go up at most this often."""
RETRY_EVERY_S = 0.1
"""Control messages that found the pipe full are tried again at most this often."""
STOP_WAITS_S = 10.0
"""A stop lets a pending save request be answered first, but no longer than this."""


class SaveRequest:
    """A save that somebody wants: `at_step` None means at the next check."""

    __slots__ = ("at_step", "id", "kind")

    def __init__(self, id: str, kind: str, at_step: int | None) -> None:
        self.id = id
        self.kind = kind
        self.at_step = at_step

    def due(self, step: int) -> bool:
        return self.at_step is None or step >= self.at_step


class StepContext:
    """The reusable object behind step_context(): entering and leaving it allocates nothing."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._session.enter_step()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:  # a step that raised is not a completed one
            self._session.exit_step()


class Session:
    """The training API bound to one run directory; `run_dir` None makes every call a no-op."""

    __slots__ = (
        "_asked_at",
        "_asked_step",
        "_channel",
        "_checked_step",
        "_clock",
        "_context",
        "_count",
        "_entered_at",
        "_excluded_s",
        "_exited_at",
        "_in_steps_s",
        "_job_dir",
        "_last_id",
        "_loading_s",
        "_mark",
        "_metrics",
        "_metrics_due",
        "_next_poll",
        "_next_report",
        "_next_retry",
        "_on",
        "_pending",
        "_poll_every_s",
        "_report_every_s",
        "_run_dir",
        "_saving",
        "_seen",
        "_started_at",
        "_stop_at",
        "_stop_reason",
        "step",
    )

    def __init__(
        self,
        run_dir: str | None,
        *,
        job_dir: str = ".",
        rank: int = 0,
        clock: Callable[[], float] = time.monotonic,
        age_s: float = 0.0,
        poll_every_s: float = POLL_EVERY_S,
        report_every_s: float = REPORT_EVERY_S,
    ) -> None:
        """`age_s`: how long the process has been running; its init phase began then."""
        self.step = 0
        """Completed steps since the job began."""
        now = clock()
        self._clock = clock
        self._run_dir = run_dir or ""
        self._job_dir = os.path.realpath(job_dir)
        self._poll_every_s = poll_every_s
        self._report_every_s = report_every_s
        self._context = StepContext(self)
        self._channel = Channel(rank=rank, pid=os.getpid())
        # step timings; all of them are times of the clock or durations in seconds
        self._started_at: float | None = now - age_s  # None once the first step was entered
        self._entered_at: float | None = None  # None outside a step
        self._exited_at = now
        self._mark = now  # a periodic save began here at the earliest
        self._excluded_s = 0.0  # saves since the last exit_step(): they are not data loading
        self._count = 0
        self._in_steps_s = self._loading_s = 0.0
        self._next_report = self._next_poll = self._next_retry = self._metrics_due = now
        self._metrics = Metrics()
        # saves
        self._pending: SaveRequest | None = None
        self._saving: SaveRequest | None = None  # check_save() was true, backup() is to come
        self._seen = ""  # id of the newest request: the same one again is no new one
        self._asked_at = -1.0
        self._asked_step = 0
        self._checked_step = -1  # newest step whose check was answered, by a no or by a backup
        self._last_id = 0
        self._stop_at: float | None = None
        self._stop_reason = ""
        self._on = False
        if run_dir:
            self._open()

    def _open(self) -> None:
        if not os.path.isdir(self._run_dir):
            warn(f"SPOTHOP_RUN_DIR={self._run_dir} is no folder; running without spothop")
            return
        self._on = True
        try:
            self._channel.open(self._run_dir)
        except OSError as error:  # backups still reach the agent through the outbox
            warn(f"no pipe to the agent, save requests will not arrive: {error}")
        self._channel.send({"t": "hello", "v": pipes.VERSION})

    # --- steps ----------------------------------------------------------------------------------

    def step_context(self, step: int | None = None) -> StepContext:
        """The context of one step; `step` sets how many steps were completed before it."""
        if step is not None:
            self.step = step
        return self._context

    def enter_step(self) -> None:
        """A step begins. Raises SystemExit(0) after a stop, once a pending save was answered."""
        if not self._on:
            return
        now = self._clock()
        if now > self._next_poll + STOP_POLL_EVERY_S:
            self._poll(now)
        if self._stop_at is not None:
            self._stop(now)
        if self._started_at is not None:
            self._channel.send(
                {"t": "phase", "phase": "init", "s": round(now - self._started_at, 6)}
            )
            self._started_at = None
        elif self._asked_at > self._exited_at:  # asked to save, but another rank does it
            self._loading_s += self._asked_at - self._exited_at
        else:
            self._loading_s += now - self._exited_at - self._excluded_s
        self._excluded_s = 0.0
        self._entered_at = now

    def exit_step(self) -> None:
        """A step is completed. Raises RuntimeError without an enter_step() before it."""
        if not self._on:
            return
        now = self._clock()
        if self._entered_at is None:
            raise RuntimeError("exit_step() without enter_step(); or use `with step_context():`")
        self.step += 1
        self._count += 1
        self._in_steps_s += now - self._entered_at
        self._entered_at = None
        self._exited_at = self._mark = now
        if now >= self._next_report:
            self._report(now)

    def _report(self, now: float) -> bool:
        """Step timings and metrics go up, or stay for the next time; True when nothing stays."""
        self._next_report = now + self._report_every_s
        if self._count:
            steps = {
                "t": "steps",
                "step": self.step,
                "count": self._count,
                "step_s": round(self._in_steps_s / self._count, 9),
                "load_s": round(max(0.0, self._loading_s) / self._count, 9),
            }
            if not self._channel.offer(steps):
                return False
            self._count = 0
            self._in_steps_s = self._loading_s = 0.0
        return self._metrics.offer(self._channel, self.step)

    def _stop(self, now: float) -> None:
        assert self._stop_at is not None
        if self._pending is not None and now < self._stop_at + STOP_WAITS_S:
            return  # the save that was asked for before the stop comes first
        warn(f"stopping at step {self.step}: {self._stop_reason}")
        raise SystemExit(0)

    # --- saves ----------------------------------------------------------------------------------

    def check_save(self) -> bool:
        """Is a save wanted now? True once per request; call it between steps."""
        if not self._on:
            return False
        now = self._clock()
        if now >= self._next_poll:
            self._poll(now)
        request = self._pending
        if request is None or not request.due(self.step):
            self._checked_step = self.step
            return False
        self._saving, self._pending = request, None
        self._asked_at = now
        self._asked_step = self.step
        self._report(now)
        self._channel.send({"t": "saving", "request": request.id, "step": self.step})
        return True

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Hand a saved file or directory over; it is renamed away at once.

        Raises FileNotFoundError and ValueError (see `outbox.locate`), OSError from a full disk.
        """
        if not self._on:
            outbox.check_exists(path)
            return
        began = self._clock()
        self._poll(began)
        relative = outbox.locate(path, job_dir=self._job_dir)
        request, step, save_began = self._answers()
        self._last_id = max(int(began * 1e9), self._last_id + 1)
        meta = {
            "v": 1,
            "id": f"{self._last_id:020d}-{self._channel.pid}",
            "name": os.path.basename(relative),
            "path": relative,
            "is_dir": os.path.isdir(os.path.join(self._job_dir, relative)),
            "step": step,
            "kind": request.kind if request else "periodic",
            "request": request.id if request else None,
            "delta_s": round(max(0.0, began - save_began), 6),
            "mono": began,
        }
        outbox.publish(meta, job_dir=self._job_dir, outbox=os.path.join(self._run_dir, "outbox"))
        self._report(began)
        self._channel.send(
            {"t": "backup", **{key: meta[key] for key in ("id", "step", "kind", "request")}}
        )
        if request is self._pending:
            self._pending = None
        self._saving = None
        self._asked_at = -1.0
        self._checked_step = max(self._checked_step, step)
        ended = self._clock()
        self._excluded_s += ended - max(save_began, self._exited_at)
        self._mark = ended

    def _answers(self) -> tuple[SaveRequest | None, int, float]:
        """The request that a backup made now answers, the step it holds, and when its save began.

        A request that arrived while the save was running is answered by it too, if no step was
        completed since: a save at the next check would hold the same state.
        """
        saving = self._saving
        if saving is not None and self._asked_step != self.step:
            return saving, self._asked_step, self._asked_at
        began = self._mark if saving is None else self._asked_at
        if self._pending is not None and self._pending.due(self.step):
            return self._pending, self.step, began
        return saving, self.step, began

    def _poll(self, now: float) -> None:
        self._next_poll = now + self._poll_every_s
        if now >= self._next_retry and not self._channel.flush():
            self._next_retry = now + RETRY_EVERY_S
        for msg in self._channel.receive():
            if msg.get("t") == "save":
                self._take_request(msg)
            elif msg.get("t") == "stop" and self._stop_at is None:
                self._stop_at = now
                self._stop_reason = str(msg.get("reason", ""))

    def _take_request(self, msg: Mapping[str, Any]) -> None:
        """The newer request replaces the older one, but nothing lesser replaces an emergency.

        With `at_step` every rank saves at its first check at or after that step; a rank that has
        had such a check already would save another step than the rest: it answers `missed`.
        """
        request_id, kind, at_step = msg.get("request"), msg.get("kind"), msg.get("at_step")
        if not (isinstance(request_id, str) and isinstance(kind, str)) or request_id == self._seen:
            return
        if self._pending is not None and self._pending.kind == "emergency" != kind:
            return
        self._seen = request_id
        if isinstance(at_step, int) and self._checked_step >= at_step:
            self._channel.send({"t": "missed", "request": request_id, "step": self.step})
            return
        self._pending = SaveRequest(request_id, kind, at_step if isinstance(at_step, int) else None)

    def latest_checkpoint(self) -> str | None:
        """Absolute path of what was restored, or None. Seeds the counter before the first step.

        Raises RuntimeError when the agent's note about it cannot be read: a job must not begin
        again from nothing without anybody noticing.
        """
        if not self._on:
            return None
        note = os.path.join(self._run_dir, "restored.json")
        try:
            with open(note, "rb") as file:
                restored = json.loads(file.read())
            path, step = os.path.join(self._job_dir, restored["path"]), restored.get("step")
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RuntimeError(
                f"{note} cannot be read ({error!r}); start the attempt again to restore anew"
            ) from error
        if self._started_at is not None and isinstance(step, int):
            self.step = step
        return path

    # --- the rest -------------------------------------------------------------------------------

    def log(self, values: Mapping[str, Any]) -> None:
        """Keep the newest value of each metric; at most one message every 100 ms goes up.

        Raises ValueError for what is no number.
        """
        self._metrics.update(values)
        now = self._clock()
        if self._on and now >= self._metrics_due:
            self._metrics_due = now + self._report_every_s
            self._metrics.offer(self._channel, self.step)

    def done(self) -> None:
        """The job has done all its work: exit code 0 is success from here on."""
        if not self._on:
            return
        with open(os.path.join(self._run_dir, "done"), "w"):
            pass
        self._report(self._clock())
        self._channel.send({"t": "done", "step": self.step})

    def close(self, *, tries: int = 10, pause: Callable[[float], None] = time.sleep) -> None:
        """At exit: try to get rid of what waits, `tries` times, 10 ms apart."""
        for _ in range(tries):
            if not self._on or (self._channel.flush() and self._report(self._clock())):
                return
            pause(0.01)

    def after_fork(self) -> None:
        """In a forked child, such as a data loader's worker: it is not the process that trains."""
        self._on = False
        self._channel.close()
