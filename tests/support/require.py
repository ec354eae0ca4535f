"""When something heavy is missing: skip with a reason, or fail where nothing may be skipped."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys

import pytest


def missing(what: str, *, hint: str) -> None:
    """Skip; in CI (`SPOTHOP_REQUIRE_ALL=1`) fail instead."""
    reason = f"{what} is not here; {hint}"
    if os.environ.get("SPOTHOP_REQUIRE_ALL") == "1":  # noqa: TID251  the tests' own switch
        pytest.fail(reason)
    pytest.skip(reason)


def need_module(name: str, *, hint: str) -> None:
    if importlib.util.find_spec(name) is None:
        missing(f"the module {name}", hint=hint)


def need_torch() -> None:
    need_module("torch", hint="make test installs it, or pip install 'spothop[train]'")


def need_namespaces() -> None:
    """For VMs with process ids and a network of their own."""
    if not namespaces_work():
        missing("the right to make namespaces", hint="run the tests as root, with unshare(2)")


def need_mounts() -> None:
    """For a small disk of a test's own."""
    if not may_mount():
        missing("the right to mount", hint="run the tests as root")


def may_mount() -> bool:
    return os.geteuid() == 0


@functools.cache
def namespaces_work() -> bool:
    """Asked in a process of its own, which enters them."""
    probe = "import sys; from spothop_master.clouds.local import namespaces as n"
    return subprocess.call([sys.executable, "-c", f"{probe}; sys.exit(not n.available())"]) == 0
