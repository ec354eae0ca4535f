"""Runs the two jobs side by side and takes the first one's VMs away, again and again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping

from machine import DemoError
from names import vm_name
from plan import SHORT_NOTICE_S, Kind, Plan, Preemption
from screen import Screen
from spothop.sdk.client import Client
from spothop.sdk.errors import Unreachable
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
        self,
        client: Client,
        jobs: dict[str, str],
        screen: Screen,
        plan: Plan,
        *,
        steps: int,
        grace_s: Mapping[str, float],
        seed: int,
    ) -> None:
        """`steps` of each run; `grace_s` by dialect."""
        self._client = client
        self._jobs = jobs
        self._screen = screen
        self._random = random.Random(seed)
        self._plan = plan
        # The rest is room: a VM trains on until the master knows of its steps, and after a notice
        # until the next one is ready; and it may take more preemptions than planned.
        self._steps_at_most = max(1, round(0.25 * steps / plan.todo))
        self._grace_s = grace_s
        self._steps_first = self._draw()
        self._told = dict.fromkeys(jobs, 0)
        self.views: dict[str, JobDetail] = {}
        """What was seen last, by title; empty before the first look."""
        self.preemptions: list[Preemption] = []
        self.released: set[str] = set()
        """VMs that the master gave back itself, before the cloud took them."""

    def _draw(self) -> int:
        """Steps that an attempt may make before it is preempted."""
        return self._random.randint(3 * self._steps_at_most // 8, self._steps_at_most)

    def run(self, *, stalled_after_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Until both jobs are over. Raises DemoError when nothing has moved for so long: what the
        whole takes depends on the machine, and on what else it does."""
        moved, moved_at = None, clock()
        while True:
            try:
                self._look()
                if all(view.state in JOB_ENDED for view in self.views.values()):
                    return
                self._perhaps_preempt(self.views[HOPPED])
            except Unreachable:  # a master that is slow; one that is gone is a stall
                pass
            self._screen.show(self.views, now=clock())
            if (stands := self._stands()) != moved:
                moved, moved_at = stands, clock()
            elif clock() - moved_at > stalled_after_s:
                raise DemoError(f"nothing has moved for {stalled_after_s:.0f} s")
            time.sleep(POLL_S)

    def _stands(self) -> list[object]:
        """Differs whenever one of the runs gets on."""
        views = self.views.values()
        return [*self._told.values(), *((view.state, view.attempt, view.step) for view in views)]

    def _look(self) -> None:
        """At both jobs; what came since the last look and is worth a line is told."""
        for title, job in self._jobs.items():
            events = self._client.events(job, after=self._told[title])
            self.views[title] = view = self._client.job(job)
            for event in events:
                self._told[title] = event.id
                if event.vm and event.data.get("to") == "terminating":
                    self.released.add(event.vm)
                if (text := told(event, vm_name(view, event.vm))) is not None:
                    self._screen.note(text, title=title)

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
                deadline=at + (self._grace_s[vm.dialect.value] if notice is None else notice),
            )
        )
        self._steps_first = self._draw()
        self._screen.note(
            f"> preemption {len(self.preemptions)}: {vm_name(job, vm.id)}, "
            f"step {attempt.last_step}: {HOW[kind]}"
        )


def told(event: EventView, vm: str) -> str | None:
    """Notices, what came of them, ends and fresh starts; not the many insurance saves.

    `vm` is the name of the event's VM.
    """
    match event.kind:
        case "notice":
            left, verdict = event.data["left_s"], "enough" if event.data["fits"] else "too little"
            return f"{vm}: preemption notice, {left:.0f} s left, {verdict} for a save"
        case "committed" if event.data.get("save") == "emergency":
            took = event.data["delta_s"] + event.data["beta_s"]
            return f"{vm}: emergency save of step {event.data['step']} took {took:.2f} s"
        case "restored" if event.data.get("n") is None:
            return f"{vm}: begins at step {event.data['step']}"
        case "restored":
            return f"{vm}: goes on from step {event.data['step']}"
        case "vm" if event.data.get("to") == "terminated":
            reason = str(event.data.get("reason", "ended"))
            return f"{vm}: gone, {reason.replace('_', ' ')}"
        case "job" if event.data.get("to") in JOB_ENDED:
            return event.text
    return None
