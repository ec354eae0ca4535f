"""The command line against a scripted master: what it prints, what it asks, how it exits."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer

from spothop.cli import run
from spothop.cli.app import app
from spothop.cli.local_master import start
from spothop.cli.session import Session
from spothop.sdk.errors import ClientError
from spothop.sdk.settings import ClientSettings
from spothop.wire import (
    AttemptView,
    CheckpointView,
    Dialect,
    EventView,
    Insurance,
    JobDetail,
    PlaceView,
    PlanReply,
    Pool,
    PoolPlan,
    SaveKind,
    StorageSpec,
    VmView,
)

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=timezone.utc)
POOL = Pool(cloud="local", region="local", zone="zone-a", vm="small")
JOB = "mnist-small-3f2a9c"
EVENTS_OF = {"queued": "the job is queued", "running": "attempt 1 runs", "succeeded": "succeeded"}


def plan_reply(*, pools: int = 2) -> PlanReply:
    rows = [
        PoolPlan(
            pool=POOL.model_copy(update={"zone": f"zone-{i}"}), spot_price=0.1234 * (i + 1),
            on_demand_price=0.4, grace_s=10.0, dialect=Dialect.AWS, mttp_s=20.0 * (i + 1),
            lives=i, restart_s=4.2,
        )
        for i in range(pools)
    ]  # fmt: skip
    return PlanReply(pools=rows, storage="file:///home/someone/.spothop/master/storage")


def vm(number: int = 1) -> VmView:
    return VmView(
        id=f"vm-{JOB}-{number}", cloud_id="local-1", pool=POOL, state="running", reason=None,
        dialect=Dialect.AWS, attempt=number, requested_at=NOW - timedelta(minutes=5),
        running_at=NOW - timedelta(minutes=4), ended_at=None, price=0.12, cost=0.008,
    )  # fmt: skip


def job(*, state: str = "running", attempt: int = 1) -> JobDetail:
    return JobDetail(
        id=JOB, name="mnist-small", owner="admin", state=state, wanted="running",
        reason="attempt 2 trains" if state == "running" else "", attempt=attempt, vm=vm().id,
        submitted_at=NOW - timedelta(minutes=5),
        ended_at=None if state == "running" else NOW,
        pool=POOL, step=1200, metrics={"loss": 0.1234}, preemptions=1,
        saves={SaveKind.PERIODIC: 2, SaveKind.EMERGENCY: 1}, cost=0.0123, on_demand_cost=0.04,
        storage=StorageSpec(url="file:///home/someone/.spothop/master/storage"),
        insurance=Insurance(at_step=1300, tau_s=12.0, reason="sqrt(2 delta (M + R)) = 12 s"),
        spec={}, useful_s=123.0, recomputed_steps=14,
        log_tail="epoch 1\nloss [red]0.1[/red]\n",
        attempts=[
            AttemptView(
                number=1, vm=vm(1).id, state="ended", reason="preempted",
                detail="the notice came 10 s before the end", started_at=NOW, ended_at=NOW,
                restored_step=0, last_step=700, notice_at=NOW,
            )
        ],
        vms=[vm(1), vm(2)],
        checkpoints=[
            CheckpointView(
                n=n, step=100 * n, attempt=1, kind=SaveKind.INSURANCE, bytes=4_200_000,
                delta_s=0.041, beta_s=0.7, committed_at=NOW - timedelta(seconds=90),
            )
            for n in range(1, 8)
        ],
    )  # fmt: skip


Scripted = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


@dataclass
class FakeMaster:
    """Answers as the master does; `scripted` replaces the answer of a route."""

    states: list[str] = field(default_factory=lambda: ["queued", "running", "succeeded"])
    log: bytes = b"epoch 1\nepoch 2\n"
    scripted: dict[str, Scripted] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)

    def handle(self, request: httpx.Request) -> httpx.Response:
        route = f"{request.method} {request.url.path.removeprefix('/api/v1')}"
        self.asked.append(route)
        if request.headers.get("content-type") == "application/json":
            self.bodies.append(json.loads(request.content))
        scripted = self.scripted.get(route)
        if isinstance(scripted, Exception):
            raise scripted
        if isinstance(scripted, httpx.Response):
            return scripted
        return scripted(request) if scripted else self.answer(route, request)

    def answer(self, route: str, request: httpx.Request) -> httpx.Response:
        if route.startswith(("HEAD /bundles/", "PUT /bundles/")):
            return httpx.Response(404 if request.method == "HEAD" else 201)
        if route == f"GET /jobs/{JOB}/logs":
            return self.log_answer(int(request.url.params["offset"]))
        if route == f"GET /jobs/{JOB}/events":
            return self.events_answer(int(request.url.params["after"]))
        if route == f"GET /jobs/{JOB}":
            state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            return _json(job(state=state, attempt=0 if state == "queued" else 1))
        answers: dict[str, Any] = {
            "POST /plan": plan_reply(),
            "POST /jobs": job(),
            "GET /jobs": [job()],
            "GET /vms": [vm()],
            f"POST /jobs/{JOB}/cancel": job(),
            f"POST /jobs/{JOB}/preempt": vm(),
        }
        if route in answers:
            return _json(answers[route])
        message = f"nothing at {route}"
        return httpx.Response(404, json={"error": "no_such_job", "message": message, "hint": "c"})

    def log_answer(self, offset: int) -> httpx.Response:
        headers = {
            "X-Next-Offset": str(len(self.log)),
            "X-Attempt": "1",
            "X-Complete": str(self.states[0] == "succeeded").lower(),
        }
        return httpx.Response(200, content=self.log[offset:], headers=headers)

    def events_answer(self, after: int) -> httpx.Response:
        texts = list(EVENTS_OF.values())
        found = [
            EventView(
                id=i, at=NOW, job=JOB, vm=None, attempt=1, kind="state", text=text, data={}
            ).model_dump(mode="json")
            for i, text in enumerate(texts, 1)
            if i > after
        ]
        return httpx.Response(200, json=found)


def _json(value: Any) -> httpx.Response:
    if isinstance(value, list):
        return httpx.Response(200, json=[item.model_dump(mode="json") for item in value])
    return httpx.Response(200, json=value.model_dump(mode="json"))


@dataclass
class Cli:
    """Runs commands in this process and keeps what they printed."""

    master: FakeMaster
    capture: pytest.CaptureFixture[str]
    can_ask: bool = False
    terminal: bool = False
    became: list[list[str]] = field(default_factory=list)
    out: str = ""
    err: str = ""

    def __call__(self, *arguments: str) -> int:
        session = Session(
            settings=ClientSettings(token="t", master_home=Path("/home/m")),
            transport=httpx.MockTransport(self.master.handle),
            now=lambda: NOW,
            sleep=lambda seconds: None,
            terminal=self.terminal,
            can_ask=self.can_ask,
            become=self.became.append,
        )
        code = run(list(arguments), session)
        self.out, self.err = self.capture.readouterr()
        return code


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    return Cli(FakeMaster(), capsys)


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    file = tmp_path / "job.yaml"
    file.write_text("name: mnist-small\nrun: python train.py\n")
    (tmp_path / "train.py").write_text("print(1)")
    return str(file)


COMMANDS = sorted(str(getattr(c.callback, "__name__", "")) for c in app.registered_commands)


# --- help and usage -----------------------------------------------------------------------------


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "simulate"])
def test_every_commands_help_has_an_example_and_fits(cli: Cli, command: str) -> None:
    assert cli(command, "--help") == 0
    assert f"Example: spothop {command}" in cli.out
    assert max(map(len, cli.out.splitlines())) <= 80


def test_no_command_shows_the_help_with_every_command(cli: Cli) -> None:
    assert cli() == 0
    assert all(f"\n  {command} " in cli.out for command in COMMANDS)
    assert "..." not in cli.out.replace("[ARGS]...", "")


def test_the_version_is_printed(cli: Cli) -> None:
    assert cli("--version") == 0
    assert cli.out.startswith("spothop 0.")


@pytest.mark.parametrize(
    "arguments",
    [
        ["jbos"],
        ["show"],
        ["jobs", "--nope"],
        ["preempt", "x", "--notice", "-1"],
        ["preempt", "x", "--notice", "inf"],
        ["preempt", "x", "--notice", "nan"],
        ["preempt", "x", "--notice", "3", "--no-notice"],
        ["logs", "x", "--attempt", "0"],
        ["submit", "job.yaml", "--json"],
    ],
)
def test_wrong_usage_exits_with_2_and_shows_the_way(cli: Cli, arguments: list[str]) -> None:
    assert cli(*arguments) == 2
    assert cli.out == ""
    assert cli.master.asked == []
    error, hint = cli.err.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: `spothop")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from spothop.cli import run; run(['--help']);"
        "print({'httpx', 'pydantic', 'rich', 'yaml'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "set()\n")


# --- errors -------------------------------------------------------------------------------------


def test_a_refusal_is_an_error_and_a_hint_without_a_stack_trace(cli: Cli) -> None:
    assert cli("show", "nothing") == 1
    assert cli.out == ""
    assert cli.err == "error: nothing at GET /jobs/nothing\nhint: c\n"


def test_a_state_that_this_client_does_not_know_is_told_without_a_stack_trace(cli: Cli) -> None:
    cli.master.scripted["GET /vms"] = httpx.Response(
        200, json=[{**vm().model_dump(mode="json"), "state": "hibernating"}]
    )
    assert cli("vms") == 1
    assert cli.err == (
        "error: the master's answer says 0.state = 'hibernating', which this client does not know\n"
        "hint: update the client: install the version that the master has\n"
    )


def test_no_master_tells_how_to_start_one(cli: Cli) -> None:
    cli.master.scripted["GET /vms"] = httpx.ConnectError("[Errno 111] Connection refused")
    assert cli("vms") == 1
    assert cli.err == (
        "error: cannot reach the master at http://127.0.0.1:8900: [Errno 111] Connection refused\n"
        "hint: start one with `spothop master`, or set SPOTHOP_URL to where it runs\n"
    )


@pytest.mark.parametrize(
    "command", ["show", "logs", "events", "cancel", "preempt", "download", "inject --stop"]
)
@pytest.mark.parametrize("name", ["\udcff", "a\nb", "x" * 70_000])
def test_what_nothing_can_be_called_is_refused_before_the_master_is_asked(
    cli: Cli, command: str, name: str
) -> None:
    assert cli(*command.split(), name) == 1
    assert cli.master.asked == []
    error, hint = cli.err.splitlines()
    assert error.startswith("error: no job or VM can be called ")
    assert hint.startswith("hint: `spothop jobs --all`")


def test_an_output_that_cannot_hold_a_character_gets_its_number() -> None:
    code = r"from spothop import cli; cli.run = lambda given: print('\u2603'); cli.main()"
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}  # noqa: TID251  a child's environment
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.stdout, done.stderr) == ("\\u2603\n", "")


def test_every_problem_of_a_job_file_is_printed(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("name: a\nrnu: x\nimage: y\n")
    assert cli("submit", str(file), "--yes") == 1
    assert cli.err == (
        "error: rnu: 'x': unknown key\nhint: did you mean run?\n"
        "error: image: 'y': not available yet\nhint: leave it out\n"
        "error: run: is missing\nhint: for example run: python train.py\n"
    )
    assert cli.master.asked == []


def test_a_missing_code_directory_is_an_error(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: a\nrun: x\ncode: nowhere\n")
    assert cli("submit", str(file), "--yes") == 1
    assert cli.err.startswith("error: no code directory")


# --- looking ------------------------------------------------------------------------------------


def test_show_names_the_signal_that_ended_a_process(cli: Cli) -> None:
    killed = PlaceView(node=0, vm=vm(1).id, exit_signal=9)
    first = job().attempts[0].model_copy(update={"places": [killed]})
    cli.master.scripted[f"GET /jobs/{JOB}"] = _json(job().model_copy(update={"attempts": [first]}))
    assert cli("show", JOB) == 0
    assert "signal SIGKILL" in " ".join(cli.out.split())


@pytest.mark.parametrize("arguments", [["jobs"], ["show", JOB], ["vms"], ["events", JOB]])
def test_what_people_read_fits_80_columns(cli: Cli, arguments: list[str]) -> None:
    cli.master.states = ["running"]
    assert cli(*arguments) == 0
    assert cli.err == ""
    assert max(map(len, cli.out.splitlines())) <= 80


def test_jobs_shows_state_step_cost_and_what_was_saved(cli: Cli) -> None:
    assert cli("jobs") == 0
    header, row, *_ = cli.out.splitlines()
    assert header.split()[:3] == ["JOB", "STATE", "STEP"]
    assert row.split()[:3] == [JOB, "running", "1,200"]
    assert {"zone-a/small", "1x", "$0.012"} <= set(row.split())
    assert row.rstrip().endswith(" 5 min")


def test_no_jobs_says_how_to_start_one(cli: Cli) -> None:
    cli.master.scripted["GET /jobs"] = httpx.Response(200, json=[])
    assert cli("jobs") == 0
    assert "spothop submit" in cli.out


def test_show_has_attempts_vms_checkpoints_and_the_log_as_it_is(cli: Cli) -> None:
    cli.master.states = ["running"]
    assert cli("show", JOB) == 0
    for expected in (
        "mnist-small (owner admin)",
        "running: attempt 2 trains",
        "1,200 (loss 0.1234)",
        "at step 1,300, then every 12 s: sqrt(2 delta (M + R)) = 12 s",
        "2 min 3 s; 14 steps computed again",
        "$0.012; on demand $0.04 (69% less)",
        "checkpoints (newest 5 of 7)",
        "4.2 MB",
        "loss [red]0.1[/red]",
    ):
        assert expected in cli.out


@pytest.mark.parametrize("arguments", [["jobs"], ["show", JOB], ["vms"]])
def test_json_of_lists_and_shows_is_one_document(cli: Cli, arguments: list[str]) -> None:
    assert cli(*arguments, "--json") == 0
    found = json.loads(cli.out)
    first = found[0] if isinstance(found, list) else found
    assert first["id"].endswith(("3f2a9c", "3f2a9c-1"))


@pytest.mark.parametrize("follow", [[], ["--follow"]])
def test_events_are_lines_and_with_json_one_object_each(cli: Cli, follow: list[str]) -> None:
    cli.master.states = ["succeeded"]
    assert cli("events", JOB, *follow) == 0
    assert cli.out.splitlines()[0] == "12:00:00 [1] the job is queued"
    assert cli("events", JOB, "--json", *follow) == 0
    assert [json.loads(line)["id"] for line in cli.out.splitlines()] == [1, 2, 3]


def test_logs_print_the_log_and_nothing_else(cli: Cli) -> None:
    cli.master.states = ["running"]
    assert cli("logs", JOB) == 0
    assert (cli.out, cli.err) == ("epoch 1\nepoch 2\n", "")
    assert cli("logs", JOB, "--json") == 0
    assert json.loads(cli.out) == {"attempt": 1, "text": "epoch 1\nepoch 2\n"}


def test_the_schema_is_json(cli: Cli) -> None:
    assert cli("schema") == 0
    assert json.loads(cli.out)["properties"]["run"]


# --- acting -------------------------------------------------------------------------------------


def test_cancel_says_what_happens(cli: Cli) -> None:
    assert cli("cancel", JOB) == 0
    assert cli.out.startswith(f"{JOB}: cancelling")


@pytest.mark.parametrize(
    ("options", "notice_s"), [([], None), (["--notice", "2.5"], 2.5), (["--no-notice"], 0.0)]
)
def test_preempt_passes_the_notice_on(cli: Cli, options: list[str], notice_s: float | None) -> None:
    assert cli("preempt", JOB, *options) == 0
    assert cli.master.bodies == [{"notice_s": notice_s}]


def test_preempt_takes_a_vm_too(cli: Cli) -> None:
    cli.master.scripted["POST /vms/vm-7/preempt"] = _json(vm())
    assert cli("preempt", "vm-7") == 0
    assert cli.master.asked == ["POST /jobs/vm-7/preempt", "POST /vms/vm-7/preempt"]


def test_preempt_of_nothing_names_both(cli: Cli) -> None:
    assert cli("preempt", "nothing") == 1
    assert cli.err.startswith("error: no job and no VM 'nothing'\nhint: `spothop jobs`")


def test_preempt_that_is_refused_does_not_look_for_a_vm(cli: Cli) -> None:
    refusal = httpx.Response(409, json={"error": "no_running_vm", "message": "no VM yet"})
    cli.master.scripted[f"POST /jobs/{JOB}/preempt"] = refusal
    assert cli("preempt", JOB) == 1
    assert cli.err == "error: no VM yet\n"


# --- submitting ---------------------------------------------------------------------------------


def test_submit_shows_the_plan_uploads_submits_and_follows(cli: Cli, job_file: str) -> None:
    assert cli("submit", job_file, "--yes") == 0
    assert "local/zone-0/small" in cli.out
    assert "20 s*" in cli.out  # no life was seen in this pool
    assert "40 s " in cli.out
    assert "* assumed" in cli.out
    assert f"submitted {JOB}" in cli.out
    assert cli.out.endswith("epoch 1\nepoch 2\n")
    assert "12:00:00 [1] attempt 1 runs" in cli.err
    assert cli.err.endswith(f"{JOB}: succeeded\n")
    methods = [asked.split()[0] for asked in cli.master.asked[:4]]
    assert methods == ["POST", "HEAD", "PUT", "POST"]
    assert max(map(len, cli.out.splitlines())) <= 80


def test_submit_sends_the_spec_and_a_token(cli: Cli, job_file: str) -> None:
    assert cli("submit", job_file, "-y", "-d") == 0
    request = cli.master.bodies[-1]
    assert request["spec"]["run"] == "python train.py"
    assert len(request["token"]) == 32
    assert len(request["bundle"]) == 64
    assert f"spothop logs {JOB} -f" in cli.out


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 1), ("cancelled", 1)])
def test_the_exit_code_is_the_jobs(cli: Cli, job_file: str, state: str, code: int) -> None:
    cli.master.states = ["running", state]
    cli.master.log = b""
    assert cli("submit", job_file, "--yes") == code
    assert cli.err.endswith(f"{JOB}: {state}\n")


def test_submit_without_a_terminal_needs_yes(cli: Cli, job_file: str) -> None:
    assert cli("submit", job_file) == 2
    assert "add --yes" in cli.err
    assert cli.master.asked == []


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 1), ("", 130)])
def test_submit_asks_and_takes_no_for_an_answer(
    cli: Cli, job_file: str, monkeypatch: pytest.MonkeyPatch, typed: str, code: int
) -> None:
    cli.can_ask = True
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert cli("submit", job_file, "--detach") == code
    assert ("POST /jobs" in cli.master.asked) == (code == 0)


def test_submit_where_no_pool_fits_submits_nothing(cli: Cli, job_file: str) -> None:
    cli.master.scripted["POST /plan"] = _json(plan_reply(pools=0))
    assert cli("submit", job_file, "--yes") == 1
    assert "no pool fits" in cli.err
    assert cli.master.asked == ["POST /plan"]


def test_submit_as_json_prints_one_document(cli: Cli, job_file: str) -> None:
    assert cli("submit", job_file, "--yes", "--detach", "--json") == 0
    assert json.loads(cli.out)["id"] == JOB


def test_plan_asks_nothing_and_submits_nothing(cli: Cli, job_file: str) -> None:
    assert cli("plan", job_file) == 0
    assert cli.master.asked == ["POST /plan"]
    assert "0.1234" in cli.out


def test_a_master_that_is_away_for_a_while_does_not_end_the_following(
    cli: Cli, job_file: str
) -> None:
    away = [httpx.ConnectError("refused")] * 5

    def events(request: httpx.Request) -> httpx.Response:
        if away:
            raise away.pop()
        return cli.master.events_answer(int(request.url.params["after"]))

    cli.master.scripted[f"GET /jobs/{JOB}/events"] = events
    cli.master.states = ["running", "succeeded"]
    assert cli("submit", job_file, "--yes") == 0
    assert cli.err.count("the master does not answer; the job goes on") == 1


def test_a_master_that_stays_away_ends_the_following_not_the_job(cli: Cli, job_file: str) -> None:
    cli.master.scripted[f"GET /jobs/{JOB}/events"] = httpx.ConnectError("refused")
    assert cli("submit", job_file, "--yes") == 1
    assert "cannot reach the master" in cli.err
    assert len(cli.master.asked) < 500


@pytest.mark.parametrize(("answer", "code"), [("c", 1), ("s", 130), ("", 130)])
def test_ctrl_c_asks_whether_to_stop_following_or_to_cancel(
    cli: Cli, job_file: str, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    cli.terminal = cli.can_ask = True
    pressed = [KeyboardInterrupt()]

    def events(request: httpx.Request) -> httpx.Response:
        if pressed:
            raise pressed.pop()
        return cli.master.events_answer(int(request.url.params["after"]))

    cli.master.scripted[f"GET /jobs/{JOB}/events"] = events
    cli.master.states = ["running", "running", "cancelled"]
    monkeypatch.setattr(typer, "prompt", lambda *args, **kwargs: answer)
    assert cli("submit", job_file, "--yes") == code
    assert (f"POST /jobs/{JOB}/cancel" in cli.master.asked) == (answer == "c")


def test_ctrl_c_without_a_terminal_leaves_the_job_alone(cli: Cli, job_file: str) -> None:
    def interrupted(request: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    cli.master.scripted[f"GET /jobs/{JOB}/events"] = interrupted
    assert cli("submit", job_file, "--yes") == 130
    assert "the job goes on" in cli.out
    assert f"POST /jobs/{JOB}/cancel" not in cli.master.asked


# --- the master ---------------------------------------------------------------------------------


def test_master_becomes_the_masters_program(cli: Cli) -> None:
    assert cli("master", "--port", "8901", "--host", "127.0.0.2", "--supervise-every-s", "1") == 0
    (command,) = cli.became
    assert command == [
        sys.executable, "-m", "spothop_master", "--home", "/home/m", "--host", "127.0.0.2",
        "--port", "8901", "--supervise-every-s", "1",
    ]  # fmt: skip


def test_master_without_its_extra_says_what_to_install(cli: Cli) -> None:
    session = Session(settings=ClientSettings(), become=cli.became.append)
    with pytest.raises(ClientError, match="no_such_package") as caught:
        start(session, host=None, port=None, home=None, needed=["json", "no_such_package"])
    assert caught.value.hint == "pip install 'spothop[master]'"
    assert cli.became == []


def test_a_closed_pipe_ends_quietly() -> None:
    command = f"{sys.executable} -m spothop.cli schema | head -c 1; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}  # noqa: TID251  a child's environment
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, env=environment
    )
    assert done.stderr == ""
