"""Machines for end-to-end tests: one that all share, and private ones for tests that break them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.machine import Machine

NewMachine = Callable[..., Machine]


@pytest.fixture(scope="session")
def shared_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with Machine(tmp_path_factory.mktemp("shared")) as machine:
        yield machine


@pytest.fixture
def machine(shared_machine: Machine) -> Machine:
    """A running master with its cloud, for tests that leave both as they are."""
    return shared_machine


@pytest.fixture
def new_machine(tmp_path: Path) -> Iterator[NewMachine]:
    """Makes machines of the test's own; each is ended afterwards, and must leave nothing."""
    with ExitStack() as stack:
        count = 0

        def make(**options: Any) -> Machine:
            nonlocal count
            count += 1
            return stack.enter_context(Machine(tmp_path / f"machine-{count}", **options))

        yield make
