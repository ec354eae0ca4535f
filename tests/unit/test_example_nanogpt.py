"""The example that shows every line: what its README lists is what its script marks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "nanogpt"
SCRIPT = (EXAMPLE / "train.py").read_text("utf-8")
README = (EXAMPLE / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    "call",
    ["latest_checkpoint", "step_context", "check_save", "backup", "log", "done"],
)
def test_every_call_is_marked_and_explained(call: str) -> None:
    calls = [line for line in SCRIPT.splitlines() if f"sp.{call}(" in line]
    assert calls
    assert all(line.endswith("# spothop") for line in calls)
    assert f"sp.{call}(" in README


def test_the_checkpoint_holds_what_an_exact_resume_needs() -> None:
    (saved,) = (
        ast.unparse(node.args[0])
        for node in ast.walk(ast.parse(SCRIPT))
        if isinstance(node, ast.Call) and "CHECKPOINT" in map(ast.unparse, node.args[1:])
    )
    exact = [line.strip() for line in SCRIPT.splitlines() if "# exact" in line]
    for key in ("random", "batch"):
        assert f"'{key}':" in saved
        assert any(f'saved["{key}"]' in line for line in exact)
        assert f'"{key}": ' in README
