"""Which processes are an attempt's: real ones, in a group where we may make one, and without."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spothop_agent import process_tree, wrapper
from spothop_agent.process_tree import MARKER, leader, look, of_attempt, own_group
from support.require import missing
from support.waiting import until

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Of nobody: another session, another environment."""
    with subprocess.Popen(
        SLEEP, env={"PATH": os.defpath}, start_new_session=True, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[str]:
    made = process_tree.make_group(tmp_path)
    if not made:
        missing("the right to make control groups", hint="run the tests as root, with cgroup2")
    yield made
    process_tree.end_group(made)
    until(lambda: not wrapper.group_processes(made), what="the group is empty", poll_s=0.01)
    wrapper.remove_group(made)
    assert not Path(made).exists()


def pids(found: list[process_tree.Seen]) -> list[int]:
    return [seen.pid for seen in found]


def test_a_recorded_process_is_known_again(sleeper: subprocess.Popen[bytes]) -> None:
    record = process_tree.identity(sleeper.pid)
    assert leader(record) == look(sleeper.pid)
    assert pids(of_attempt(Path("/x"), record, below=None)) == [sleeper.pid]


@pytest.mark.parametrize("change", [{"boot": "another"}, {"started": 1}, {"started": None}])
def test_an_id_that_was_used_again_is_not_ours(
    sleeper: subprocess.Popen[bytes], change: dict[str, object]
) -> None:
    record = {**process_tree.identity(sleeper.pid), **change}
    assert leader(record) is None
    assert of_attempt(Path("/x"), record, below=None) == []


def test_a_record_of_version_0_1_says_nothing(sleeper: subprocess.Popen[bytes]) -> None:
    assert leader({"pid": sleeper.pid, "pgid": sleeper.pid}) is None
    assert leader(None) is None


def test_what_was_started_with_the_run_directory_is_found(tmp_path: Path) -> None:
    env = {"PATH": os.defpath, MARKER: str(tmp_path)}
    with subprocess.Popen(SLEEP, env=env, start_new_session=True, stdout=subprocess.PIPE) as found:
        assert found.stdout is not None
        found.stdout.readline()
        assert pids(of_attempt(tmp_path, None, below=None)) == [found.pid]
        assert of_attempt(tmp_path / "other", None, below=None) == []
        (seen,) = of_attempt(tmp_path, None, below=None)
        process_tree.kill(seen)
        assert found.wait() == -signal.SIGKILL
        process_tree.kill(seen)  # harmless


def test_a_signal_does_not_reach_who_has_got_the_id(sleeper: subprocess.Popen[bytes]) -> None:
    seen = look(sleeper.pid)
    assert seen is not None
    process_tree.kill(process_tree.Seen(**{**vars(seen), "started": seen.started - 1}))
    assert sleeper.poll() is None


@pytest.mark.parametrize("pidfd", [True, False])
def test_a_signal_with_and_without_pidfd(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, pidfd: bool
) -> None:
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    seen = look(sleeper.pid)
    assert seen is not None
    process_tree.kill(seen, signal.SIGTERM)
    assert sleeper.wait() == -signal.SIGTERM


def test_what_is_below_is_found_and_we_are_not(sleeper: subprocess.Popen[bytes]) -> None:
    found = pids(of_attempt(Path("/x"), None, below=os.getpid()))
    assert sleeper.pid in found
    assert os.getpid() not in found


def test_a_group_holds_what_left_its_parent_session_and_environment(
    tmp_path: Path, group: str
) -> None:
    """Killed where the kernel can kill groups, and one by one where it cannot."""
    assert process_tree.make_group(tmp_path) == group  # harmless
    lost = "import os\nif os.fork(): os._exit(0)\nos.setsid()\n"
    lost += f"os.execve({SLEEP[0]!r}, {SLEEP}, {{}})"
    join = f"open({group!r} + '/cgroup.procs', 'w').write('0')\n"
    with subprocess.Popen([sys.executable, "-c", join + lost], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()
        (seen,) = of_attempt(Path("/x"), {"group": group}, below=None)
        assert seen.pid != started.pid
        process_tree.end_group(group)
        until(lambda: not wrapper.group_processes(group), what="it is killed", poll_s=0.01)


def test_a_group_is_noted_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is killed between the two leaves an empty group, and its name."""
    monkeypatch.setattr(process_tree, "own_group", lambda *files: tmp_path / "missing")
    assert process_tree.make_group(tmp_path) == ""
    noted = json.loads((tmp_path / process_tree.GROUP).read_text())["group"]
    assert Path(noted).parent == tmp_path / "missing"
    assert process_tree.make_group(tmp_path / "no such run directory") == ""


def test_a_group_that_is_held_for_a_moment_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, refusals, rmdir = tmp_path / "group", [16, 16], os.rmdir
    group.mkdir()

    def held(path: str) -> None:
        if refusals:
            raise OSError(refusals.pop(), "busy")
        rmdir(path)

    monkeypatch.setattr(os, "rmdir", held)
    wrapper.remove_group(str(group))
    assert group.exists()
    wrapper.remove_group(str(group), tries=3)
    assert not group.exists()
    wrapper.remove_group("", tries=3)


def test_a_group_without_cgroup_kill_is_killed_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    with subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL) as found:
        (tmp_path / "below" / "cgroup.procs").write_text(f"{found.pid}\n")
        (tmp_path / "cgroup.kill").mkdir()  # cannot be written
        wrapper.kill_group(str(tmp_path))
        assert found.wait() == -signal.SIGKILL


PLAIN = "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
HYBRID = (
    "29 20 0:25 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "30 20 0:26 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw\n"
)
BOUND = "30 20 0:26 /docker/a\\040b /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    ("mountinfo", "cgroup", "expected"),
    [
        (PLAIN, "0::/system.slice/agent\n", "/sys/fs/cgroup/system.slice/agent"),
        (PLAIN, "0::/\n", "/sys/fs/cgroup"),
        (HYBRID, "4:memory:/m\n0::/u\n", "/sys/fs/cgroup/unified/u"),
        (BOUND, "0::/docker/a b\n", "/sys/fs/cgroup"),
        (BOUND, "0::/docker/a b/c\n", "/sys/fs/cgroup/c"),
        (BOUND, "0::/docker/a bc\n", None),
        (PLAIN, "4:memory:/m\n", None),
        ("", "0::/\n", None),
    ],
)
def test_where_our_own_group_is(mountinfo: str, cgroup: str, expected: str | None) -> None:
    assert own_group(mountinfo, cgroup) == (None if expected is None else Path(expected))


def test_without_the_right_to_make_a_group_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_tree, "own_group", lambda *_: tmp_path / "missing")
    assert process_tree.make_group(tmp_path) == ""
    monkeypatch.setattr(process_tree, "own_group", lambda *_: None)
    assert process_tree.make_group(tmp_path) == ""
    process_tree.end_group("")
    wrapper.remove_group("")
