"""The master as a process: it starts, says how to get in, serves, and ends when asked."""

from __future__ import annotations

import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.ports import free_port
from support.waiting import WITHIN_S

pytestmark = pytest.mark.e2e


@pytest.fixture
def port() -> int:
    return free_port()


def command(home: Path, port: int, *more: str) -> list[str]:
    return [sys.executable, "-m", "spothop_master", "--home", str(home), "--port", str(port), *more]


@pytest.fixture
def process(tmp_path: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "home").mkdir(mode=0o755)  # a home of before, which others may enter
    with subprocess.Popen(
        command(tmp_path / "home", port),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        umask=0o022,
    ) as process:
        yield process
        process.kill()


def first_lines(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    told = "".join(process.stdout.readline() for _ in range(4))
    assert told.startswith("spothop master: "), told
    return told


def test_what_a_master_writes_is_its_users_alone(
    process: subprocess.Popen[str], tmp_path: Path
) -> None:
    first_lines(process)
    home = tmp_path / "home"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.rglob("*")}
    assert {"master.db", "master.db-wal", "admin.token", "logs", "bundles", "storage"} <= set(modes)
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}


@pytest.mark.parametrize(
    "asked_with", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)]
)
def test_a_master_says_how_to_get_in_and_ends_when_asked(
    process: subprocess.Popen[str], tmp_path: Path, port: int, asked_with: signal.Signals
) -> None:
    told = first_lines(process)
    url = f"http://127.0.0.1:{port}"
    assert url in told
    found = re.search(r"admin token: (\S+)", told)
    assert found is not None
    headers = {"Authorization": f"Bearer {Path(found[1]).read_text().strip()}"}
    assert httpx.get(f"{url}/api/v1/me", headers=headers).json()["name"] == "admin"
    second = subprocess.run(
        command(tmp_path / "home", port), capture_output=True, text=True, timeout=WITHIN_S
    )
    assert second.returncode == 2
    assert "--port" in second.stderr
    assert "Traceback" not in second.stderr
    process.send_signal(asked_with)
    rest, _ = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0, rest
    assert "Traceback" not in rest
