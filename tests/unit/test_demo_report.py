"""The demo, which everyone sees first: its plan, figures and progress, and how it ends."""

from __future__ import annotations

import importlib
import importlib.util
import io
import re
import signal
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from spothop.sdk.errors import Unreachable
from spothop.wire import (
    AttemptView,
    CheckpointView,
    Dialect,
    EventView,
    JobDetail,
    JobState,
    Pool,
    SaveKind,
    StorageSpec,
    VmView,
)

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo"
BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DEMO)
    return importlib.import_module("plan")


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DEMO)
    return importlib.import_module("report")


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DEMO)
    return importlib.import_module("screen")


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DEMO)
    return importlib.import_module("runner")


@pytest.fixture
def interrupts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DEMO)
    return importlib.import_module("interrupts")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DEMO)
    return importlib.import_module("machine")


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DEMO)
    return importlib.import_module("pace")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The demo's program, about to run in an empty folder, its steps given."""
    monkeypatch.syspath_prepend(DEMO)
    monkeypatch.setattr(sys, "argv", ["demo", "--steps", "600"])
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("demo_main", DEMO / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


POOL = Pool(cloud="local", region="r", zone="z", vm="small")


def attempt(number: int, **facts: Any) -> AttemptView:
    base: dict[str, Any] = {
        "number": number,
        "vm": f"vm-{number}",
        "state": "ended",
        "reason": "preempted",
        "detail": "",
        "started_at": None,
        "ended_at": None,
        "restored_step": 0,
        "last_step": None,
        "notice_at": None,
    }
    return AttemptView(**(base | facts))


def vm(number: int, ended_s: float, *, spot: bool = True) -> VmView:
    return VmView(
        id=f"vm-{number}",
        cloud_id=None,
        pool=POOL.model_copy(update={"spot": spot}),
        state="terminated",
        reason="preempted",
        dialect=Dialect.AWS,
        attempt=number,
        requested_at=BEGIN,
        running_at=BEGIN,
        ended_at=at(ended_s),
        price=0.2,
        cost=0.01,
    )


def job(attempts: list[AttemptView], *, cost: float = 0.01, **facts: Any) -> JobDetail:
    base: dict[str, Any] = {
        "id": "gpt-1",
        "name": "gpt",
        "owner": "admin",
        "state": "succeeded",
        "wanted": "running",
        "reason": "",
        "submitted_at": BEGIN,
        "ended_at": at(100),
        "attempt": len(attempts),
        "vm": None,
        "pool": None,
        "step": 60,
        "metrics": {},
        "preemptions": 2,
        "saves": {SaveKind.EMERGENCY: 1},
        "cost": cost,
        "on_demand_cost": 0.03,
        "storage": StorageSpec(url="file:///s"),
        "insurance": None,
        "spec": {},
        "attempts": attempts,
        "vms": [vm(1, 30), vm(2, 60), vm(3, 100)],
        "checkpoints": [
            CheckpointView(
                n=2,
                step=21,
                attempt=1,
                kind=SaveKind.EMERGENCY,
                bytes=1,
                delta_s=0.1,
                beta_s=0.1,
                committed_at=at(20.5),
            )
        ],
        "useful_s": 40.0,
        "recomputed_steps": 0,
        "lost_s": 0.0,
        "lost_cost": 0.0,
        "log_tail": "",
    }
    return JobDetail(**(base | facts))


@pytest.fixture
def preemptions(plan: ModuleType) -> list[Any]:
    begin = BEGIN.timestamp()
    return [
        plan.Preemption(
            kind=plan.Kind.NOTICE,
            dialect=Dialect.AWS,
            attempt=1,
            vm="vm-1",
            at=begin + 20,
            deadline=begin + 40,
        ),
        plan.Preemption(
            kind=plan.Kind.NONE,
            dialect=Dialect.GCP,
            attempt=2,
            vm="vm-2",
            at=begin + 60,
            deadline=begin + 60,
        ),
    ]


ATTEMPTS = [
    attempt(1, last_step=23, step_at_notice=20),
    attempt(2, restored_step=21, last_step=50, first_step_at=at(35)),
    attempt(3, restored_step=45, last_step=60, first_step_at=at(64)),
]


def computed(report: ModuleType, preemptions: list[Any], hopped: JobDetail, **more: Any) -> Any:
    straight = job([attempt(1, last_step=60)], cost=0.04)
    options = {"released": {"vm-1"}, "weights": ("a", "a")} | more
    return report.compute(hopped, straight, preemptions, **options)


def test_the_figures_come_from_the_records(report: ModuleType, preemptions: list[Any]) -> None:
    answer = computed(report, preemptions, job(ATTEMPTS))
    assert answer.steps_recomputed_noticed == 0  # restored 21, beyond the 20 of the notice
    assert answer.steps_recomputed_unnoticed == 5
    assert answer.notice_to_commit_s == [0.5]
    # vm-1 was given back before its deadline, which counts; vm-2 was killed
    assert answer.kill_to_step_s == [-5.0, 4.0]
    assert answer.effective_training_time == 0.4
    assert answer.saving == 0.75
    assert answer.weights_identical


def test_a_step_lost_in_spite_of_a_notice_is_told(
    report: ModuleType, plan: ModuleType, preemptions: list[Any]
) -> None:
    lost = [ATTEMPTS[0], attempt(2, restored_step=12, last_step=50), ATTEMPTS[2]]
    answer = computed(report, preemptions, job(lost))
    assert answer.steps_recomputed_noticed == 8
    broken = report.broken_promises(answer, job(lost), plan.Plan())
    assert any("8 steps finished before a notice" in line for line in broken)


def test_different_weights_break_the_promise(
    report: ModuleType, plan: ModuleType, preemptions: list[Any]
) -> None:
    answer = computed(report, preemptions, job(ATTEMPTS), weights=("a", "b"))
    assert not answer.weights_identical
    assert "the weights of the two runs differ" in report.broken_promises(
        answer, job(ATTEMPTS), plan.Plan()
    )


def test_what_was_planned_and_did_not_happen_breaks_the_promise(
    report: ModuleType, plan: ModuleType, preemptions: list[Any]
) -> None:
    todo, answer = plan.Plan(), computed(report, preemptions, job(ATTEMPTS))
    for kind, dialect in (
        *((plan.Kind.NOTICE, dialect) for dialect in (Dialect.AWS, Dialect.GCP)),
        (plan.Kind.NONE, Dialect.AWS),
    ):
        todo.carried_out(kind, dialect)
    assert report.broken_promises(answer, job(ATTEMPTS), todo) == [
        "planned, and did not happen: no notice on azure, no (more) preemption with short notice, "
        "no (more) preemption with no notice"
    ]
    todo.carried_out(plan.Kind.NOTICE, Dialect.AZURE)
    for kind in (plan.Kind.SHORT, plan.Kind.NONE):
        todo.carried_out(kind, Dialect.AWS)
    assert report.broken_promises(answer, job(ATTEMPTS), todo) == []


def test_a_preemption_after_which_no_attempt_restored_counts_nothing(
    report: ModuleType, preemptions: list[Any]
) -> None:
    """The job was over before its VM was taken, or the demo was interrupted in between."""
    last = [ATTEMPTS[0], attempt(2, restored_step=21, last_step=60, first_step_at=at(35))]
    answer = computed(report, preemptions, job(last))
    assert (answer.steps_recomputed_noticed, answer.steps_recomputed_unnoticed) == (0, 0)
    assert answer.kill_to_step_s == [-5.0]


def test_a_run_that_was_dearer_than_on_demand_says_so(
    report: ModuleType, plan: ModuleType, preemptions: list[Any]
) -> None:
    """How dear depends on the machine that the demo runs on: told, and no promise."""
    dear = job(ATTEMPTS, cost=0.05)
    answer = computed(report, preemptions, dear)
    assert "25% more" in printed(report.table(answer))
    done = plan.Plan(noticed=set(), others=[])
    assert report.broken_promises(answer, dear, done) == []


def test_a_demo_that_was_cut_short_tells_what_is_known_and_kept(
    report: ModuleType, preemptions: list[Any]
) -> None:
    hopped = job(ATTEMPTS, state="running", ended_at=None, step=58)
    straight = job([attempt(1, last_step=90)], state="running", ended_at=None, step=90)
    text = printed(report.partial_table(hopped, straight, preemptions, steps=600))
    rows = {(parts := re.split(r"  +", line.strip()))[0]: parts[-1] for line in text.splitlines()}
    assert rows["preemptions"] == "2"
    assert rows["steps recomputed, as far as known"] == "5"
    assert rows["steps trained (uninterrupted run)"] == "58 (90)"
    assert rows["newest checkpoint kept (uninterrupted)"] == "step 21 (step 21)"
    assert rows["weights identical, bit for bit"] == "not compared"


def printed(table: Any) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 80
    return text


@pytest.mark.parametrize(
    ("step_s", "start_s", "short", "steps"),
    [
        (0.07, 2.5, False, 600),
        (0.07, 2.5, True, 240),
        (0.07, 8.0, False, 910),  # a VM trains on until the next one has started
        (0.4, 2.5, False, 240),  # fewer would leave no room for six preemptions
        (0.01, 2.5, False, 4200),  # or it is over before the last preemption came
        (1e-4, 2.5, False, 6000),
    ],
)
def test_the_steps_fit_the_pace_of_the_machine(
    pace: ModuleType, step_s: float, start_s: float, short: bool, steps: int
) -> None:
    fitted = pace.Pace(step_s=step_s, start_s=start_s).steps(short=short)
    assert fitted == steps
    assert isinstance(fitted, int)  # an argument of the training script


def test_a_slow_machine_gets_longer_notices_and_more_patience(pace: ModuleType) -> None:
    quiet, slow, slower = (pace.Pace(step_s=s / 30, start_s=s) for s in (2.5, 10, 100))
    assert quiet.grace_s() == {"aws": 10, "azure": 6, "gcp": 8}
    assert slow.grace_s() == {"aws": 40, "azure": 24, "gcp": 30}  # as on the real ones, at most
    assert slower.grace_s() == {"aws": 120, "azure": 30, "gcp": 30}
    assert quiet.stalled_after_s() == 200
    assert slower.stalled_after_s() > 2000
    told = pace.in_words(quiet.total_s(500, 6)), pace.in_words(quiet.total_s(100, 0))
    assert told == ("about 2 minutes", "less than a minute")


class MasterOf:
    """Answers with these views of both jobs, one after the other; an exception is raised."""

    def __init__(self, *views: JobDetail | Exception) -> None:
        self._views = list(views)

    def events(self, job: str, *, after: int) -> list[EventView]:
        return []

    def job(self, job: str) -> JobDetail:
        view = self._views.pop(0) if len(self._views) > 1 else self._views[0]
        if isinstance(view, Exception):
            raise view
        return view


def runner_of(runner: ModuleType, plan: ModuleType, *views: JobDetail | Exception) -> Any:
    class Silent:
        def show(self, jobs: object, *, now: float) -> None: ...

    jobs = {"spot": "j1", "uninterrupted": "j2"}
    args = (MasterOf(*views), jobs, Silent(), plan.Plan())
    return runner.DemoRunner(*args, steps=600, grace_s={}, seed=1)


def test_only_a_run_in_which_nothing_moves_is_given_up(
    runner: ModuleType, plan: ModuleType, machine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the whole takes, and though the master is slow to answer now and then."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += 50

    monkeypatch.setattr(runner.time, "sleep", sleep)
    training = [job(ATTEMPTS, state="allocating", step=step // 2) for step in range(200)]
    slow = Unreachable("no answer in time", "try again")
    ours = runner_of(runner, plan, *training, slow, training[-1])
    with pytest.raises(machine.DemoError, match="nothing has moved for 200 s"):
        ours.run(stalled_after_s=200.0, clock=lambda: now)
    assert now > 50 * 100
    assert ours.views["spot"].step == 99


def test_the_plan_shows_every_kind_of_preemption(plan: ModuleType) -> None:
    todo = plan.Plan()
    zones = [Dialect.AWS, Dialect.AZURE, Dialect.GCP]
    shown = []
    while (kind := todo.next(zones[len(shown) % 3], done=len(shown))) is not None:
        todo.carried_out(kind, zones[len(shown) % 3])
        shown.append(kind)
    assert shown == [plan.Kind.NOTICE] * 3 + [plan.Kind.SHORT, plan.Kind.NONE, plan.Kind.NONE]


def test_the_short_plan_shows_each_kind_once(plan: ModuleType) -> None:
    todo = plan.Plan.short()
    shown = []
    while (kind := todo.next(Dialect.AWS, done=len(shown))) is not None:
        todo.carried_out(kind, Dialect.AWS)
        shown.append(kind)
    assert shown == [plan.Kind.NOTICE, plan.Kind.SHORT, plan.Kind.NONE]
    assert todo.left == []


def test_the_plan_ends_even_if_a_dialect_never_comes(plan: ModuleType) -> None:
    todo = plan.Plan()
    shown = []
    while (kind := todo.next(Dialect.AWS, done=len(shown))) is not None:
        todo.carried_out(kind, Dialect.AWS)
        shown.append(kind)
    assert len(shown) == todo.most


def under_way(*, spot: bool = True) -> JobDetail:
    return job(
        ATTEMPTS,
        state="running",
        vm="vm-3",
        pool=Pool(cloud="local", region="local-1", zone="local-1a", vm="small", spot=spot),
        step=1234,
        metrics={"loss": 10.123},
        vms=[vm(1, 30), vm(2, 60), vm(3, 100, spot=spot)],
        preemptions=10,
        saves={SaveKind.PERIODIC: 12, SaveKind.INSURANCE: 137, SaveKind.EMERGENCY: 10},
        cost=0.12345,
    )


def shown(jobs: dict[str, JobDetail], screen: ModuleType, *, terminal: bool, now: float) -> str:
    """What a screen has printed after a look at 0 s and one at `now`."""
    console = Console(file=io.StringIO(), width=80, force_terminal=terminal, color_system=None)
    with screen.Screen(console, steps=5000) as screen_shown:
        screen_shown.show(jobs, now=0.0)
        screen_shown.show(jobs, now=now)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


@pytest.mark.parametrize("terminal", [True, False])
def test_live_progress_is_one_line_a_run_in_80_columns(screen: ModuleType, terminal: bool) -> None:
    jobs = {"spot": under_way(), "uninterrupted": under_way(spot=False)}
    text = shown(jobs, screen, terminal=terminal, now=60)
    lines = {line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip()}
    assert lines == {
        "  spot          step 1234/5000 loss 10.12 $0.12   137 insurance VM 3 (aws)",
        "  uninterrupted step 1234/5000 loss 10.12 $0.12   137 insurance VM 3 (on demand)",
    }
    assert max(map(len, lines)) <= 80


def test_a_run_without_a_vm_that_trains_shows_its_state(screen: ModuleType) -> None:
    preparing = under_way().model_copy(update={"state": JobState.PREPARING, "metrics": {}})
    assert screen.line("spot", preparing, 500).endswith("loss -    $0.12   137 insurance preparing")


def test_a_log_that_is_no_terminal_gets_the_lines_now_and_then(screen: ModuleType) -> None:
    assert shown({"spot": under_way()}, screen, terminal=False, now=29) == ""


def test_a_long_line_goes_on_below_its_own_text(screen: ModuleType) -> None:
    console = Console(file=io.StringIO(), width=200)
    screen.Screen(console, steps=1).note("[why] " * 20, title="uninterrupted")
    first, *more = console.file.getvalue().splitlines()
    assert first.startswith("  uninterrupted [why] [why]")
    assert all(line.startswith(" " * 16 + "[why]") for line in more)
    assert max(map(len, [first, *more])) <= 80


@pytest.mark.parametrize(
    ("kind", "data", "line"),
    [
        (
            "notice",
            {"left_s": 8.6, "fits": True},
            "VM 1 (aws): preemption notice, 9 s left, enough for a save",
        ),
        (
            "notice",
            {"left_s": 0.4, "fits": False},
            "VM 1 (aws): preemption notice, 0 s left, too little for a save",
        ),
        (
            "committed",
            {"save": "emergency", "step": 34, "delta_s": 0.01, "beta_s": 0.08},
            "VM 1 (aws): emergency save of step 34 took 0.09 s",
        ),
        ("committed", {"save": "insurance"}, None),
        ("restored", {"step": 0, "n": None}, "VM 1 (aws): begins at step 0"),
        ("restored", {"step": 34, "n": 7}, "VM 1 (aws): goes on from step 34"),
        ("vm", {"to": "terminated", "reason": "agent_lost"}, "VM 1 (aws): gone, agent lost"),
        ("vm", {"to": "terminating"}, None),
        ("job", {"to": "succeeded"}, "as recorded"),
    ],
)
def test_events_are_told_in_words_for_newcomers(
    runner: ModuleType, kind: str, data: dict[str, Any], line: str | None
) -> None:
    event = EventView(
        id=1, at=BEGIN, job="j", vm="vm-1", attempt=1, kind=kind, text="as recorded", data=data
    )
    assert runner.told(event, "VM 1 (aws)") == line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_interrupts_and_no_later_one_does(
    interrupts: ModuleType, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    signal.signal(number, signal.default_int_handler)
    try:
        with interrupts.Interrupts():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
            for late in interrupts.SIGNALS:
                signal.raise_signal(late)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_what_was_ignored_from_the_start_stays_ignored(interrupts: ModuleType) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts.Interrupts():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("reason", ["KeyboardInterrupt", "DemoError"])
def test_no_older_report_vouches_for_a_run_that_ends_early(
    machine: ModuleType, program: ModuleType, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    def ends(*args: object) -> None:
        raise KeyboardInterrupt if reason == "KeyboardInterrupt" else machine.DemoError("no room")

    monkeypatch.setattr(program, "run", ends)
    older = Path("demo-report.json")
    older.write_text('{"weights_identical": true}', encoding="utf-8")
    assert program.main() != 0
    assert not older.exists()


class ImpatientMaster:
    """Somebody presses Ctrl-C whenever its end is waited for."""

    def terminate(self) -> None: ...

    def wait(self, timeout: float) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("reason", ["KeyboardInterrupt", "DemoError"])
def test_ctrl_c_while_it_ends_leaves_nothing_behind(
    machine: ModuleType, program: ModuleType, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Impatient(machine.Machine):  # type: ignore[misc, name-defined]
        def __enter__(self) -> Impatient:
            self._master = ImpatientMaster()
            marker = {machine.MARKER: self.run_id}
            started.append(subprocess.Popen(["sleep", "60"], env=marker))
            return self

        def client(self) -> None:
            if reason == "DemoError":
                raise machine.DemoError("the master did not start")
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(program, "Machine", Impatient)
    assert program.main() == 130
    assert started[0].wait(10) == -signal.SIGKILL


def test_what_a_killed_process_had_started_is_killed_too(
    machine: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = machine.Machine(tmp_path, grace_s={})
    seen = iter([[11], [], [11, 12], [], []])  # one that just began shows nothing for a moment
    killed: list[int] = []
    monkeypatch.setattr(ours, "processes", lambda: next(seen))
    monkeypatch.setattr(machine.os, "kill", lambda pid, number: killed.append(pid))
    assert ours.stop() == 2
    assert killed == [11, 11, 12]
