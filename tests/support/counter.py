"""What the counter example must end with, computed here once more and on its own."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from support.machine import Machine


def expected_value(steps: int) -> str:
    """The last link of the chain of `examples/counter` after so many steps."""
    value = ""
    for step in range(1, steps + 1):
        value = hashlib.sha256(f"{value}:{step}".encode()).hexdigest()[:16]
    return value


def result(machine: Machine, job: str, folder: Path) -> dict[str, object]:
    """The example's own result, as a user downloads it."""
    downloaded = machine.client.download(job, folder / f"download-{job}")
    [path] = [path for path in downloaded.outputs if path.name == "result.json"]
    content = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def check_result(machine: Machine, job: str, folder: Path, steps: int | None = None) -> None:
    """As of an uninterrupted run: every step exactly once, and in order, up to `steps`."""
    if steps is None:
        steps = machine.job(job).step
    assert steps is not None
    assert result(machine, job, folder) == {"step": steps, "value": expected_value(steps)}


def steps_in_log(machine: Machine, job: str, attempt: int) -> list[int]:
    """The steps that this attempt computed, as its log says."""
    return [int(n) for n in re.findall(r"^step (\d+) ", machine.log(job, attempt), re.MULTILINE)]
