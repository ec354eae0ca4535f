"""`import spothop` runs in every training script: it costs little and pulls nothing in."""

from __future__ import annotations

import json
import subprocess
import sys

import spothop

PUBLIC = [
    "backup",
    "check_save",
    "done",
    "enter_step",
    "exit_step",
    "latest_checkpoint",
    "log",
    "saving",
    "step_context",
]

PROGRAM = """
import json, sys
before = set(sys.modules)
import spothop
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_the_public_names_are_these() -> None:
    assert spothop.__all__ == PUBLIC
    assert all(getattr(spothop, name).__doc__ for name in PUBLIC)


def test_only_the_standard_library_and_the_training_modules_are_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    imported: list[str] = json.loads(done.stdout)
    ours = {name for name in imported if name.partition(".")[0] == "spothop"}
    assert {name.partition(".")[0] for name in imported} - {"spothop"} <= sys.stdlib_module_names
    assert ours == {
        "spothop",
        "spothop.training.agreement",
        "spothop.training.channel",
        "spothop.training.contexts",
        "spothop.training.metrics",
        "spothop.training.outbox",
        "spothop.training.pipes",
        "spothop.training.requests",
        "spothop.training.resume",
        "spothop.training.session",
        "spothop.training.shards",
        "spothop.training.steps",
        "spothop.training",
        "spothop.training.api",
    }
    heavy = {"asyncio", "logging", "pathlib", "shutil", "subprocess", "threading", "typing"}
    assert not heavy & set(imported)


def test_an_agent_imports_no_command_lines() -> None:
    """httpx would bring its own one."""
    program = "import json, sys, spothop_agent.program, httpx; print(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not {"rich", "pygments", "click", "typer"} & set(json.loads(done.stdout))


def test_importing_makes_no_session() -> None:
    program = "import spothop.training.api as t; assert t._default is None"
    env = {"SPOTHOP_RUN_DIR": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_agent_makes_no_messages_that_only_users_read() -> None:
    """They cost 50 ms at the start of each agent."""
    program = "import sys, spothop_agent.agent; print('spothop.wire.users' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
