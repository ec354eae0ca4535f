"""`spothop submit` and `plan` against a scripted master."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import httpx
import pytest
import typer

from fakes.cli_master import JOB, NOW, Cli, in_80_columns, job, plan_reply, reply
from spothop.wire import EventView, JobState, Wanted


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return in_80_columns(capsys, monkeypatch)


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    file = tmp_path / "job.yaml"
    file.write_text("name: mnist-small\nrun: python train.py\n")
    (tmp_path / "train.py").write_text("print(1)")
    return str(file)


def test_submit_shows_the_plan_uploads_submits_and_follows(cli: Cli, job_file: str) -> None:
    assert cli("submit", job_file, "--yes") == 0
    assert "local/zone-0/small" in cli.out
    assert "20 s*" in cli.out  # no life was seen in this pool
    assert "40 s " in cli.out
    assert "* assumed" in cli.out
    assert f"submitted {JOB}" in cli.out
    assert cli.out.endswith("epoch 1\nepoch 2\n")
    assert "12:00:00 [1] runs" in cli.err
    assert "\ncost: $0.012, 69% less than $0.04: the steps" in cli.err
    assert cli.err.endswith(f"{JOB}: succeeded\n")
    methods = [asked.split()[0] for asked in cli.master.asked[:4]]
    assert methods == ["POST", "HEAD", "PUT", "POST"]
    assert max(map(len, cli.out.splitlines())) <= 80


@pytest.mark.parametrize(("option", "shown"), [([], False), (["-v"], True)])
def test_following_leaves_out_details_unless_verbose(
    cli: Cli, job_file: str, option: list[str], shown: bool
) -> None:
    detail = EventView(
        id=7, at=NOW, job=JOB, vm=None, attempt=1, kind="phase", text="setup took 3 s", data={}
    )
    cli.master.scripted[f"GET /jobs/{JOB}/events"] = lambda request: httpx.Response(
        200, json=[detail.model_dump(mode="json")] * (int(request.url.params["after"]) < 7)
    )
    cli.master.log = b"spothop agent: bundle: 0.1 s\nepoch 1\n"
    assert cli("submit", job_file, "--yes", *option) == 0
    assert ("12:00:00 [1] setup took 3 s" in cli.err) == shown
    assert ("spothop agent: bundle" in cli.out) == shown
    assert cli.out.endswith("epoch 1\n")


def test_on_a_terminal_long_events_are_wrapped_beside_their_time(cli: Cli, job_file: str) -> None:
    warning = EventView(
        id=7, at=NOW, job=JOB, vm=None, attempt=None, kind="message", text="word " * 30,
        data={"level": "warning"},
    )  # fmt: skip
    cli.master.scripted[f"GET /jobs/{JOB}/events"] = lambda request: httpx.Response(
        200, json=[warning.model_dump(mode="json")] * (int(request.url.params["after"]) < 7)
    )
    cli.terminal = True
    cli.master.log = b""
    assert cli("submit", job_file, "--yes") == 0
    lines = [line for line in cli.out.splitlines() if "word" in line]
    assert [line[:9] for line in lines] == ["12:00:00 ", " " * 9, " " * 9]
    assert max(map(len, lines)) <= 80


def test_submit_sends_the_spec_and_a_token(cli: Cli, job_file: str) -> None:
    assert cli("submit", job_file, "-y", "-d") == 0
    request = cli.master.bodies[-1]
    assert request["spec"]["run"] == "python train.py"
    assert len(request["token"]) == 32
    assert len(request["bundle"]) == 64
    assert f"spothop logs {JOB} -f" in cli.out


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 1), ("cancelled", 3)])
def test_the_exit_code_is_the_jobs(cli: Cli, job_file: str, state: str, code: int) -> None:
    cli.master.states = ["running", state]
    cli.master.log = b""
    assert cli("submit", job_file, "--yes") == code
    assert cli.err.endswith(f"{JOB}: {state}\n")


def test_following_ends_where_the_job_is_paused(cli: Cli, job_file: str) -> None:
    paused = job().model_copy(
        update={
            "state": JobState.PAUSED,
            "wanted": Wanted.PAUSED,
            "paused_at": NOW,
            "reason": "why",
        }
    )
    cli.master.scripted[f"GET /jobs/{JOB}"] = reply(paused)
    cli.master.log = b""
    assert cli("submit", job_file, "--yes") == 4
    assert f"{JOB}: paused (why)\n" in cli.err
    assert f"`spothop resume {JOB}` lets it go on" in cli.err


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
    cli.master.scripted["POST /plan"] = reply(plan_reply(pools=0))
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


def test_the_plan_says_when_the_job_ends_by_itself(cli: Cli, job_file: str) -> None:
    with Path(job_file).open("a") as file:
        file.write("max_duration: 2h\nmaster_away: 30m\n")
    assert cli("plan", job_file) == 0
    assert "it may take 2 h (max_duration); then it saves and fails" in cli.out
    assert "its VMs save and end themselves 30 min after their master's last word" in cli.out


@pytest.fixture
def ignored(job_file: str) -> Path:
    """Beside the job file: code of two files, a data set that is ignored, and a cache."""
    folder = Path(job_file).parent
    (folder / ".gitignore").write_text("data/\n")
    (folder / "data").mkdir()
    for name, count in (("train.bin", 3_000_000), ("val.bin", 100_000), ("a", 0), ("b", 0)):
        with (folder / "data" / name).open("wb") as file:
            file.truncate(count)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__/train.pyc").write_text("x")
    return folder


@pytest.mark.parametrize("command", [["submit", "--yes", "--detach"], ["plan"]])
def test_what_is_left_out_of_the_code_is_told(
    cli: Cli, job_file: str, ignored: Path, command: list[str]
) -> None:
    assert cli(*command, job_file) == 0
    lines = cli.out.splitlines()
    assert lines[0].startswith("mnist-small: 3 files of code, ")
    assert lines[1:4] == [
        "left out by .gitignore: 4 files, 3.1 MB, largest data/train.bin",
        "always left out (__pycache__): 1 file, 1 B",
        "  `code: {include: [PATTERN, ...]}` in the job file packs some of them",
    ]


def test_plan_as_json_tells_of_the_code_too(cli: Cli, job_file: str, ignored: Path) -> None:
    assert cli("plan", job_file, "--json") == 0
    code = json.loads(cli.out)["code"]
    assert code["files"] == 3
    assert code["left_out"][0] == {
        "rule": ".gitignore", "files": 4, "bytes": 3_100_000, "largest": "data/train.bin",
        "all_counted": True,
    }  # fmt: skip


def test_code_include_packs_and_sends_what_is_ignored(
    cli: Cli, job_file: str, ignored: Path
) -> None:
    with Path(job_file).open("a") as file:
        file.write("code: {include: [data/val.bin]}\n")
    assert cli("submit", job_file, "--yes", "--detach") == 0
    assert "mnist-small: 4 files of code" in cli.out
    assert "left out by .gitignore: 3 files, 3 MB" in cli.out
    spec = cli.master.bodies[-1]["spec"]
    assert spec["code"] == {"path": ".", "include": ["data/val.bin"]}


@pytest.mark.parametrize("command", [["submit", "--yes"], ["plan"]])
def test_a_code_include_that_matches_nothing_asks_the_master_nothing(
    cli: Cli, job_file: str, ignored: Path, command: list[str]
) -> None:
    with Path(job_file).open("a") as file:
        file.write("code: {include: [data/vall.bin]}\n")
    assert cli(*command, job_file) == 1
    assert cli.err.startswith("error: code.include: 'data/vall.bin': matches nothing in ")
    assert cli.master.asked == []


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


@pytest.mark.parametrize(("answer", "code"), [("c", 3), ("s", 130), ("", 130)])
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


def test_ctrl_c_at_that_question_leaves_the_job_alone_and_ends_the_line(
    cli: Cli, job_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.terminal = cli.can_ask = True

    def follow(request: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    def ask(text: str, **options: object) -> str:
        typer.echo(text, nl=False)
        raise typer.Abort

    cli.master.scripted[f"GET /jobs/{JOB}/events"] = follow
    monkeypatch.setattr(typer, "prompt", ask)
    assert cli("submit", job_file, "--yes") == 130
    assert "[s/c]\nthe job goes on" in cli.out
    assert f"POST /jobs/{JOB}/cancel" not in cli.master.asked


def test_ctrl_c_without_a_terminal_leaves_the_job_alone(cli: Cli, job_file: str) -> None:
    def interrupted(request: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    cli.master.scripted[f"GET /jobs/{JOB}/events"] = interrupted
    assert cli("submit", job_file, "--yes") == 130
    assert "the job goes on" in cli.out
    assert f"POST /jobs/{JOB}/cancel" not in cli.master.asked
