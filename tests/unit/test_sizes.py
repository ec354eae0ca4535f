"""No module over 600 lines, no function over 80: whoever adds a line too many splits by subject."""

from __future__ import annotations

import ast
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
            if lines > FUNCTION:
                long += [f"{where}: {name} has {of} lines" for name, of in functions(text)]
    assert long == []


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
    of_81 = "\n".join(["    def of_81(self):", *["        pass"] * 80])
    assert functions(f"{of_80}\nclass Any:\n{of_81}\n") == [("of_81", 81)]
