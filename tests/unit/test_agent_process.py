"""The wrapper and what the agent sees through it: real processes, each a fraction of a second."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spothop_agent import process_tree, wrapper
from spothop_agent.paths import AttemptPaths
from spothop_agent.process import Exit, Process, environment, link_client, oom_kills
from spothop_agent.reserve import Reserve
from support import leftovers, waiting
from support.disks import FullDisk, fill, small_disk
from support.require import missing, need_mounts


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[AttemptPaths]:
    made = AttemptPaths(tmp_path)
    made.make()
    made.work.mkdir()
    yield made
    leftovers.end_what_is_left(None, below=tmp_path, within_s=0)  # of a test that failed


def start(paths: AttemptPaths, command: str) -> Process:
    process = Process(paths, log_max=1 << 30)
    process.start(command, {"PATH": os.defpath})
    return process


def until(condition: Callable[[], object]) -> None:
    waiting.until(condition, what="what the line says", poll_s=0.01)


def ended(process: Process) -> Exit:
    until(lambda: process.exit() is not None)
    found = process.exit()
    assert found is not None
    return found


def gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("true", Exit(code=0, signal=None)),
        ("exit 7", Exit(code=7, signal=None)),
        ("kill -9 $$", Exit(code=None, signal=9)),
        ("echo fine; exit 0", Exit(code=0, signal=None)),
        ("echo bad flag >&2; echo; exit 2", Exit(code=2, signal=None, message="bad flag")),
    ],
)
def test_records_how_it_ended(paths: AttemptPaths, command: str, expected: Exit) -> None:
    assert ended(start(paths, command)) == expected
    record = json.loads((paths.run / wrapper.EXIT).read_text())
    assert record["ended_monotonic"] <= time.monotonic()


def test_a_program_that_does_not_exist_is_named(paths: AttemptPaths) -> None:
    found = ended(start(paths, "no-such-program-anywhere"))
    assert found.code == 127
    assert "no-such-program-anywhere: not found" in found.message


TRACEBACK = b"""step 3
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    load()
ValueError: no dataset at data/train

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 5, in <module>
"""


RANK = b"""[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 3, in <module>
[rank0]: ValueError: no dataset at data/train
E1122 10:36:25 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1)
"""
LAUNCHER = b"""Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
"""
ACCELERATE = b"""Traceback (most recent call last):
  File "/usr/bin/accelerate", line 8, in <module>
subprocess.CalledProcessError: Command '['/usr/bin/python', 'train.py']' returned non-zero exit status 1.
"""  # noqa: E501  as it is printed


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        (b"", ""),
        (RANK + LAUNCHER, "ValueError: no dataset at data/train"),
        (RANK + ACCELERATE, "ValueError: no dataset at data/train"),
        (LAUNCHER, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"),
        (b"step 3\n\n  \n", "step 3"),
        (
            TRACEBACK + b"RuntimeError: size mismatch:\n\tlayer 1\nbye\n",
            "RuntimeError: size mismatch:",
        ),
        (
            b"[rank1]: " + TRACEBACK[7:].replace(b"\n", b"\n[rank1]: ") + b"KeyError: 'x'",
            "KeyError: 'x'",
        ),
        (
            b"\x1b[31mTraceback (most recent call last):\x1b[0m\n  File\n\x1b[1mOSError\x1b[0m: a",
            "OSError: a",
        ),
        (b'  File "t.py", line 1\n    f(\n     ^\nSyntaxError: bad\n', "SyntaxError: bad"),
        (b"Traceback (most recent call last):\n  File", "File"),
        (b"\xff\xfe" + b"x" * 999, "\ufffd\ufffd" + "x" * 278),
    ],
)
def test_the_last_words_name_the_exception(tail: bytes, words: str) -> None:
    assert wrapper.last_words(tail) == words


def test_the_longest_last_words_fit_into_the_record(paths: AttemptPaths) -> None:
    found = ended(start(paths, f"printf '{chr(0x1D11E) * 500}'; exit 1"))
    assert found.message == chr(0x1D11E) * wrapper.WORDS
    assert (paths.run / wrapper.EXIT).stat().st_size <= wrapper.RECORD


def test_runs_in_the_jobs_directory_and_logs(paths: AttemptPaths) -> None:
    ended(start(paths, "pwd; echo trouble >&2"))
    assert paths.log.read_text() == f"{paths.work}\ntrouble\n"


OF_THE_C_LIBRARY = 0b11 << 31
"""Signals 32 and 33, which no program can ask about, but which a test may inherit as ignored."""


def test_no_signal_is_ignored_or_blocked(paths: AttemptPaths) -> None:
    """What is ignored is inherited, and no shell can trap it. Python ignores SIGPIPE, so that
    `yes | head -1` would not end; whoever starts an agent may ignore SIGTERM."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        process = start(paths, "grep -E 'SigBlk|SigIgn' /proc/self/status; yes | head -1")
    finally:
        signal.signal(signal.SIGTERM, before)
    ended(process)
    _, blocked, _, ignored, printed = paths.log.read_text().split()
    assert int(blocked, 16) == 0
    assert int(ignored, 16) & ~OF_THE_C_LIBRARY == 0
    assert printed == "y"


def test_another_agent_sees_the_same(paths: AttemptPaths) -> None:
    first = start(paths, "echo up; read never </dev/zero & sleep 30; exit 5")
    until(lambda: paths.log.exists() and "up" in paths.log.read_text())
    second = Process(paths, log_max=1 << 30)
    assert second.exit() is None
    assert second.pid == first.pid
    second.start("echo doubled", {"PATH": os.defpath})  # harmless
    second.signal(signal.SIGTERM)
    assert ended(second) == ended(first) == Exit(code=None, signal=15, message="up")
    assert "doubled" not in paths.log.read_text()


def test_nothing_of_the_run_is_left(paths: AttemptPaths) -> None:
    """Orphans too: in another session, and deaf to SIGTERM."""
    script = "trap '' TERM; echo $$ > child; sleep 60"
    orphan = f'setsid sh -c "{script.replace("$$", chr(92) + "$$")}" &'
    process = start(paths, f"{orphan} while ! [ -s child ]; do sleep 0.01; done")
    assert ended(process) == Exit(code=0, signal=None)
    assert gone(int((paths.work / "child").read_text()))


def test_sigterm_to_the_wrapper_reaches_the_process(paths: AttemptPaths) -> None:
    process = start(paths, "trap 'exit 9' TERM; : > trapped; while :; do sleep 0.01; done")
    until((paths.work / "trapped").exists)
    record = json.loads((paths.run / wrapper.PID).read_text())
    os.kill(record["wrapper"], signal.SIGTERM)
    assert ended(process).code == 9


def test_a_killed_wrapper_is_noticed_and_its_process_ended(paths: AttemptPaths) -> None:
    process = start(paths, "sleep 60")
    until(lambda: process.pid is not None)
    pid = process.pid
    assert pid is not None
    os.kill(json.loads((paths.run / wrapper.PID).read_text())["wrapper"], signal.SIGKILL)
    found = ended(process)
    assert (found.code, found.signal) == (None, None)
    assert "wrapper" in found.message
    until(lambda: gone(pid))


def test_sigterm_before_the_process_is_there_is_not_lost(paths: AttemptPaths) -> None:
    for _ in range(5):
        process = start(paths, "sleep 60")
        process.signal(signal.SIGTERM)
        assert ended(process) == Exit(code=None, signal=15)
        for name in (wrapper.PID, wrapper.EXIT):
            (paths.run / name).unlink()


def test_a_wrapper_that_hangs_holds_nobody_up_for_a_while(paths: AttemptPaths) -> None:
    """As behind a disk that hangs; and nothing of it is lost."""
    wait = "while ! [ -e go ]; do sleep 0.01; done"
    process = start(paths, f"{wait}; head -c 900000 /dev/zero; : > printed")
    until(lambda: process.pid is not None)
    own = json.loads((paths.run / wrapper.PID).read_text())["wrapper"]
    os.kill(own, signal.SIGSTOP)
    (paths.work / "go").touch()
    until((paths.work / "printed").exists)
    assert paths.log.stat().st_size == 0
    os.kill(own, signal.SIGCONT)
    assert ended(process) == Exit(code=0, signal=None)
    assert paths.log.stat().st_size == 900_000


def test_a_flood_of_output_is_limited(paths: AttemptPaths) -> None:
    process = Process(paths, log_max=200_000)
    process.start("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end", {"PATH": os.defpath})
    assert ended(process) == Exit(code=0, signal=None)
    assert paths.log.stat().st_size == 3_000_005
    assert paths.log.stat().st_blocks * 512 <= 200_000 + 2 * 65536
    assert paths.log.read_bytes().endswith(b"xx\nend\n")


def test_the_records_are_written_as_soon_as_the_disk_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that copies on write, where what was allocated is no promise."""
    disk, looks = FullDisk(monkeypatch, tmp_path), 0

    def look(seconds: float) -> None:
        nonlocal looks
        looks += 1
        disk.full = looks < 3

    monkeypatch.setattr(time, "sleep", look)
    wrapper.allocate(tmp_path)
    disk.full = True
    wrapper._publish(tmp_path / wrapper.EXIT, {"code": 1})
    assert json.loads((tmp_path / wrapper.EXIT).read_text()) == {"code": 1}
    assert looks == 3


def test_on_a_disk_that_is_full_from_the_start_to_the_exit(tmp_path: Path) -> None:
    need_mounts()
    with small_disk(tmp_path / "disk", "2m"):
        paths = AttemptPaths(tmp_path / "disk")
        paths.make()
        paths.work.mkdir()
        reserve = Reserve(tmp_path / "disk" / "reserve", 1 << 16)
        filler = fill(tmp_path / "disk")
        process = Process(paths, log_max=1 << 20, make_room=reserve.release)
        process.start("read go; echo lost; exit 7", {"PATH": os.defpath})
        until(lambda: process.pid is not None)
        fill(tmp_path / "disk")
        process.signal(signal.SIGCONT)
        assert ended(process) == Exit(code=7, signal=None, message="lost")
        assert not reserve.held
        filler.unlink()


LOST = (
    "setsid sh -c 'echo $$ > worker; exec env -i sleep 600' &"
    " while ! [ -s worker ]; do sleep 0.01; done; exec sleep 600"
)
"""Starts a worker with another parent, session, group and environment."""


def lost_worker(paths: AttemptPaths) -> int:
    """Its process id, once nothing of it tells where it comes from."""
    until(lambda: (paths.work / "worker").exists() and (paths.work / "worker").read_text())
    pid = int((paths.work / "worker").read_text())
    until(lambda: Path(f"/proc/{pid}/environ").read_bytes() == b"")
    return pid


def kill_the_wrapper(paths: AttemptPaths) -> None:
    os.kill(json.loads((paths.run / wrapper.PID).read_text())["wrapper"], signal.SIGKILL)


def test_a_lost_worker_of_a_killed_wrapper_is_ended_by_its_group(paths: AttemptPaths) -> None:
    process = start(paths, LOST)
    until(lambda: process.pid is not None)
    group = json.loads((paths.run / wrapper.PID).read_text())["group"]
    if not group:
        missing("the right to make control groups", hint="run the tests as root, with cgroup2")
    worker = lost_worker(paths)
    kill_the_wrapper(paths)
    found = ended(Process(paths, log_max=1 << 30))  # an agent that was started again
    assert (found.code, found.left) == (None, ())
    assert gone(worker)
    assert not Path(group).exists()
    ended(process)


SUBREAPER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from unit import test_agent_process as t
from spothop_agent import process_tree
process_tree.adopt_orphans()
process_tree.make_group = lambda run: ""
paths = t.AttemptPaths(Path(sys.argv[1]))
process = t.Process(paths, log_max=1 << 30, subreaper=True)
process.start(t.LOST, {"PATH": t.os.defpath})
worker = t.lost_worker(paths)
t.kill_the_wrapper(paths)
print(t.ended(process).left, t.gone(worker))
"""


def test_a_lost_worker_of_a_killed_wrapper_is_ended_by_the_subreaper(paths: AttemptPaths) -> None:
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", SUBREAPER, str(paths.root), tests],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": tests},  # noqa: TID251  a child's
    )
    assert done.stdout == "() True\n"


def test_what_does_not_end_although_it_is_killed_is_given_up_and_named(
    paths: AttemptPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In uninterruptible sleep, which nobody can bring about at will: the signals do nothing."""
    now = 0.0
    process = Process(paths, log_max=1 << 30, clock=lambda: now)
    process.start("exec sleep 600", {"PATH": os.defpath})
    until(lambda: process.pid is not None)
    with monkeypatch.context() as patch:
        patch.setattr(process_tree, "kill", lambda seen: None)
        patch.setattr(process_tree, "end_group", lambda group: None)
        kill_the_wrapper(paths)
        until(lambda: not process._wrapper_lives())
        assert process.exit() is None
        now = wrapper.GIVE_UP_S
        assert process.exit() is None
        now += 0.1
        assert ended(process).left == (process.pid,)
    until(lambda: ended(process).left == ())


def test_a_process_that_is_given_up_has_ended_for_the_agent(paths: AttemptPaths) -> None:
    process = start(paths, "exec sleep 600")
    until(lambda: process.pid is not None)
    assert process.exit() is None
    process.give_up()
    assert "given up" in ended(process).message
    process.signal(signal.SIGKILL)
    until(lambda: ended(process) == Exit(code=None, signal=9))  # it has ended after all


def test_the_wrapper_gives_up_what_the_kernel_does_not_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, sent = 0.0, []

    class Pump:
        def turn(self, patience_s: float) -> None:
            nonlocal now
            now += 0.5

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((now, number)))
    monkeypatch.setattr(wrapper, "_children", lambda: [4711])
    monkeypatch.setattr(wrapper, "_reap", list)
    assert wrapper._end_leftovers(Pump(), "") == [4711]  # type: ignore[arg-type]
    assert now == wrapper.LEFTOVERS_S + wrapper.GIVE_UP_S + 0.5
    first_kill = next(at for at, number in sent if number == signal.SIGKILL)
    assert first_kill == wrapper.LEFTOVERS_S + 0.5


def test_stale_ids_of_an_earlier_boot_kill_nobody(paths: AttemptPaths) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:
        record = {**process_tree.identity(other.pid), "pgid": other.pid, "boot": "the one before"}
        (paths.run / wrapper.PID).write_text(json.dumps(record))
        process = Process(paths, log_max=1 << 30)
        process.signal(signal.SIGKILL)
        assert "unknown" in ended(process).message
        assert other.poll() is None
        other.kill()


def test_the_wrapper_needs_only_the_standard_library(paths: AttemptPaths) -> None:
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, wrapper.__file__],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {"spothop", "spothop_agent", "pydantic", "asyncio"} & set(done.stdout.split())


@pytest.mark.parametrize(
    ("exit_", "killed"),
    [
        (Exit(code=None, signal=9), True),
        (Exit(code=137, signal=None), True),
        (Exit(code=1, signal=None), False),
        (Exit(code=None, signal=15), False),
        (Exit(code=None, signal=None), False),
    ],
)
def test_killed(exit_: Exit, killed: bool) -> None:
    assert exit_.killed is killed


def test_the_kernels_counter_is_readable_or_absent() -> None:
    count = oom_kills()
    assert count is None or count >= 0


def test_environment(paths: AttemptPaths, tmp_path: Path) -> None:
    base = {"PATH": "/bin", "HOME": "/root", "SPOTHOP_CHAOS": "agent:x=kill", "PYTHONPATH": "/a"}
    env = environment(
        base,
        {"LR": "0.1", "SPOTHOP_JOB": "fake"},
        paths=paths,
        job="job-1",
        attempt=3,
        lib=tmp_path / "lib",
    )
    assert env["PATH"].split(":") == [str(Path(sys.executable).parent), "/bin"]
    assert env["PYTHONPATH"].split(":") == ["/a", str(tmp_path / "lib")]
    assert (env["LR"], env["HOME"]) == ("0.1", "/root")
    assert {name: env[name] for name in sorted(env) if name.startswith("SPOTHOP_")} == {
        "SPOTHOP_ATTEMPT": "3",
        "SPOTHOP_JOB": "job-1",
        "SPOTHOP_JOB_DIR": str(paths.work),
        "SPOTHOP_OUTPUTS": str(paths.outputs),
        "SPOTHOP_RUN_DIR": str(paths.run),
    }


def test_the_client_package_and_nothing_else_is_linked(tmp_path: Path) -> None:
    package = tmp_path / "site" / "spothop"
    package.mkdir(parents=True)
    link_client(tmp_path / "lib", package)
    link_client(tmp_path / "lib", package)
    assert [path.name for path in (tmp_path / "lib").iterdir()] == ["spothop"]
    assert (tmp_path / "lib" / "spothop").resolve() == package
