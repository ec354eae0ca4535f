"""`python -m spothop_agent` and `... spothop_master`: thin, and with collections afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer

import spothop_agent.__main__ as agent
import spothop_agent.program as agent_program
import spothop_master.__main__ as master


@pytest.fixture(autouse=True)
def _unfrozen() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()


def test_the_agent_collects_garbage_again_once_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(agent_program, "main", lambda: (gc.isenabled(), gc.get_freeze_count() > 0))
    monkeypatch.setattr(agent_program, "leave", seen.append)
    agent.main()
    assert seen == [(True, True)]


def test_the_master_collects_garbage_again_once_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(
        typer, "run", lambda serve: seen.append((gc.isenabled(), gc.get_freeze_count() > 0))
    )
    master.main()
    assert seen == [(True, True)]


@pytest.mark.parametrize("program", ["spothop_agent", "spothop_master"])
def test_what_starts_a_program_imports_none_of_it_before(program: str) -> None:
    """Else it would be imported with garbage collection."""
    code = f"import sys, {program}.__main__; print({program!r} + '.program' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
