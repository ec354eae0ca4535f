"""A VM for tests of the agent: a directory, a real agent process, and a script to train."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

from fakes.fake_master import JOIN_TOKEN, VM, FakeMaster, bundle_hash
from spothop.checkpoints import Chain, Entry
from spothop.storage import open_store
from spothop.wire import AgentConfig, Assignment, Dialect, PolicyParams, StorageSpec
from support.waiting import WITHIN_S, until

JOB = "job-1"

TRAIN = """
import json, os, sys, time
import spothop as sp

path = sp.latest_checkpoint()
start = json.loads(path.read_text())["step"] if path else 0
steps, every = int(os.environ["STEPS"]), int(os.environ["EVERY"])
print(f"training from {start} to {steps}")
for step in range(start, steps):
    with sp.step_context():
        time.sleep(float(os.environ["STEP_S"]))
        while os.path.exists(os.environ.get("HOLD", "")):
            time.sleep(0.01)
    sp.log(loss=1 / (step + 1))
    if (step + 1) % every == 0 or sp.check_save():
        with open("checkpoint.json", "w") as file:
            json.dump({"step": step + 1}, file)
        sp.backup("checkpoint.json")
    if step + 1 == int(os.environ.get("CRASH_AT", "-1")):
        sys.exit(3)
with open(os.path.join(os.environ["SPOTHOP_OUTPUTS"], "result.txt"), "w") as file:
    file.write(str(steps))
sp.done()
"""


def pack(files: dict[str, str]) -> bytes:
    """A bundle of text files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


BUNDLE = pack({"train.py": TRAIN})


def assignment(storage: Path, **changes: object) -> Assignment:
    """Attempt 1 of a job that trains 30 steps in about half a second."""
    values: dict[str, object] = {
        "job": JOB,
        "name": "test",
        "attempt": 1,
        "bundle": bundle_hash(BUNDLE),
        "run": "python train.py",
        "env": {"STEPS": "30", "EVERY": "10", "STEP_S": "0.01"},
        "storage": StorageSpec(url=storage.as_uri()),
        "fence_now": True,
        "policy": PolicyParams(policy="thesis-always", grace_s=30.0),
    }
    return Assignment.model_validate({**values, **changes})


def chain(storage: Path) -> list[Entry]:
    """The readable entries of the job's chain."""
    entries = Chain(open_store(StorageSpec(url=storage.as_uri())), JOB).entries()
    return [entry for entry in entries if isinstance(entry, Entry)]


class AgentVm:
    """`start` runs the agent; leaving the block ends everything that runs on this VM."""

    def __init__(
        self,
        root: Path,
        master: FakeMaster,
        *,
        metadata: str,
        dialect: Dialect = Dialect.AZURE,
        chaos: str = "",
    ) -> None:
        self.directory = root / "vm"
        self._config = root / "agent.json"
        self._config.write_text(
            AgentConfig(
                master=master.url,
                token=JOIN_TOKEN,
                vm=VM,
                dialect=dialect,
                metadata=metadata,
                directory=str(self.directory),
            ).model_dump_json()
        )
        self._chaos = chaos
        self._console = root / "console.log"
        self._keeper: threading.Thread | None = None
        self._closing = threading.Lock()
        self._closed = False
        self.starts = 0
        self.agent: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        with self._closing:
            assert not self._closed, "this VM is over"
            return self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "SPOTHOP_CHAOS": self._chaos}  # noqa: TID251  a child's
        with open(self._console, "ab") as console:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", "spothop_agent", "--config", str(self._config)],
                stdout=console,
                stderr=console,
                env=environment,
                start_new_session=True,
            )
        self.starts += 1
        return self.agent

    def keep(self) -> None:
        """Start the agent whenever it dies, as a VM's supervisor does, until it is released."""

        def loop() -> None:
            agent = self.start()
            while agent.wait() != 0:
                with (
                    self._closing
                ):  # either it is started before the end, and killed, or not at all
                    if self._closed:
                        return
                    agent = self._start()

        self._keeper = threading.Thread(target=loop, daemon=True)
        self._keeper.start()

    def run_dir(self, attempt: int = 1) -> Path:
        return self.directory / "attempts" / str(attempt) / "run"

    def trainer_pid(self, attempt: int = 1) -> int:
        return int(self._pids(self.run_dir(attempt))["pid"])

    def end_trainer(self, attempt: int = 1) -> None:
        """SIGTERM to all of the training process, from outside."""
        os.killpg(self._pids(self.run_dir(attempt))["pgid"], signal.SIGTERM)

    def console(self) -> str:
        return self._console.read_text()

    def _pids(self, run: Path) -> dict[str, int]:
        content: dict[str, int] = json.loads((run / "trainer.pid").read_text())
        return content

    def __enter__(self) -> AgentVm:
        return self

    def __exit__(self, *error: object) -> None:
        with self._closing:
            self._closed = True
        if self.agent is not None and self.agent.poll() is None:
            self.agent.kill()
            self.agent.wait()
        if self._keeper is not None:
            self._keeper.join(WITHIN_S)
        for file in self.directory.glob("attempts/*/run/trainer.pid"):
            if not (file.parent / "exit.json").exists():
                os.killpg(self._pids(file.parent)["pgid"], signal.SIGKILL)
                until((file.parent / "exit.json").exists, what="the wrapper has seen the end")
