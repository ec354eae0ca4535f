"""One training process on one VM: counts steps, answers save requests, hands backups over.

Nothing here waits (I6): step timings and metrics coalesce in memory while the pipe is full. What
must not get lost, backups and `done`, is in files of the run directory; the message in the
pipe only tells the agent to look there. Standard library only, and little of it: this is imported
by every training script. Time is an argument (`clock`: CLOCK_MONOTONIC, seconds).
"""

from __future__ import annotations

import os
import time
from _thread import allocate_lock, get_ident

from spothop.training import outbox, pipes, resume, shards
from spothop.training.agreement import Agreement
from spothop.training.channel import Channel
from spothop.training.contexts import Save, StepContext
from spothop.training.metrics import Metrics, warn
from spothop.training.requests import Begun, SaveRequests
from spothop.training.steps import StepTimes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from spothop.training.shards import Shard

POLL_EVERY_S = 0.005
"""check_save() looks at the down pipe at most this often."""
STOP_POLL_EVERY_S = 0.1
"""enter_step() looks too, more rarely: for scripts that never call check_save()."""
REPORT_EVERY_S = 0.1
"""Step timings and metrics go up at most this often."""
RETRY_EVERY_S = 0.1
"""Control messages that found the pipe full are tried again at most this often."""
MAX_STEP = 2**63 - 1
"""What a database counts up to."""
STOP_WAITS_S = 10.0
"""A stop lets a pending save request be answered first, but no longer than this..."""
STOP_WAITS_CHECKS = 2
"""...and than so many times what lay between the newest two checks, for scripts that check every n
steps,..."""
STOP_WAITS_MOST_S = 600.0
"""...which is bounded, too..."""
STOP_WAITS_STEPS = 3
"""...and than so many steps, where several processes have a step ahead for it: it may be slow."""


class Session:
    """The training API bound to one run directory; `run_dir` None makes every call a no-op."""

    __slots__ = (
        "_beside_trainer",
        "_channel",
        "_check_gap_s",
        "_checked_at",
        "_checks",
        "_clock",
        "_context",
        "_id_lock",
        "_job_dir",
        "_last_id",
        "_metrics",
        "_metrics_due",
        "_next_poll",
        "_next_report",
        "_next_retry",
        "_on",
        "_poll_every_s",
        "_quiet",
        "_rank",
        "_report_every_s",
        "_requests",
        "_run_dir",
        "_saves",
        "_stop_at",
        "_stop_reason",
        "_stop_waits",
        "_thread",
        "_times",
        "_world",
        "step",
    )

    def __init__(
        self,
        run_dir: str | None,
        *,
        job_dir: str = ".",
        rank: int = 0,
        world: int = 1,
        pid: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        age_s: float = 0.0,
        quiet: bool = False,
        beside_trainer: bool = False,
        poll_every_s: float = POLL_EVERY_S,
        report_every_s: float = REPORT_EVERY_S,
    ) -> None:
        """`age_s`: how long the process has been running; its start-up began then. `quiet`: the
        agent hears of it at its first step, check or done. Before that a backup of it is found in
        the outbox: a child that only saves must not take what its parent is asked.
        `beside_trainer`: its parent trains already, so nothing may be put back under it."""
        self.step = 0
        """Completed steps since the job began."""
        now = clock()
        self._clock = clock
        self._run_dir = run_dir or ""
        self._beside_trainer = beside_trainer
        self._rank, self._world = rank, world
        self._job_dir = os.path.realpath(job_dir)
        self._poll_every_s = poll_every_s
        self._report_every_s = report_every_s
        self._context = StepContext(self)
        pid = os.getpid() if pid is None else pid
        self._channel = Channel(rank=rank, pid=pid)
        self._times = StepTimes(now - age_s, now=now)
        self._requests = SaveRequests(Agreement(self._run_dir, pid), self._missed)
        self._checks = False
        self._checked_at = now
        self._check_gap_s = 0.0  # between the newest two checks, or what lies before the first
        self._next_report = self._next_poll = self._next_retry = self._metrics_due = now
        self._metrics = Metrics()
        self._last_id = 0
        self._id_lock = allocate_lock()
        self._saves: dict[int, Save] = {}  # by the thread that is in its block
        self._thread = 0  # that trains
        self._stop_at: float | None = None
        self._stop_reason = ""
        self._stop_waits: float | None = None
        self._on = False
        self._quiet = quiet
        if run_dir:
            self._open()

    def _open(self) -> None:
        if not os.path.isdir(self._run_dir):
            warn(f"SPOTHOP_RUN_DIR={self._run_dir} is no folder; running without spothop")
            return
        self._on = True
        if not self._quiet:
            self._say_hello()

    def _say_hello(self) -> None:
        """Not in vain: opening the pipes drains them, which only the process that trains may do."""
        self._quiet = False
        try:
            self._channel.open(self._run_dir)
        except OSError as error:  # backups still reach the agent through the outbox
            warn(f"no pipe to the agent, save requests will not arrive: {error}")
        self._channel.send(
            {"t": "hello", "v": pipes.VERSION, "world": self._world, "at": self._clock()}
        )

    # --- steps ----------------------------------------------------------------------------------

    def step_context(self, step: int | None = None) -> StepContext:
        """The context of one step; `step` sets how many steps were completed before it."""
        if step is not None:
            self.step = _whole(step, "step_context")
        return self._context

    def enter_step(self) -> None:
        """A step begins. Raises SystemExit(0) after a stop, once a pending save was answered."""
        if not self._on:
            return
        if self._quiet:
            self._say_hello()
        now = self._clock()
        if now > self._next_poll + STOP_POLL_EVERY_S:
            self._poll(now)
        if self._stop_at is not None:
            self._stop(now)
        starting_s = self._times.enter(now, self._requests.asked_at)
        if starting_s is not None:
            self._thread = get_ident()
            self._channel.send({"t": "phase", "phase": "starting", "s": round(starting_s, 6)})

    def exit_step(self) -> None:
        """A step is completed. Raises RuntimeError without an enter_step() before it."""
        if not self._on:
            return
        now = self._clock()
        self._times.exit(now)
        self.step += 1
        if now >= self._next_report:
            self._report(now)

    def _report(self, now: float) -> bool:
        """Step timings and metrics go up, or stay for the next time; True when nothing stays."""
        self._next_report = now + self._report_every_s
        steps = self._times.message(self.step)
        if steps is not None:
            if not self._channel.offer(steps):
                return False
            self._times.clear()
        return self._metrics.offer(self._channel, self.step)

    def _stop(self, now: float) -> None:
        assert self._stop_at is not None
        self._requests.settle(self.step)
        request = self._requests.pending
        if request is not None:  # the save that was asked for before the stop comes first
            ahead = 0 if request.at_step is None else request.at_step - self.step
            if now < self._stop_at + self._stop_waits_s() or 0 < ahead <= STOP_WAITS_STEPS:
                return
            waited = f"no check_save() for {now - self._checked_at:.0f} s"
            warn(f"stopping without the save that was asked for: {waited}")
        warn(f"stopping at step {self.step}: {self._stop_reason}")
        raise SystemExit(0)

    def _stop_waits_s(self) -> float:
        """From a stop until a pending save is given up; told to the agent, which waits as long."""
        if self._stop_waits is None:
            checks_s = STOP_WAITS_CHECKS * self._check_gap_s if self._checks else 0.0
            self._stop_waits = min(STOP_WAITS_MOST_S, max(STOP_WAITS_S, checks_s))
            self._channel.send({"t": "stopping", "wait_s": round(self._stop_waits, 3)})
        return self._stop_waits

    # --- saves ----------------------------------------------------------------------------------

    def check_save(self) -> bool:
        """Is a save wanted now? True once per request; call it between steps."""
        if not self._on:
            return False
        if self._quiet:
            self._say_hello()
        now = self._clock()
        if now >= self._next_poll:
            if not self._checks:  # the agent knows from it that this trains, and can be asked
                self._checks = True
                self._channel.send({"t": "trains"})
            self._check_gap_s, self._checked_at = now - self._checked_at, now
            self._poll(now)
        requests = self._requests
        if requests.pending is None:  # nearly always: without a call
            requests.checked_step = self.step
            return False
        request = requests.begin(self.step, now)
        if request is None:
            return False
        self._report(now)
        self._channel.send({"t": "saving", "request": request.id, "step": self.step})
        return True

    def saving(self, step: int | None = None, *, shard: Shard = False) -> Save:
        """A save begins, of the newest step unless `step` says another; see `Save`."""
        if not self._on:
            return Save(self, None, shard)
        now = self._clock()
        self._poll(now)
        if step is None or (step := _whole(step, "saving")) == self.step:
            return Save(self, self._requests.claim(self.step, now), shard)
        return Save(self, Begun(None, step, now), shard)

    def enter_save(self, save: Save) -> None:
        self._saves[get_ident()] = save

    def leave_save(self, begun: Begun | None) -> None:
        """The block is left: training goes on, the save perhaps in the background."""
        self._saves.pop(get_ident(), None)
        if begun is not None and self._thread in (0, get_ident()):
            self._times.saved(begun.at, self._clock())

    def save_failed(self, begun: Begun) -> None:
        """It raised: what it was to answer is asked for again at the next check."""
        self._requests.again(begun)

    def backup(
        self, path: str | os.PathLike[str], step: int | None = None, *, shard: Shard = False
    ) -> None:
        """Hand a saved file or directory over; it is renamed away at once.

        `step`: which one it holds, where that is not the newest; `shard`: see `shards.part`. Raises
        FileNotFoundError and ValueError (see `outbox.locate`), ValueError too in another thread
        than the one that trains when nothing says of which step it is, OSError from a full disk.
        """
        if not self._on:
            outbox.check_exists(path)
            return
        save = self._saves.get(get_ident())
        if save is not None and step is None:
            save.backup(path)
            return
        if step is not None:
            step = _whole(step, "backup")
        elif self._thread not in (0, get_ident()):
            raise ValueError(
                f"backup(path={os.fspath(path)!r}) in another thread than the one that trains: its"
                " step is not known; begin the save with `with sp.saving() as save:` in the"
                " training loop and call save.backup(path) here, or pass step=..."
            )
        self._poll(self._clock())
        begun = self._requests.answered(self.step, self._times.save_from, named=step)
        self.hand_over(path, begun, shard)

    def hand_over(
        self, path: str | os.PathLike[str], begun: Begun | None, shard: Shard = False
    ) -> None:
        """The backup of this save; raises as `backup` does."""
        if not self._on or begun is None:
            outbox.check_exists(path)
            return
        now = self._clock()
        part = shards.part(shard, self._rank, self._world)
        if shard is False:
            shards.claim_whole(
                *(self._run_dir, begun.step),
                rank=self._rank,
                world=self._world,
                pid=self._channel.pid,
            )
        relative = outbox.locate(path, job_dir=self._job_dir)
        request = begun.request
        meta = {
            "v": 1,
            "id": self._new_id(now),
            "name": os.path.basename(relative),
            "path": relative,
            "is_dir": os.path.isdir(os.path.join(self._job_dir, relative)),
            "step": begun.step,
            "kind": request.kind if request else "periodic",
            "request": request.id if request else None,
            "delta_s": round(max(0.0, now - begun.at), 6) if begun.at else 0.0,
            "exact": begun.exact,
            "began": begun.at,
            "mono": now,
        }
        if part is not None:
            meta |= {"part": part[0], "parts": part[1]}
        outbox.publish(meta, job_dir=self._job_dir, outbox=os.path.join(self._run_dir, "outbox"))
        trains = self._thread in (0, get_ident())  # 0: no step yet, so nothing runs beside us
        if trains:
            self._report(now)
        self._channel.send(
            {"t": "backup", **{key: meta[key] for key in ("id", "step", "kind", "request")}}
        )
        self._requests.end(begun)
        if not self._saves.get(get_ident()) and begun.at and trains:
            self._times.saved(begun.at, self._clock())

    def _new_id(self, now: float) -> str:
        """In order of acceptance; two threads never get the same."""
        with self._id_lock:
            self._last_id = max(int(now * 1e9), self._last_id + 1)
            return f"{self._last_id:020d}-{self._channel.pid}"

    def _poll(self, now: float) -> None:
        self._next_poll = now + self._poll_every_s
        if now >= self._next_retry and not self._channel.flush():
            self._next_retry = now + RETRY_EVERY_S
        for msg in self._channel.receive():
            if msg.get("t") == "save":
                self._requests.take(msg)
            elif msg.get("t") == "stop" and self._stop_at is None:
                self._stop_at = now
                self._stop_reason = str(msg.get("reason", ""))

    def _missed(self, request: str, missing: Sequence[int]) -> None:
        """`missing`: process ids of those who have not taken it; none if it was this one."""
        self._channel.send(
            {"t": "missed", "request": request, "step": self.step, "missing": [*missing]}
        )

    def latest_checkpoint(self, *, pause: Callable[[float], None] = time.sleep) -> str | None:
        """Absolute path of the newest accepted save, put back in its place, or None. Seeds the
        counter before the first step.

        At the start of an attempt the agent has restored it. In a process that was started again
        inside the attempt this waits until the agent has put it back. What this process itself may
        be writing is left alone: after its first step nothing that lies there is replaced.

        Raises RuntimeError when the agent's note about it cannot be read, when the save cannot be
        put back, or when the agent does not answer: a job must not begin again from nothing without
        anybody noticing.
        """
        if not self._on:
            return None
        run_dir, job_dir = self._run_dir, self._job_dir
        waiting = resume.published(run_dir)
        note = resume.read(run_dir)
        if self._may_replace(note) and not resume.is_in_place(
            note, waiting=waiting, job_dir=job_dir
        ):
            if self._quiet:
                self._say_hello()
            note = resume.put_back(run_dir, self._channel, clock=self._clock, pause=pause)
        if note is None or note["path"] is None:
            return None
        step = note.get("step")
        if not self._times.started and isinstance(step, int):
            self.step = step
        return shards.place(note, job_dir, self._rank, self._world)

    def _may_replace(self, note: dict[str, Any] | None) -> bool:
        """Nobody who lives may be writing there: before the first step, or where nothing lies."""
        if note is None or note["path"] is None:
            return not self._beside_trainer
        free = not os.path.lexists(os.path.join(self._job_dir, note["path"]))
        return not self._beside_trainer and (free or not self._times.started)

    # --- the rest -------------------------------------------------------------------------------

    def log(self, values: Mapping[str, Any]) -> None:
        """Keep the newest value of each metric; at most one message every 100 ms goes up.

        Raises ValueError for what is no number.
        """
        diverged = self._metrics.update(values)
        if not self._on or self._quiet:
            return
        for name, value in diverged.items():
            self._channel.send(
                {"t": "diverged", "step": self.step, "name": name, "value": str(value)}
            )
        now = self._clock()
        if now >= self._metrics_due:
            self._metrics_due = now + self._report_every_s
            self._metrics.offer(self._channel, self.step)

    def done(self) -> None:
        """The job has done all its work: exit code 0 is success from here on."""
        if not self._on:
            return
        if self._quiet:
            self._say_hello()
        with open(os.path.join(self._run_dir, "done"), "w"):
            pass
        self._report(self._clock())
        self._channel.send({"t": "done", "step": self.step})

    def close(self, *, tries: int = 10, pause: Callable[[float], None] = time.sleep) -> None:
        """At exit: try to send what waits, `tries` times, 10 ms apart."""
        for _ in range(tries):
            if (
                not self._on
                or self._quiet
                or (self._channel.flush() and self._report(self._clock()))
            ):
                return
            pause(0.01)

    @property
    def trains(self) -> bool:
        """It has entered a step."""
        return self._times.started

    def after_fork(self) -> None:
        """In a forked child, such as a data loader's worker: it is not the process that trains."""
        self._on = False
        self._channel.close()


def _whole(step: Any, call: str) -> int:
    """Also numpy's and torch's integers. Raises TypeError or ValueError, with the call, the value
    and a hint."""
    try:
        number = int(step.__index__())
    except (AttributeError, TypeError):
        raise TypeError(f"{call}(step={step!r}): no whole number; pass int(step)") from None
    if not 0 <= number <= MAX_STEP:
        raise ValueError(
            f"{call}(step={step!r:.40}): steps are counted from 0 to 2**63 - 1; pass how many steps"
            " were completed since the job began"
        )
    return number
