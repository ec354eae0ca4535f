"""No module over 600 lines, no function over 80: whoever adds a line too many splits by subject."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("agent", "client", "master", "migrations", "tests", "examples", "benchmarks", "deploy")

MODULE, FUNCTION = 600, 80
"""Lines at most."""


def test_no_module_and_no_function_is_too_long() -> None:
    long = []
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            text = path.read_text("utf-8")
            lines = text.count("\n")
            where = path.relative_to(ROOT)
            if lines > MODULE:
                long.append(f"{where}: {lines} lines; split it by subject")
            if may_have_long_function(text):
                long += [f"{where}: {name} has {of} lines" for name, of in functions(text)]
    assert long == []


def may_have_long_function(text: str) -> bool:
    """Parsing all modules takes seconds; most have no two `def` so far apart."""
    open_at: list[tuple[int, int]] = []  # (indentation, line) of functions that may go on
    for match in re.finditer(r"^( *)(?:async )?def |\Z", text, re.MULTILINE):
        line, indentation = text.count("\n", 0, match.start()), len(match[1] or "")
        while open_at and open_at[-1][0] >= indentation:
            if line - open_at.pop()[1] > FUNCTION:
                return True
        open_at.append((indentation, line))
    return False


def functions(text: str) -> list[tuple[str, int]]:
    """Those that are too long, decorators not counted."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION:
                found.append((node.name, lines))
    return found


def test_a_function_of_81_lines_is_found() -> None:
    of_80 = "\n".join(["def of_80():", *["    pass"] * 79])
    of_81 = "\n".join(["    def of_81(self):", "        def within():", *["            pass"] * 79])
    text = f"{of_80}\nclass Any:\n{of_81}\n    x = 1\n"
    assert may_have_long_function(text)
    assert functions(text) == [("of_81", 81)]
    assert not may_have_long_function(f"{of_80}\n")
