"""Pause, resume and cancel, in every state and during each other: random ways through the rules.

A model of what the rules ask for (rows that change, VMs that come and go) and of what may happen
meanwhile, without a database. Time is a number.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from spothop.wire import (
    JOB_ACTIVE,
    JOB_ENDED,
    AttemptState,
    EndReason,
    JobState,
    VmReason,
    VmState,
    Wanted,
)
from spothop_master.core.actions import (
    Action,
    AllowFence,
    AskTermination,
    AssignSame,
    EndAttempt,
    FinishJob,
    LaunchVm,
    MarkSuspect,
    ReleaseVm,
    ResumeJob,
    StopAttempt,
    Wait,
)
from spothop_master.core.decide import decide
from spothop_master.core.facts import LONGEST_SAVES_S, AttemptFacts, PlaceFacts, Snapshot, VmFacts
from spothop_master.core.follow import Living, job_state
from support.core_facts import LIMITS, seen, vm

ROUNDS = 30
NEVER_S = LIMITS.stop_timeout_s + LONGEST_SAVES_S + LIMITS.silent_after_s + 60
"""Longer than anything is waited for, besides notices of minutes."""
WISHES = ("pause", "resume", "cancel", "now")
STEPS = (*WISHES, "tick", "long", "join", "train", "notice", "exit", "vanish", "silent", "save")


@dataclass
class Model:
    """One job; `do` lets one thing happen and then everything that the rules ask for."""

    facts: Snapshot = field(
        default_factory=lambda: replace(
            seen(state=JobState.QUEUED), vms=(), limits=replace(LIMITS, backoff_max_s=1)
        )
    )
    stopped: list[tuple[int, EndReason]] = field(default_factory=list)
    launched: int = 0

    # -- what happens ----------------------------------------------------------------------------

    def do(self, step: str) -> None:
        before = self.facts
        match step:
            case "tick":
                self._pass(5)
            case "long":
                self._pass(400)
            case "pause" | "resume" | "cancel" | "now":
                self.wish(step)
            case "silent":
                self._vms(lambda one: replace(one, silent_s=100.0) if one.alive else one)
            case _:
                self._of_newest(step)
        self.settle()
        assert before.job.state not in JOB_ENDED or self.facts.job.state is before.job.state

    def wish(self, wish: str) -> None:
        """As `store.jobs.want` takes it."""
        job = self.facts.job
        wanted = {"pause": Wanted.PAUSED, "resume": Wanted.RUNNING}.get(wish, Wanted.CANCELLED)
        if job.state in JOB_ENDED or (job.wanted is Wanted.CANCELLED and wish != "now"):
            return
        self._job(wanted=wanted, at_once=job.at_once or wish == "now")

    def _of_newest(self, step: str) -> None:
        newest = self.facts.newest
        if newest is None or not newest.alive:
            return
        one, now = self.facts.vm(newest.places[0].vm), self.facts.now
        match step:
            case "join" if one.alive and one.joined_at is None:
                self._vm(one.id, state=VmState.READY, joined_at=now, running_at=now)
            case "train" if one.alive and one.joined_at and newest.state is AttemptState.PREPARING:
                place = replace(newest.places[0], prepared_at=now)
                self._attempt(
                    newest.number,
                    places=(place,),
                    state=AttemptState.RUNNING,
                    fenced_at=now,
                    may_fence=True,
                )
                self._vm(one.id, state=VmState.RUNNING)
            case "notice" if one.alive and newest.state is AttemptState.RUNNING:
                deadline = now + timedelta(seconds=120)
                place = replace(newest.places[0], notice_at=now, deadline_at=deadline)
                self._attempt(newest.number, places=(place,), state=AttemptState.DRAINING)
                self._vm(one.id, state=VmState.DRAINING, notice_at=now, deadline_at=deadline)
            case "save":
                self._attempt(newest.number, saved_since_notice=newest.notice_at is not None)
            case "exit" if newest.stop_wanted is not None:
                self._attempt(
                    newest.number,
                    state=AttemptState.ENDED,
                    reason=newest.stop_wanted,
                    ended_at=now,
                )
            case "vanish":
                why = VmReason.PREEMPTED if one.notice_at else VmReason.AGENT_LOST
                self._vm(one.id, state=VmState.TERMINATED, reason=why, ended_at=now)
            case _:
                pass

    # -- what the rules ask for ------------------------------------------------------------------

    def settle(self) -> None:
        for _ in range(ROUNDS):
            actions = decide(self.facts)
            if not actions:
                self._check()
                return
            for action in actions:
                self._apply(action)
            self._follow()
        raise AssertionError(f"no end of decisions: {actions}")

    def _check(self) -> None:
        job = self.facts.job
        if job.state in JOB_ENDED or job.state is JobState.PAUSED:
            assert not self.facts.living
            assert not [one for one in self.facts.vms if one.alive], "it costs nothing"
        if job.wanted is not Wanted.RUNNING:
            assert all(one.stop_wanted for one in self.facts.living), "each is told"

    def _apply(self, action: Action) -> None:
        now = self.facts.now
        match action:
            case StopAttempt():
                saves = not self.facts.job.at_once
                assert self.facts.job.wanted is not Wanted.RUNNING or action.why not in (
                    EndReason.PAUSED,
                    EndReason.CANCELLED,
                )
                self.stopped.append((action.attempt, action.why))
                self._attempt(
                    action.attempt, stop_wanted=action.why, stop_at=now, hurried=not saves
                )
            case EndAttempt():
                self._attempt(
                    action.attempt, state=AttemptState.ENDED, reason=action.why, ended_at=now
                )
            case FinishJob():
                self._job(state=action.state)
            case ResumeJob():
                self._job(state=JobState.QUEUED)
            case ReleaseVm():
                self._vm(action.vm, state=VmState.TERMINATING, reason=action.why)
            case AskTermination():
                self._vm(action.vm, state=VmState.TERMINATED, asked_s=0.0, ended_at=now)
            case LaunchVm():
                assert self.facts.job.wanted is Wanted.RUNNING
                self._launch(action)
            case AssignSame():
                assert self.facts.job.wanted is Wanted.RUNNING
                self._new_attempt(action.attempt, action.vm)
            case AllowFence():
                self._attempt(action.attempt, may_fence=True)
            case MarkSuspect():
                self._vm(action.vm, suspect_at=now if action.suspect else None)
            case Wait():
                self._job(not_before=action.until)
            case _:
                raise AssertionError(f"not in this model: {action}")

    def _launch(self, action: LaunchVm) -> None:
        self.launched += 1
        now, name = self.facts.now, f"vm-{self.launched}"
        made = vm(
            name,
            VmState.BOOTING,
            requested_at=now,
            launched_at=now,
            running_at=now,
            joined_at=None,
            join_timeout_s=1e9,
        )
        self.facts = replace(self.facts, vms=(*self.facts.vms, made))
        self._new_attempt(action.attempt, name)

    def _new_attempt(self, number: int, on: str) -> None:
        made = AttemptFacts(
            number=number, places=(PlaceFacts(vm=on),), state=AttemptState.PREPARING
        )
        self.facts = replace(self.facts, attempts=(*self.facts.attempts, made))
        self._job(not_before=None)

    def _follow(self) -> None:
        """As `store.transitions.follow` does it."""
        if self.facts.job.state in JOB_ACTIVE:
            living = [
                Living(
                    number=one.number,
                    state=one.state,
                    joined=tuple(vm.joined_at is not None for vm in self.facts.vms_of(one)),
                )
                for one in self.facts.living
            ]
            self._job(state=job_state(living))

    # -- facts -----------------------------------------------------------------------------------

    def _pass(self, seconds: float) -> None:
        self.facts = replace(self.facts, now=self.facts.now + timedelta(seconds=seconds))

    def _job(self, **values: object) -> None:
        self.facts = replace(self.facts, job=replace(self.facts.job, **values))  # type: ignore[arg-type]
        hurried = self.facts.job.at_once
        attempts = [replace(one, hurried=hurried) for one in self.facts.attempts]
        self.facts = replace(self.facts, attempts=tuple(attempts))

    def _attempt(self, number: int, **values: object) -> None:
        attempts = tuple(
            replace(one, **values) if one.number == number else one  # type: ignore[arg-type]
            for one in self.facts.attempts
        )
        self.facts = replace(self.facts, attempts=attempts)

    def _vm(self, name: str, **values: object) -> None:
        self._vms(lambda one: replace(one, **values) if one.id == name else one)  # type: ignore[arg-type]

    def _vms(self, change: object) -> None:
        assert callable(change)
        changed: list[VmFacts] = [change(one) for one in self.facts.vms]
        self.facts = replace(self.facts, vms=tuple(changed))


@settings(max_examples=60)
@given(steps=st.lists(st.sampled_from(STEPS), max_size=14), last=st.sampled_from(WISHES))
def test_what_is_wanted_last_comes_true_in_bounded_time(steps: list[str], last: str) -> None:
    """Also where nobody answers a stop: no agent exits, none is heard of."""
    model = Model()
    model.settle()
    for step in steps:
        model.do(step)
    was = model.facts.job
    model.do(last)
    for _ in range(4):
        model._pass(NEVER_S)
        model.settle()
    found = model.facts.job.state
    if was.wanted is Wanted.CANCELLED or was.state in JOB_ENDED:
        assert found is (was.state if was.state in JOB_ENDED else JobState.CANCELLED)
    elif last == "resume":
        assert found in JOB_ACTIVE or found is JobState.FAILED
    else:
        assert found is (JobState.PAUSED if last == "pause" else JobState.CANCELLED)


@settings(max_examples=60)
@given(steps=st.lists(st.sampled_from(STEPS), max_size=14), wish=st.sampled_from(WISHES))
def test_a_wish_that_is_said_again_changes_nothing(steps: list[str], wish: str) -> None:
    model = Model()
    model.settle()
    for step in [*steps, wish]:
        model.do(step)
    before, stopped, launched = model.facts, list(model.stopped), model.launched
    model.do(wish)
    assert (model.facts, model.stopped, model.launched) == (before, stopped, launched)


@settings(max_examples=60)
@given(steps=st.lists(st.sampled_from(STEPS), max_size=14))
def test_each_attempt_is_stopped_once(steps: list[str]) -> None:
    model = Model()
    model.settle()
    for step in steps:
        model.do(step)
    numbers = [number for number, _ in model.stopped]
    assert len(numbers) == len(set(numbers))


def test_the_model_trains_pauses_and_goes_on() -> None:
    """The properties would hold for a model in which nothing ever happens, too."""
    model = Model()
    model.settle()
    for step in ("join", "train", "pause"):
        model.do(step)
    assert model.stopped == [(1, EndReason.PAUSED)]
    assert model.facts.job.state is JobState.RUNNING, "its save has its time"
    model.do("exit")
    assert model.facts.job.state is JobState.PAUSED
    model.do("resume")
    assert (model.facts.job.state, model.launched) == (JobState.ALLOCATING, 2)


def test_a_preemption_during_a_pause_ends_as_a_pause() -> None:
    model = Model()
    model.settle()
    for step in ("join", "train", "pause", "notice", "vanish"):
        model.do(step)
    assert model.facts.job.state is JobState.PAUSED
    assert model.facts.attempts[-1].reason is EndReason.PREEMPTED, "that is what happened to it"


def test_who_resumes_while_it_stops_waits_no_longer_than_for_the_stop() -> None:
    model = Model()
    model.settle()
    for step in ("join", "train", "pause", "resume", "tick"):
        model.do(step)
    assert model.launched == 1, "its last save is on its way"
    model._pass(NEVER_S)
    model.settle()
    assert model.launched == 2


def test_now_hurries_a_cancel_that_saves() -> None:
    model = Model()
    model.settle()
    for step in ("join", "train", "cancel", "long"):
        model.do(step)
    assert model.facts.job.state is JobState.RUNNING
    model.do("now")
    assert model.facts.job.state is JobState.CANCELLED
