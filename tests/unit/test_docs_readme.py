"""The README's commands are ones that the programs take, as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from spothop import jobfile
from spothop.cli.app import app
from spothop.simulator.presets import PRESETS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
LINES = [
    line.partition("#")[0].rstrip()
    for block in re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith("spothop ")
]


def test_the_readme_shows_the_day_to_day_commands() -> None:
    shown = {shlex.split(line)[1] for line in LINES}
    assert shown >= {"master", "submit", "jobs", "show", "logs", "preempt", "inject", "pools"}
    assert shown >= {"simulate", "download"}


@pytest.mark.parametrize("line", LINES)
def test_a_command_of_the_readme_is_taken_as_it_stands(line: str) -> None:
    name, *arguments = shlex.split(line)[1:]
    group: Any = typer.main.get_command(app)
    command = group.commands[name]
    if hasattr(command, "commands"):  # such as `user add`
        name, *arguments = arguments
        command = command.commands[name]
    context = command.make_context(name, list(arguments))
    if name == "simulate":  # it has options of its own
        assert arguments[:1] == ["--preset"]
        assert arguments[1] in PRESETS
    else:
        assert context.args == []
    if name == "submit":
        spec = jobfile.load(ROOT / str(context.params["file"]))
        assert spec.name == "gpt"  # what the other lines call it


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_what_the_readme_links_to_is_there(path: str) -> None:
    assert (ROOT / path).exists()
