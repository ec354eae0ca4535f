"""Every command in an 80-column terminal, with the longest names there are: nothing is wider, no
line ends in blanks, and no name that somebody may copy is broken."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import httpx
import pytest

from fakes.cli_master import JOB, NOW, POOL, Cli, in_80_columns, job, job_page, pool_view, reply
from spothop.cli.app import app
from spothop.protection import ADD
from spothop.wire import Unprotected, UnprotectedView, Wanted

COMMANDS = sorted(str(getattr(c.callback, "__name__", "")) for c in app.registered_commands)

LONG_JOB = "a-name-of-forty-eight-characters-the-longest-yes-3f2a9c"
LONG_POOL = POOL.model_copy(
    update={"zone": "southcentralus-1", "vm": "Standard_NC24ads_A100_v4"},
)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    cli = in_80_columns(capsys, monkeypatch)
    cli.master.states = ["running"]
    cli.master.scripted["GET /pools"] = reply([pool_view(), pool_view(spot=False)])
    return cli


def with_long_names(cli: Cli) -> None:
    """Every answer of the master tells of a long job in a long pool."""
    told = cli.master.handle

    def handle(request: httpx.Request) -> httpx.Response:
        url = str(request.url).replace(LONG_JOB, JOB)
        asked = httpx.Request(request.method, url, headers=request.headers, content=request.content)
        answer = told(asked)
        text = answer.content.replace(JOB.encode(), LONG_JOB.encode())
        for name in ("zone-a", "zone-0", "zone-1"):
            text = text.replace(name.encode(), LONG_POOL.zone.encode())
        text = text.replace(b'"small"', f'"{LONG_POOL.vm}"'.encode())
        headers = {k: v for k, v in answer.headers.items() if k.lower().startswith("x-")}
        return httpx.Response(answer.status_code, content=text, headers=headers)

    cli.master.handle = handle  # type: ignore[method-assign]


def arguments_of(tmp_path: Path) -> dict[str, list[str]]:
    """Of each command that prints what people read."""
    file = tmp_path / "job.yaml"
    file.write_text("name: mnist-small\nrun: python train.py\n")
    (tmp_path / ".gitignore").write_text("data/\n")
    (tmp_path / "data" / ("deep" * 15)).mkdir(parents=True)
    (tmp_path / "data" / ("deep" * 15) / "train.bin").write_text("x" * 3000)
    return {
        "jobs": ["jobs"],
        "show": ["show", JOB],
        "events": ["events", JOB],
        "vms": ["vms"],
        "pools": ["pools"],
        "catalog": ["catalog"],
        "catalog --all": ["catalog", "--all"],
        "status": ["status"],
        "plan": ["plan", str(file)],
        "submit": ["submit", str(file), "--yes", "--detach"],
        "cancel": ["cancel", JOB],
        "preempt": ["preempt", JOB],
    }


SHOWN = ["cancel", "events", "jobs", "plan", "pools", "preempt", "show", "status", "submit", "vms"]
SHOWN += ["catalog", "catalog --all"]


def check(text: str, width: int = 80) -> None:
    for line in text.splitlines():
        assert len(line) <= width, line
        assert line == line.rstrip(), line
        assert "datetime" not in line
        assert "tzinfo" not in line


@pytest.mark.parametrize("long", [False, True], ids=["usual", "long"])
@pytest.mark.parametrize("command", SHOWN)
def test_what_people_read_fits_80_columns(
    cli: Cli, tmp_path: Path, command: str, long: bool
) -> None:
    if long:
        with_long_names(cli)
    cli.terminal = True
    assert cli(*arguments_of(tmp_path)[command]) == 0, cli.err
    check(cli.out)
    check(cli.err)
    assert cli.out


@pytest.mark.parametrize("width", [40, 60])
@pytest.mark.parametrize("command", SHOWN)
def test_what_people_read_fits_a_narrower_terminal(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    cli.terminal = True
    assert cli(*arguments_of(tmp_path)[command]) == 0, cli.err
    check(cli.out, width)


@pytest.mark.parametrize("command", ["jobs", "show"])
def test_a_long_reason_is_wrapped(cli: Cli, command: str) -> None:
    reason = "RuntimeError: CUDA error: " + "/a/long/path" * 12 + " (exit code 1)"
    failed = job(state="failed").model_copy(update={"reason": reason, "wanted": Wanted.CANCELLED})
    cli.master.scripted["GET /jobs"] = reply(job_page(failed))
    cli.master.scripted[f"GET /jobs/{JOB}"] = reply(failed)
    assert cli(*[command, JOB][: 1 + (command == "show")]) == 0
    check(cli.out)
    assert reason.replace(" ", "") in "".join(cli.out.split())


@pytest.mark.parametrize("command", ["jobs", "show"])
def test_what_an_unprotected_job_lacks_fits(cli: Cli, command: str) -> None:
    found = UnprotectedView(
        cause=Unprotected.NO_CALLS,
        reason="the script has made no call of spothop for 5 min: nothing of it is saved",
        since=NOW,
        add=list(ADD[Unprotected.NO_CALLS]),
    )
    shown = job().model_copy(update={"unprotected": found})
    cli.master.scripted["GET /jobs"] = reply(job_page(shown))
    cli.master.scripted[f"GET /jobs/{JOB}"] = reply(shown)
    assert cli(*[command, JOB][: 1 + (command == "show")]) == 0
    check(cli.out)
    assert "with sp.step_context():  # around each step" in cli.out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_errors_are_wrapped_on_a_terminal_and_one_line_elsewhere(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = {"error": "e", "message": "why " * 30, "hint": "what to do " * 12}
    cli.master.scripted["GET /vms"] = httpx.Response(422, json=problem)
    assert cli("vms") == 1
    assert len(cli.err.splitlines()) == 2
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert cli("vms") == 1
    check(terminal.getvalue())
    assert len(terminal.getvalue().splitlines()) == 4


@pytest.mark.parametrize(("command", "whole"), [
    ("jobs", (LONG_JOB, str(LONG_POOL))),
    ("vms", (f"vm-{LONG_JOB}-1", LONG_JOB, str(LONG_POOL))),
    ("show", (LONG_JOB, f"vm-{LONG_JOB}-2", str(LONG_POOL))),
    ("pools", (str(LONG_POOL), str(LONG_POOL.model_copy(update={"spot": False})))),
    ("plan", (str(LONG_POOL),)),
])  # fmt: skip
def test_a_name_is_never_broken(
    cli: Cli, tmp_path: Path, command: str, whole: tuple[str, ...]
) -> None:
    with_long_names(cli)
    assert cli(*arguments_of(tmp_path)[command]) == 0
    words = cli.out.split()
    for name in whole:
        assert name in words


@pytest.mark.parametrize("command", ["", *(name for name in COMMANDS if name != "simulate")])
def test_every_help_fits_80_columns(cli: Cli, command: str) -> None:
    assert cli(*command.split(), "--help") == 0
    check(cli.out)
    options = cli.out.partition("Options:")[2]
    assert not re.search("<[a-z]", options)  # words, not the types of a program


def test_the_help_of_simulate_fits_too(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    """It is a program of its own."""
    from spothop.simulator.cli import app as simulator

    with pytest.raises(SystemExit):
        simulator(["--help"], prog_name="spothop simulate")
    text = capsys.readouterr().out
    check(text)
    options = text.partition("Options:")[2]
    assert "Example: spothop simulate " in text
    assert not re.search("<[a-z]", options)


@pytest.mark.parametrize("command", ["jobs", "vms", "pools", "plan", "show"])
def test_json_is_one_document_without_reprs(cli: Cli, tmp_path: Path, command: str) -> None:
    assert cli(*arguments_of(tmp_path)[command], "--json") == 0
    found = json.loads(cli.out)
    assert found
    assert "datetime" not in cli.out


@pytest.mark.parametrize("command", sorted({*COMMANDS} - {"master", "schema", "simulate"}))
def test_every_command_that_shows_data_can_show_it_as_json(cli: Cli, command: str) -> None:
    """`master` shows none, `schema` is JSON; `simulate` is a program of its own."""
    assert cli(command, "--help") == 0
    assert " --json " in cli.out
