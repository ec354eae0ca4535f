"""The training API in a process: what the environment says, and a whole script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spothop.training import api, pipes
from spothop.training.session import Session


def test_off_the_cluster_every_call_is_a_no_op(tmp_path: Path) -> None:
    session = api.session_from({})
    path = tmp_path / "ckpt.pt"
    path.write_text("weights")
    assert session.latest_checkpoint() is None
    session.exit_step()  # nothing to complain about
    with session.step_context(3):
        pass
    assert session.check_save() is False
    session.backup(path)
    assert path.read_text() == "weights"
    session.log({"loss": 1})
    session.done()
    session.close()
    with pytest.raises(FileNotFoundError):
        session.backup(tmp_path / "missing.pt")
    assert [p.name for p in tmp_path.iterdir()] == ["ckpt.pt"]


def test_a_run_directory_that_is_not_there_is_told_and_ignored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = api.session_from({"SPOTHOP_RUN_DIR": str(tmp_path / "gone")})
    assert "running without spothop" in capsys.readouterr().err
    assert session.check_save() is False


def test_no_pipes_at_all_still_leave_the_outbox(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "up").write_text("no pipe")
    (tmp_path / "work").mkdir()
    session = api.session_from(
        {"SPOTHOP_RUN_DIR": str(tmp_path), "SPOTHOP_JOB_DIR": str(tmp_path / "work")}
    )
    assert "no pipe to the agent" in capsys.readouterr().err
    with session.step_context():
        pass
    assert session.check_save() is False
    (tmp_path / "work" / "c").write_text("weights")
    session.backup(tmp_path / "work" / "c")
    assert len(list((tmp_path / "outbox").iterdir())) == 1


@pytest.mark.parametrize(
    ("local_rank", "world", "said"),
    [(None, None, (0, 1)), ("2", "4", (2, 4)), ("x", "y", (0, 1))],
)
def test_the_environment_names_the_rank_and_the_process_its_pipe(
    tmp_path: Path, local_rank: str | None, world: str | None, said: tuple[int, int]
) -> None:
    up = pipes.open_fifo(tmp_path / "up")
    environ = {"SPOTHOP_RUN_DIR": str(tmp_path)}
    if local_rank is not None and world is not None:
        environ |= {"LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": world}
    api.session_from(environ).after_fork()
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"down.{os.getpid()}", "up"]
    (hello,) = pipes.LineDecoder().feed(os.read(up, 65536))
    os.close(up)
    assert (hello["rank"], hello["world"]) == said


SCRIPT = """
import os
import spothop as sp

assert sp.latest_checkpoint().name == "ckpt.txt"
for step in range(5, 9):
    with sp.step_context():
        sp.log(loss=1 / (step + 1))
    if step == 6 and os.fork() == 0:  # a worker: what it says is nobody's business
        sp.log(worker=1)
        assert sp.latest_checkpoint().name == "ckpt.txt"
        os._exit(0)
    if sp.check_save() or step == 7:
        with open("ckpt.txt", "w") as file:
            file.write(str(step + 1))
        sp.backup("ckpt.txt")
os.wait()
sp.done()
"""

FORKED = """
import os
import spothop as sp

sp.latest_checkpoint()
if os.fork() == 0:  # this is the process that trains
    with sp.step_context():
        pass
    open("ckpt.txt", "w").close()
    sp.backup("ckpt.txt")
    sp.done()
    sp.training.api._default.close()
    os._exit(0)
os.wait()
"""


def test_a_trainer_that_was_forked_is_heard_under_its_own_id(tmp_path: Path) -> None:
    run, work = tmp_path / "run", tmp_path / "work"
    run.mkdir()
    work.mkdir()
    up = pipes.open_fifo(run / "up")
    (run / "restored.json").write_text('{"path": "ckpt.txt", "step": 5}')
    environ = {"SPOTHOP_RUN_DIR": str(run), "SPOTHOP_JOB_DIR": str(work)}
    done = subprocess.run(
        [sys.executable, "-c", FORKED], cwd=work, env=environ, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    messages = pipes.LineDecoder().feed(os.read(up, 65536))
    os.close(up)
    parent, child = (msg["pid"] for msg in messages if msg["t"] == "hello")
    assert parent != child
    assert {msg["pid"] for msg in messages if msg["t"] != "hello"} == {child}
    (backup,) = (msg for msg in messages if msg["t"] == "backup")
    assert backup["step"] == 6  # it goes on from where its parent was
    assert (run / "done").exists()


def test_a_whole_script_with_a_fork_in_a_real_process(tmp_path: Path) -> None:
    run, work = tmp_path / "run", tmp_path / "work"
    run.mkdir()
    work.mkdir()
    up = pipes.open_fifo(run / "up")
    (run / "restored.json").write_text('{"path": "ckpt.txt", "step": 5}')
    environ = {"SPOTHOP_RUN_DIR": str(run), "SPOTHOP_JOB_DIR": str(work)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=work, env=environ, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    messages = pipes.LineDecoder().feed(os.read(up, 65536))
    os.close(up)
    assert len({(msg["rank"], msg["pid"]) for msg in messages}) == 1
    assert not any("worker" in str(msg) for msg in messages)
    assert [msg["t"] for msg in messages if msg["t"] not in ("steps", "metrics")] == [
        "hello",
        "phase",
        "trains",
        "backup",
        "done",
    ]
    (init,) = (msg["s"] for msg in messages if msg["t"] == "phase")
    assert 0 < init < 60
    steps = [msg for msg in messages if msg["t"] == "steps"]
    assert (steps[-1]["step"], sum(msg["count"] for msg in steps)) == (9, 4)
    metas = [json.loads(path.read_text()) for path in run.glob("outbox/*/meta.json")]
    assert [(meta["step"], meta["path"]) for meta in metas] == [(8, "ckpt.txt")]


def test_a_thread_may_log_while_another_one_trains(tmp_path: Path) -> None:
    session = Session(str(tmp_path), job_dir=str(tmp_path), poll_every_s=0, report_every_s=0)
    up = pipes.open_fifo(tmp_path / "up")

    def write_log() -> None:
        for value in range(300):
            session.log({"loss": value})

    thread = threading.Thread(target=write_log)
    thread.start()
    for _ in range(300):
        with session.step_context():
            pass
        session.check_save()
    thread.join()
    session.close()
    decoder = pipes.LineDecoder()
    messages = decoder.feed(os.read(up, 1 << 20))
    os.close(up)
    session.after_fork()
    assert decoder.garbage == 0
    assert sum(msg["count"] for msg in messages if msg["t"] == "steps") == 300
    assert [msg["values"]["loss"] for msg in messages if msg["t"] == "metrics"][-1] == 299.0


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"path": 3, "step": 1}'])
def test_an_unreadable_note_never_means_starting_from_nothing(tmp_path: Path, text: str) -> None:
    session = Session(str(tmp_path), job_dir=str(tmp_path))
    (tmp_path / "restored.json").write_text(text)
    with pytest.raises(RuntimeError, match=r"restored\.json cannot be read"):
        session.latest_checkpoint()
    session.after_fork()


WITHOUT_UNIX = """
import os, sys, time
sys.modules["fcntl"] = None
for name in ("mkfifo", "register_at_fork", "fork", "sysconf", "set_blocking", "fsencode_"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("clock_gettime", "CLOCK_BOOTTIME"):
    delattr(time, name)
import select
del select.poll
import spothop as sp

assert sp.latest_checkpoint() is None
for step in range(2):
    with sp.step_context(step):
        sp.log(loss=1.0)
    if sp.check_save():
        raise SystemExit("a save is wanted")
open("ckpt", "w").close()
with sp.saving() as save:
    save.backup("ckpt")
sp.backup("ckpt")
sp.enter_step()
sp.exit_step()
sp.done()
"""


def test_windows_and_macos_can_import_and_call_everything_off_the_cluster(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_UNIX], cwd=tmp_path, env={}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "ckpt").exists()
