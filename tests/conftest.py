"""For all tests: which of them run, how many examples they try, that Ctrl-C can be sent, and that
no process of theirs is left at the end."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from support import leftovers, memory_disk

# No deadline, and no complaint about slow data: a slow machine is no counterexample. In CI the same
# examples at every run, so that a red gate is about the change; at home new ones each time, so that
# more is found; with `--all` many new ones.
_SLOW = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("home", max_examples=30, **_SLOW)
settings.register_profile("ci", max_examples=20, derandomize=True, **_SLOW)
settings.register_profile("all", max_examples=500, **_SLOW)
settings.register_profile(  # `make mutants` asks whether an example fails, not for the smallest one
    "mutants",
    settings.get_profile("ci"),
    max_examples=30,
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile("ci" if os.environ.get("CI") else "home")  # noqa: TID251  the tests' switch

# A run starts about a thousand Python processes. Each would compile all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # noqa: TID251  for all of them
sys.dont_write_bytecode = False

memory_disk.use()

# A shell starts background jobs with SIGINT ignored, and their children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all",
        action="store_true",
        help="run the tests marked thorough too, with many random examples, one thing at a time",
    )

    parser.addoption(
        "--postgresql",
        action="store_true",
        help="run every test that uses a database on PostgreSQL, but for those of SQLite only",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--all"):
        settings.load_profile("all")
    if config.getoption("--postgresql"):
        from support import database

        database.use(database.POSTGRESQL, always=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Without garbage collection: what is imported stays, and looking through it again and again
    was two fifths of the time. Nor do later collections look at it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


_THOROUGH = pytest.StashKey[int]()
"""How many tests were left out as thorough."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without `--all`, leave out what is marked thorough, unless it was asked for by its name."""
    if config.getoption("--all") or any("::" in argument for argument in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("thorough")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        config.stash[_THOROUGH] = len(left_out)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What is marked `databases` runs on SQLite and on PostgreSQL; there only with `--all`, or
    where the mark says that it belongs to the gate. A mark that is nearer may say: `only` one."""
    marker = metafunc.definition.get_closest_marker("databases")
    if marker is None:
        return
    gate, only = marker.kwargs.get("gate", False), marker.kwargs.get("only")
    if metafunc.config.getoption("--postgresql") and only != "sqlite":
        return
    kinds = ["sqlite", pytest.param("postgresql", marks=() if gate else pytest.mark.thorough)]
    if only is not None:
        kinds = [only]
    metafunc.parametrize("_databases", kinds, indirect=True)


@pytest.fixture(autouse=True)
def _databases(request: pytest.FixtureRequest) -> Iterator[None]:
    """Those of the test are of the kind that it is run for, and are closed at its end."""
    if kind := getattr(request, "param", None):
        from support import database

        database.use(kind)
    before = sys.modules.get("support.database")  # most tests have none, and do not import it
    of_module = before.made() if before is not None else frozenset()
    yield
    module = sys.modules.get("support.database")
    if module is not None:
        module.close_all(but=of_module)


@pytest.fixture(scope="session")
def _aws_server() -> Iterator[Any]:
    from fakes.aws import Emulator

    with Emulator() as emulator:
        yield emulator


@pytest.fixture
def aws(_aws_server: Any) -> Any:
    """An empty AWS account on loopback (fakes.aws.Emulator); the first one takes two seconds."""
    _aws_server.reset()
    return _aws_server


@pytest.fixture(scope="session")
def _azure_server() -> Iterator[Any]:
    from fakes.azure import Emulator

    with Emulator() as emulator:
        yield emulator


@pytest.fixture
def azure(_azure_server: Any) -> Any:
    """An empty resource group of Azure on loopback (fakes.azure.Emulator)."""
    _azure_server.reset()
    return _azure_server


# Each process that runs tests has its own marker, and looks for what carries it. The one that only
# hands tests to workers gets their findings.
_MARKER = leftovers.mark()
_LEFT = pytest.StashKey[list[str]]()


@pytest.hookimpl(trylast=True)  # fixtures of the session end their processes before
def pytest_sessionfinish(session: pytest.Session) -> None:
    for name in ("support.warm_master", "support.postgres", "support.azurite"):
        if module := sys.modules.get(name):
            module.close()
    config = session.config
    left = config.stash.setdefault(_LEFT, [])
    # Its folder as far as there is one, and not made for this.
    folder: Path | None = getattr(getattr(config, "_tmp_path_factory", None), "_basetemp", None)
    if hasattr(config, "workeroutput"):
        config.workeroutput["left"] = leftovers.end_what_is_left(_MARKER, below=folder)
        config.workeroutput["thorough"] = config.stash.get(_THOROUGH, 0)
    elif not config.getoption("numprocesses", None):
        left += leftovers.end_what_is_left(_MARKER, below=folder)
    if left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_testnodedown(node: Any) -> None:
    output = getattr(node, "workeroutput", {})
    stash = node.config.stash
    stash.setdefault(_LEFT, []).extend(output.get("left", []))
    stash[_THOROUGH] = max(stash.get(_THOROUGH, 0), output.get("thorough", 0))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if count := config.stash.get(_THOROUGH, 0):
        told = f"{count} thorough tests were left out: more cases of what others cover;"
        terminalreporter.write_line(f"{told} `make test-all` runs them, or pytest --all")
    for line in config.stash.get(_LEFT, []):
        terminalreporter.write_line(f"LEFT BEHIND by the tests, and ended now: {line}", red=True)
