"""The command line against a scripted master: what it prints, what it asks, how it exits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import typer

from fakes.cli_master import JOB, NOW, POOL, Cli, in_80_columns, job, job_page, reply, vm
from spothop.cli.app import app
from spothop.cli.local_master import bootstrap, start
from spothop.cli.session import Session
from spothop.protection import ADD
from spothop.sdk.downloads import Downloaded
from spothop.sdk.errors import ClientError
from spothop.sdk.settings import ClientSettings
from spothop.wire import (
    JobDetail,
    PlaceView,
    StrayView,
    Unprotected,
    UnprotectedView,
    VmPage,
    Wanted,
)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return in_80_columns(capsys, monkeypatch)


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
        200, json={"vms": [{**vm().model_dump(mode="json"), "state": "hibernating"}]}
    )
    assert cli("vms") == 1
    assert cli.err == (
        "error: the master's answer says vms.0.state = 'hibernating', "
        "which this client does not know\n"
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
    file.write_text("name: a\nrnu: x\npython: y\n")
    assert cli("submit", str(file), "--yes") == 1
    assert cli.err == (
        "error: rnu: 'x': unknown key\nhint: did you mean run?\n"
        "error: python: 'y': not available yet\nhint: leave it out\n"
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
    cli.master.scripted[f"GET /jobs/{JOB}"] = reply(job().model_copy(update={"attempts": [first]}))
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
    header, _, row, pool = cli.out.splitlines()
    assert header.split()[:3] == ["JOB", "STATE", "STEP"]
    assert row.split()[:3] == [JOB, "running", "1,200"]
    assert {"1x", "$0.012"} <= set(row.split())
    assert row.endswith(" 5 min")
    assert pool == "  local/zone-a/small/spot"


def test_jobs_says_below_the_list_why_one_failed(cli: Cli) -> None:
    failed = job(state="failed").model_copy(update={"reason": "ValueError: no data (code 1)"})
    cli.master.scripted["GET /jobs"] = reply(job_page(failed))
    assert cli("jobs") == 0
    assert f"{JOB} failed: ValueError: no data (code 1)" in " ".join(cli.out.split())


def test_vms_shows_the_job_and_asks_for_what_is_wanted(cli: Cli) -> None:
    assert cli("vms", "--job", "mnist-small", "--state", "running", "--cloud", "local") == 0
    assert cli.out.splitlines() == [
        "VM                       STATE    ATTEMPT    RAN  USD/H    COST",
        "  POOL  JOB",
        f"vm-{JOB}-1  running        1  4 min   0.12  $0.008",
        f"  local/zone-a/small/spot  {JOB}",
    ]
    asked = {"job": "mnist-small", "state": "running", "cloud": "local", "limit": "50"}
    assert cli.master.params == asked


def test_a_list_that_goes_on_says_so_and_how(cli: Cli) -> None:
    page = job_page(next="1767225600000000.a-1", total=2143)
    cli.master.scripted["GET /jobs"] = reply(page)
    assert cli("jobs", "--name", "mnist", "--owner", "ann") == 0
    asked = {"name": "mnist", "owner": "ann", "limit": "50"}
    assert cli.master.params == asked
    assert cli.err == (
        "1 of 2,143 jobs; `--all` shows every one, `--next 1767225600000000.a-1` the next 50\n"
    )
    assert cli("jobs", "--json", "--limit", "3", "--next", "1.a") == 0
    assert cli.master.params == {"cursor": "1.a", "limit": "3"}
    assert len(json.loads(cli.out)) == 1
    assert "1 of 2,143" in cli.err


def test_all_goes_through_all_pages(cli: Cli) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        last = "cursor" in request.url.params
        return reply(job_page(next=None if last else "1.a", total=2))

    cli.master.scripted["GET /jobs"] = answer
    assert cli("jobs", "--all", "--json") == 0
    assert len(json.loads(cli.out)) == 2
    assert cli.err == ""
    cli.master.scripted["GET /vms"] = reply(VmPage(vms=[vm()], next="1.b"))
    assert cli("vms") == 0
    assert "`--next 1.b` the next 50" in cli.err


def stray(name: str, *, held: str = "", error: str = "") -> StrayView:
    return StrayView(
        cloud_id=name, pool=POOL, launched_at=NOW - timedelta(hours=2), found_at=NOW, held=held,
        next_at=None, error=error,
    )  # fmt: skip


def test_strays_are_listed_with_why_they_are_held(cli: Cli) -> None:
    found = [stray("i-1", held="3 of 3 are nobody's"), stray("i-2", error="protected")]
    cli.master.scripted["GET /strays"] = reply(found)
    assert cli("vms", "--strays") == 0
    for expected in (
        "held",
        "ends",
        "held: local: 3 of 3 are nobody's",
        "i-2 is not ended: protected",
    ):
        assert expected in cli.out
    assert cli("vms", "--strays", "--cloud", "other") == 0
    assert "no strays" in cli.out
    assert cli("vms", "--strays", "--json") == 0
    assert [row["cloud_id"] for row in json.loads(cli.out)] == ["i-1", "i-2"]
    assert cli("vms", "--strays", "--job", "x") == 2


def test_strays_are_ended_only_when_that_is_meant(cli: Cli) -> None:
    cli.master.scripted["GET /strays"] = reply([stray("i-1", held="why"), stray("i-2")])
    cli.master.scripted["POST /strays/end"] = reply([stray("i-1")])
    assert cli("vms", "--end-strays") == 2
    assert "--yes" in cli.err
    assert "POST /strays/end" not in cli.master.asked
    assert cli("vms", "--end-strays", "--yes", "--cloud", "local") == 0
    assert "the master ends 1 VM with its next sweep" in cli.out + cli.err
    assert cli.master.params == {"cloud": "local"}
    cli.master.scripted["GET /strays"] = reply([stray("i-2")])
    assert cli("vms", "--end-strays", "--yes") == 0
    assert "no stray is held" in cli.out + cli.err


@pytest.mark.parametrize("command", [["jobs"], ["show", JOB]])
def test_a_job_that_nothing_protects_says_what_to_add(cli: Cli, command: list[str]) -> None:
    lacks = UnprotectedView(
        cause=Unprotected.NO_CHECK,
        reason="the script trains, and has never called check_save()",
        since=NOW,
        add=[*ADD[Unprotected.NO_CHECK]],
    )
    shown = job().model_copy(update={"unprotected": lacks}).model_dump(mode="json")
    cli.master.scripted["GET /jobs"] = reply(job_page(JobDetail.model_validate(shown)))
    cli.master.scripted[f"GET /jobs/{JOB}"] = httpx.Response(200, json=shown)
    assert cli(*command) == 0
    said = " ".join(cli.out.split())
    assert {"running,", "unprotected"} <= set(said.split())
    assert lacks.reason in said
    assert all(f"    {line}\n" in cli.out for line in lacks.add)
    assert max(map(len, cli.out.splitlines())) <= 80


def test_a_state_is_not_said_twice(cli: Cli) -> None:
    ended = job(state="cancelled").model_copy(update={"reason": "cancelled by the user"})
    cli.master.scripted[f"GET /jobs/{JOB}"] = httpx.Response(
        200, json=ended.model_dump(mode="json")
    )
    assert cli("show", JOB) == 0
    assert "cancelled by the user" in cli.out
    assert "cancelled: cancelled" not in cli.out


def test_steps_that_nobody_was_told_of_are_at_least_so_many(cli: Cli) -> None:
    shown = job().model_dump(mode="json")
    silent = {**shown["attempts"][0], "places": [{"node": 0, "vm": "vm-1"}]}
    shown["attempts"] = [silent, {**silent, "number": 2}]
    cli.master.scripted[f"GET /jobs/{JOB}"] = httpx.Response(200, json=shown)
    assert cli("show", JOB) == 0
    assert "at least 14 steps, 28 s, $0.0004: a VM that ended" in " ".join(cli.out.split())
    shown["recomputed_steps"] = 0
    cli.master.scripted[f"GET /jobs/{JOB}"] = httpx.Response(200, json=shown)
    assert cli("show", JOB) == 0
    assert "no steps, as far as known: a VM that ended" in " ".join(cli.out.split())


def test_no_jobs_says_how_to_start_one(cli: Cli) -> None:
    cli.master.scripted["GET /jobs"] = reply(job_page().model_copy(update={"jobs": []}))
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
        "2 min 3 s in steps that count",
        "14 steps, 28 s, $0.0004",
        "$0.012, 69% less so far than $0.04: the steps that count and one",
        "checkpoints (newest 5 of 7)",
        "4.2 MB",
        "NoCapacity (InsufficientInstanceCapacity)",
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


def test_logs_on_a_terminal_control_nothing_but_its_colours(cli: Cli) -> None:
    cli.master.states = ["succeeded"]
    cli.master.log = b"\x1b[31mred\x1b[0m \x1b]0;owned\x07\n"
    cli.terminal = True
    assert cli("logs", JOB) == 0
    assert cli.out == "red \u241b]0;owned\u2407\n"  # colours: not into this pipe, as ever
    assert cli("logs", JOB, "--raw") == 0
    assert cli.out == "red \x1b]0;owned\x07\n"
    cli.terminal = False
    assert cli("logs", JOB) == 0
    assert cli.out == "red \x1b]0;owned\x07\n"


def test_logs_print_the_log_and_nothing_else(cli: Cli) -> None:
    cli.master.states = ["running"]
    assert cli("logs", JOB) == 0
    assert (cli.out, cli.err) == ("epoch 1\nepoch 2\n", "")
    assert cli("logs", JOB, "--json") == 0
    assert json.loads(cli.out) == {"attempt": 1, "text": "epoch 1\nepoch 2\n"}


def test_download_as_json_says_where_everything_is(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Downloaded(
        checkpoint=Path("out/ckpt.pt"), step=1200, outputs=(Path("out/a"), Path("out/b")),
        rejected=("entry 7: a wrong checksum",),
    )  # fmt: skip
    monkeypatch.setattr("spothop.sdk.client.Client.download", lambda *given, **more: found)
    assert cli("download", JOB, "--json") == 0
    assert json.loads(cli.out) == {
        "checkpoint": "out/ckpt.pt",
        "step": 1200,
        "outputs": ["out/a", "out/b"],
        "rejected": ["entry 7: a wrong checksum"],
    }


def test_the_schema_is_json(cli: Cli) -> None:
    assert cli("schema") == 0
    assert json.loads(cli.out)["properties"]["run"]


# --- acting -------------------------------------------------------------------------------------


def test_cancel_says_what_happens(cli: Cli) -> None:
    assert cli("cancel", JOB) == 0
    assert cli.out.startswith(f"{JOB}: cancelling")


@pytest.mark.parametrize(
    ("command", "word"),
    [("pause", "pausing"), ("resume", "resuming"), ("cancel --now --why late", "cancelling")],
)
def test_what_is_wanted_of_a_job_is_said(cli: Cli, command: str, word: str) -> None:
    assert cli(*command.split(), JOB) == 0
    assert cli.out.startswith(f"{JOB}: {word}")
    assert cli.master.asked[-1] == f"POST /jobs/{JOB}/{command.split()[0]}"


def test_a_paused_job_says_since_when_and_why(cli: Cli) -> None:
    since = NOW - timedelta(hours=2)
    paused = job(state="paused").model_copy(
        update={
            "ended_at": None,
            "wanted": Wanted.PAUSED,
            "paused_at": since,
            "reason": "paused by ann: prices",
        }
    )
    pausing = job().model_copy(update={"wanted": Wanted.PAUSED})
    cli.master.scripted[f"GET /jobs/{JOB}"] = reply(paused)
    cli.master.scripted["GET /jobs"] = reply(job_page(paused, pausing))
    assert cli("show", JOB) == 0
    assert "paused by ann: prices" in cli.out
    assert "2 h" in cli.out
    assert cli("jobs") == 0
    assert "running, pausing" in " ".join(cli.out.split())
    assert "paused by ann: prices" in cli.out


def test_show_says_when_the_time_of_a_job_is_over(cli: Cli) -> None:
    limited = job().model_copy(update={"ends_at": NOW + timedelta(hours=3)})
    cli.master.scripted[f"GET /jobs/{JOB}"] = reply(limited)
    assert cli("show", JOB) == 0
    assert "time left  3 h; then it saves and fails" in cli.out


@pytest.mark.parametrize(("command", "route"), [("pause", "/pauses"), ("resume", "/resumptions")])
def test_many_are_paused_and_resumed(cli: Cli, command: str, route: str) -> None:
    cli.master.scripted["GET /jobs"] = counted(queued=3, paused=2)
    cli.master.scripted[f"POST {route}"] = httpx.Response(200, json={"changed": 2, "left": 0})
    assert cli(command, "--all", "--yes", "--json") == 0
    assert json.loads(cli.out) == {f"{command}d": 2}
    state = "paused" if command == "resume" else None
    assert cli.master.bodies[-1] == {"state": state, "name": "", "owner": None, "limit": 500}


@pytest.mark.parametrize(
    ("options", "notice_s"), [([], None), (["--notice", "2.5"], 2.5), (["--no-notice"], 0.0)]
)
def test_preempt_passes_the_notice_on(cli: Cli, options: list[str], notice_s: float | None) -> None:
    assert cli("preempt", JOB, *options) == 0
    assert cli.master.bodies == [{"notice_s": notice_s}]


def test_preempt_takes_a_vm_too(cli: Cli) -> None:
    cli.master.scripted["POST /vms/vm-7/preempt"] = reply(vm())
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


# --- the master ---------------------------------------------------------------------------------


def test_master_becomes_the_masters_program(cli: Cli) -> None:
    assert cli("master", "--port", "8901", "--host", "127.0.0.2", "--supervise-every-s", "1") == 0
    (command,) = cli.became
    assert command == [
        sys.executable, "-m", "spothop_master", "--home", "/home/m", "--host", "127.0.0.2",
        "--port", "8901", "--supervise-every-s", "1",
    ]  # fmt: skip


def test_master_passes_on_what_its_help_names(cli: Cli) -> None:
    options = ["--local-cloud", "c.yaml", "--storage-url", "s3://b", "--public-url", "http://m:1"]
    assert cli("master", *options) == 0
    assert cli.became[0][-len(options) :] == options
    assert cli("master", "--help") == 0
    assert all(f"  {option}" in cli.out for option in options[::2])


def test_master_without_its_extra_says_what_to_install(cli: Cli) -> None:
    session = Session(settings=ClientSettings(), become=cli.became.append)
    with pytest.raises(ClientError, match="no_such_package") as caught:
        start(session, host=None, port=None, home=None, needed=["json", "no_such_package"])
    assert caught.value.hint == "pip install 'spothop[master]'"
    assert cli.became == []


def test_bootstrap_becomes_the_masters_program(cli: Cli) -> None:
    assert cli("bootstrap", "aws", "--region", "eu-west-1", "--delete", "--with-data", "-y") == 0
    (command,) = cli.became
    assert command[:3] == [sys.executable, "-m", "spothop_master.bootstrap"]
    assert command[3:] == ["--region", "eu-west-1", "--yes", "--delete", "--with-data"]
    assert cli("bootstrap", "aws", "--help") == 0
    assert "Example: spothop bootstrap aws" in cli.out
    assert max(map(len, cli.out.splitlines())) <= 80


def test_bootstrap_without_its_extra_says_what_to_install(cli: Cli) -> None:
    session = Session(settings=ClientSettings(), become=cli.became.append)
    with pytest.raises(ClientError, match="no_such_package") as caught:
        bootstrap(session, [], needed=["no_such_package"])
    assert caught.value.hint == "pip install 'spothop[aws]'"
    assert cli.became == []


def test_a_closed_pipe_ends_quietly() -> None:
    command = f"{sys.executable} -m spothop.cli schema | head -c 1; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}  # noqa: TID251  a child's environment
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, env=environment
    )
    assert done.stderr == ""


def test_status_says_who_asks_and_what_the_master_keeps(cli: Cli) -> None:
    assert cli("status") == 0, cli.err
    assert [" ".join(line.split()) for line in cli.out.splitlines()] == [
        "you admin (admin)",
        "disk 23 MB in all",
        "database 12 MB (3 MB of it free)",
        "logs 9 MB",
        "bundles 2 MB",
        f"largest log {JOB} 8 MB",
    ]
    assert cli("status", "--json") == 0, cli.err
    assert json.loads(cli.out)["disk"]["database_free"] == 3_000_000


# --- cancelling many ----------------------------------------------------------------------------


def counted(**counts: int) -> httpx.Response:
    return reply(job_page(counts=counts, total=sum(counts.values())))


def test_cancel_all_asks_with_the_numbers(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(typer, "confirm", lambda text, **options: asked.append(text))
    replies = [{"cancelled": 500, "left": 1500}, {"cancelled": 1500, "left": 0}]
    cli.master.scripted["GET /jobs"] = counted(queued=2000, succeeded=9, running=4)
    cli.master.scripted["POST /cancellations"] = lambda request: httpx.Response(
        200, json=replies.pop(0)
    )
    cli.can_ask = True
    assert cli("cancel", "--all", "--state", "queued") == 0
    assert asked == ["Cancel 2,000 jobs (2,000 queued)?"]
    assert "2,000 jobs: cancelling" in cli.out
    assert cli.master.bodies[-1] == {"state": "queued", "name": "", "owner": None, "limit": 500}


def test_cancel_all_without_a_terminal_needs_yes(cli: Cli) -> None:
    cli.master.scripted["GET /jobs"] = counted(queued=3, running=1)
    cli.master.scripted["POST /cancellations"] = httpx.Response(
        200, json={"cancelled": 4, "left": 0}
    )
    assert cli("cancel", "--all") == 1
    assert "4 jobs would be cancelled" in cli.err
    assert cli("cancel", "--all", "--yes", "--json") == 0
    assert json.loads(cli.out) == {"cancelled": 4}


@pytest.mark.parametrize(
    "arguments", [[], [JOB, "--all"], [JOB, "--state", "queued"], ["--state", "queued"]]
)
def test_cancel_wants_a_job_or_all(cli: Cli, arguments: list[str]) -> None:
    assert cli("cancel", *arguments) == 1
    assert "give the JOB to cancel, or --all" in cli.err
    assert cli.master.asked == []
