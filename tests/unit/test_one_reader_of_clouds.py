"""`clouds.watcher` is the only caller of `Cloud.list` and `Cloud.pools`, but for the one request of
admins that has to know what a cloud lists now, before they leave it for good."""

from __future__ import annotations

import ast
from pathlib import Path

import spothop_master

ROOT = Path(spothop_master.__file__).parent
WATCHER = ROOT / "clouds" / "watcher.py"
INVENTORY = ROOT / "clouds" / "inventory.py"
QUESTIONS = {"list", "pools"}


def questions(path: Path) -> set[str]:
    """Methods of these names that the module touches, on whatever object: called, or handed on."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return found & QUESTIONS


def is_driver(path: Path) -> bool:
    """In a folder of `clouds/`: it implements the methods."""
    return (ROOT / "clouds") in path.parents and path.parent != ROOT / "clouds"


def test_only_the_watcher_asks_clouds_what_they_have() -> None:
    assert questions(WATCHER) == QUESTIONS
    readers = [path for path in ROOT.rglob("*.py") if not is_driver(path)]
    assert len(readers) > 50
    assert {path for path in readers if questions(path)} == {INVENTORY, WATCHER}
    assert questions(INVENTORY) == {"list"}
