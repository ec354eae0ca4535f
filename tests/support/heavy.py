"""When something heavy is missing: skip with a reason, or fail where nothing may be skipped."""

from __future__ import annotations

import importlib.util
import os

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
