"""What a user gets wrong: the fact and the hint on stderr, a status, no trace, and no job.

All of it meets a real master. Four are asked as processes of their own; the others in this one.
"""

from __future__ import annotations

import http.server
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from e2e.conftest import NewMachine
from spothop_master.program import serve
from support.cli import in_process, spothop
from support.machine import Machine
from support.waiting import WITHIN_S

pytestmark = pytest.mark.e2e

GOOD = "name: fine\nrun: 'true'\n"


def refused(
    done: subprocess.CompletedProcess[str], fact: str, hint: str, *, status: int = 1
) -> None:
    """It ended with this status, and told both in words that these patterns match."""
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    told = " ".join(done.stderr.split())
    assert re.search(rf"error: .*{fact}", told), told
    assert re.search(rf"hint: .*{hint}", told), told


def submit(
    machine: Machine, folder: Path, content: str | bytes
) -> subprocess.CompletedProcess[str]:
    file = folder / "job.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = len(machine.client.jobs(all=True))
    done = in_process(machine, "submit", file, "--yes", "-d")
    assert done.returncode == 0 or len(machine.client.jobs(all=True)) == before
    return done


@pytest.mark.parametrize(
    ("content", "fact", "hint"),
    [
        (GOOD + "resorces: {}", "resorces: .*unknown key", "did you mean resources"),
        (GOOD + "retries: {usr: 3}", "retries.usr: 3: unknown key", "did you mean user"),
        (GOOD + "retries: {user: many}", "retries.user: 'many': .*integer", "."),
        (GOOD + "nodes: 4", "nodes: 4", "only 1 works yet"),
        (GOOD + "python: '3.12'", "python: '3.12': not available yet", "leave it out"),
        ("- a\n- b\n", "job.yaml holds a list, not keys and values", "name:"),
        ("", "job.yaml holds nothing", "name:"),
        ("name: [\n", "job.yaml is not YAML: line 2", "correct that line"),
        (b"name: caf\xe9\n", "job.yaml is not UTF-8 .byte 9", "save it as UTF-8"),
        (GOOD + "code: nowhere", "no code directory .*nowhere", "relative to the folder"),
        (GOOD + "resources: {any_of: [{zone: mars}]}", "no spot pool .*matches", "spothop pools"),
        (GOOD + "checkpoint: {storage: 'foo://x/y'}", "checkpoint.storage: 'foo://x/y'", "s3://"),
        (GOOD + "checkpoint: {storage: 'memory://'}", "checkpoint.storage: 'memory://'", "s3://"),
        (
            GOOD + "checkpoint: {storage: 'file:///proc/nowhere'}",
            "checkpoint.storage: 'file:///proc/nowhere' .*cannot be made",
            "file:///folder",
        ),
    ],
)
def test_a_wrong_job_file(
    machine: Machine, tmp_path: Path, content: str | bytes, fact: str, hint: str
) -> None:
    refused(submit(machine, tmp_path, content), fact, hint)


def test_a_job_file_that_is_not_there(machine: Machine, tmp_path: Path) -> None:
    refused(spothop(machine, "submit", tmp_path / "no.yaml", "--yes"), "no file .*no.yaml", "path")


def test_a_code_directory_that_is_too_large_names_what_is_large(
    machine: Machine, tmp_path: Path
) -> None:
    with (tmp_path / "dataset.bin").open("wb") as file:
        file.truncate(300_000_000)
    refused(submit(machine, tmp_path, GOOD), "300.0 MB, more than 200 MB.*dataset.bin", "gitignore")


def test_storage_that_is_a_file(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("x")
    url = f"file://{tmp_path}/taken"
    done = submit(machine, tmp_path, GOOD + f"checkpoint: {{storage: '{url}'}}")
    refused(done, "this is a file, not a folder", "file:///folder")


def test_storage_that_fails_later_fails_the_job_with_the_reason(
    new_machine: NewMachine, tmp_path: Path
) -> None:
    """It was there at the submit; the VM finds that it is not any more."""
    machine = new_machine(isolation="processes")  # no job of another user could take it away
    bucket = tmp_path / "bucket"
    job = machine.submit(
        "true",
        files={"x": ""},
        setup=f"rm -rf '{bucket}'; touch '{bucket}'",
        checkpoint={"storage": f"file://{bucket}"},
        retries={"user": 0},
    )
    ended = machine.ends(job, "failed")
    assert "fence failed" in ended.reason
    assert str(bucket) in ended.reason
    assert len(ended.attempts) == 1


def test_a_wrong_token(machine: Machine) -> None:
    refused(in_process(machine, "jobs", token="wrong"), "token", "SPOTHOP_TOKEN|admin")


def test_no_token(machine: Machine) -> None:
    refused(in_process(machine, "jobs", token=""), "token", "SPOTHOP_TOKEN|admin")


def test_no_master_there(machine: Machine) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        refused(
            spothop(machine, "jobs", url=url), f"cannot reach the master at {url}", "SPOTHOP_URL"
        )


class Page(http.server.BaseHTTPRequestHandler):
    """Some other web server."""

    def do_GET(self) -> None:
        body = b"<html>It works!</html>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Be quiet."""


@pytest.fixture
def other_server() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_url_that_answers_something_else(machine: Machine, other_server: str) -> None:
    done = in_process(machine, "jobs", url=other_server)
    refused(done, f"{other_server}/api/v1/jobs.limit=50 answered 200 with text/html", "SPOTHOP_URL")


def test_a_url_that_is_none(machine: Machine) -> None:
    refused(in_process(machine, "jobs", url="127.0.0.1:8900"), "not an http.s. URL", "SPOTHOP_URL")


def test_a_job_that_is_not_there(machine: Machine) -> None:
    refused(in_process(machine, "show", "nobody"), "no job 'nobody'", "spothop jobs")


def test_an_option_that_is_none(machine: Machine) -> None:
    refused(spothop(machine, "jobs", "--frobnicate"), "--frobnicate", "--help", status=2)


def start_master(machine: Machine, home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spothop_master", "--home", str(home), *options]
    return subprocess.run(
        command, env=machine.environment(), capture_output=True, text=True, timeout=WITHIN_S
    )


def start_master_in_process(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Ends, because it cannot start."""
    program = typer.Typer()
    program.command()(serve)
    before = os.umask(0o077)
    try:
        done = CliRunner().invoke(program, ["--home", str(home), *options])
    finally:
        os.umask(before)
    return subprocess.CompletedProcess(options, done.exit_code, done.stdout, done.stderr)


def test_a_master_that_cannot_start_ends(machine: Machine, tmp_path: Path) -> None:
    done = start_master(machine, tmp_path / "home", "--port", str(machine.port))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "cannot listen on 127.0.0.1" in done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--port", "{taken}"], "port = .*cannot listen on 127.0.0.1 .*choose another --port"),
        (["--port", "1", "--host", "0.0.0.0"], "host = 0.0.0.0: .*--insecure-public"),
        (["--port", "99999"], "port = 99999: .*less than or equal to 65535"),
        (["--storage-url", "foo://x"], "storage_url = foo://x: .*use s3://bucket"),
        (["--storage-url", "s3://[x]/y"], "storage_url = .*x.*/y: .*use s3://bucket"),
        (["--storage-url", "file:///proc/nowhere"], "storage_url = .*cannot be made"),
        (["--local-cloud", "/nowhere.yaml"], "local cloud configuration /nowhere.yaml"),
        (["--database-url", "sqlite:////nowhere/x.db"], "database_url = .*may be written"),
    ],
)
def test_a_master_that_cannot_start_says_why(
    machine: Machine, tmp_path: Path, options: list[str], told: str
) -> None:
    filled = [option.format(taken=machine.port) for option in options]
    if "--port" not in filled:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            filled += ["--port", str(free.getsockname()[1])]
    done = start_master_in_process(tmp_path / "home", *filled)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(f"spothop master cannot start: {told}", " ".join(done.stderr.split()))


def test_a_second_master_on_the_same_home(machine: Machine) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    done = start_master_in_process(machine.home, "--port", port)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "home" in done.stderr
