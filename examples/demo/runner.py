"""Runs the two jobs side by side and takes the first one's VMs away, again and again."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from machine import GRACE_S, DemoError
from plan import SHORT_NOTICE_S, Kind, Plan, Preemption
from screen import Screen
from spothop.sdk.client import Client
from spothop.wire import JOB_ENDED, EventView, JobDetail

HOPPED, STRAIGHT = "spot", "uninterrupted"
POLL_S = 0.25
HOW = {
    Kind.NOTICE: "with notice",
    Kind.SHORT: f"killed {SHORT_NOTICE_S} s after the notice",
    Kind.NONE: "killed without notice",
}


class DemoRunner:
    """Watches both jobs until they end; between, preempts by the plan."""

    def __init__(
        self, client: Client, jobs: dict[str, str], screen: Screen, plan: Plan, *, seed: int
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._screen = screen
        self._random = random.Random(seed)
        self._plan = plan
        self._steps_first = self._draw()
        self.preemptions: list[Preemption] = []
        self.released: set[str] = set()
        """VMs that the master gave back itself, before the cloud took them."""

    def _draw(self) -> int:
        """Steps that an attempt may make before it is preempted."""
        return self._random.randint(15, 40)

    def run(self, *, stuck_after_s: float) -> None:
        """Until both jobs are over. Raises DemoError when nothing has moved for so long: what the
        whole takes depends on the machine, and on what else it does."""
        moved, moved_at = "", time.monotonic()
        events = {title: self._follow(job) for title, job in self._jobs.items()}
        while True:
            views = {title: self._client.job(job) for title, job in self._jobs.items()}
            for title, lines in events.items():
                for text in next(lines):
                    self._screen.note(text, title=title)
            self._screen.show(dict(views), now=time.monotonic())
            if all(view.state in JOB_ENDED for view in views.values()):
                return
            stands = str([(view.state, view.attempt, view.step) for view in views.values()])
            if stands != moved:
                moved, moved_at = stands, time.monotonic()
            elif time.monotonic() - moved_at > stuck_after_s:
                raise DemoError(f"no step was made for {stuck_after_s:.0f} s")
            self._perhaps_preempt(views[HOPPED])
            time.sleep(POLL_S)

    def _follow(self, job: str) -> Iterator[list[str]]:
        """At each `next`, what came since that is worth a line."""
        after = 0
        while True:
            events = self._client.events(job, after=after)
            after = events[-1].id if events else after
            self.released |= {e.vm for e in events if e.vm and e.data.get("to") == "terminating"}
            yield [text for event in events if (text := told(event)) is not None]

    def _perhaps_preempt(self, job: JobDetail) -> None:
        attempt = next((a for a in job.attempts if a.number == job.attempt), None)
        if job.state != "running" or attempt is None or attempt.notice_at is not None:
            return
        done = (attempt.last_step or 0) - (attempt.restored_step or 0)
        vm = next((vm for vm in job.vms if vm.id == attempt.vm), None)
        if done < self._steps_first or vm is None or vm.dialect is None or vm.state != "running":
            return
        if any(p.attempt == attempt.number for p in self.preemptions):
            return
        kind = self._plan.next(vm.dialect, done=len(self.preemptions))
        if kind is None:
            return
        notice = {Kind.NOTICE: None, Kind.SHORT: SHORT_NOTICE_S, Kind.NONE: 0.0}[kind]
        at = time.time()
        self._client.preempt_vm(vm.id, notice_s=notice)
        self._plan.carried_out(kind, vm.dialect)
        self.preemptions.append(
            Preemption(
                kind=kind,
                dialect=vm.dialect,
                attempt=attempt.number,
                vm=vm.id,
                at=at,
                deadline=at + (GRACE_S[vm.dialect] if notice is None else notice),
            )
        )
        self._steps_first = self._draw()
        self._screen.note(
            f"> preemption {len(self.preemptions)}: {vm.id} ({vm.dialect.value}), "
            f"step {attempt.last_step}: {HOW[kind]}"
        )


def told(event: EventView) -> str | None:
    """Notices, what came of them, ends and fresh starts; not the many insurance saves."""
    match event.kind:
        case "notice":
            left, verdict = event.data["left_s"], "enough" if event.data["fits"] else "too little"
            return f"{event.vm}: preemption notice, {left:.0f} s left, {verdict} for a save"
        case "committed" if event.data.get("save") == "emergency":
            took = event.data["delta_s"] + event.data["beta_s"]
            return f"{event.vm}: emergency save of step {event.data['step']} took {took:.2f} s"
        case "restored":
            return f"{event.vm}: {event.text}"
        case "vm" if event.data.get("to") == "terminated":
            reason = str(event.data.get("reason", "ended"))
            return f"{event.vm}: gone, {reason.replace('_', ' ')}"
        case "job" if event.data.get("to") in JOB_ENDED:
            return event.text
    return None
