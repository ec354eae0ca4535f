"""Cases that mostly wait for processes to start, run beside each other.

`make test` runs one of each family, `make test-all` all of them, and one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from support.faults import FaultyMachine

AT_THE_SAME_TIME = 3
"""Cases; each of them waits for processes to start most of the time."""


def parameters(cases: Iterable[str], *, gate: Collection[str]) -> list[ParameterSet]:
    """For a test of one case: those named in `gate` run always, all others are thorough."""
    names = list(cases)
    assert set(gate) <= set(names), set(gate) - set(names)
    thorough = pytest.mark.thorough
    return [pytest.param(name, marks=() if name in gate else thorough) for name in names]


Case = Callable[["FaultyMachine", str, Path], None]
"""Gets a name for its job, and a folder for its files."""


def on(machine: FaultyMachine, cases: Mapping[str, Case], folder: Path) -> dict[str, Run]:
    """All of them on this one."""
    return {
        name: partial(case, machine, job_name(name), folder / name) for name, case in cases.items()
    }


def job_name(case: str) -> str:
    return case.replace("_", "-")


Run = Callable[[], None]


class SideBySide:
    """Cases that mostly wait, run beside each other; each test takes the outcome of its own."""

    def __init__(self, request: pytest.FixtureRequest, cases: Mapping[str, Run]) -> None:
        """Of the cases, those run whose name is the parameter of a test that was selected."""
        at_once = 1 if request.config.getoption("--all") else AT_THE_SAME_TIME
        self._pool = ThreadPoolExecutor(at_once)
        selected = {
            item.callspec.params.get("case")
            for item in request.session.items
            if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        }
        self._outcomes = {
            name: self._pool.submit(run) for name, run in cases.items() if name in selected
        }

    def __enter__(self) -> SideBySide:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def check(self, name: str) -> None:
        """Raises what the case has raised."""
        self._outcomes[name].result()
