"""A real master with its local cloud, for benchmarks: the machine of the end-to-end tests, but with
the product's own intervals instead of the short ones of the tests."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from spothop_master.settings import MasterSettings  # noqa: E402  the path comes first
from support.machine import FAST, MARKER, Machine, free_port, until  # noqa: E402

__all__ = ["MARKER", "ROOT", "Machine", "free_port", "machine", "until", "wall"]


def machine(folder: Path, **options: Any) -> Machine:
    """`options` as `Machine` takes them; settings not named have the defaults of the product."""
    shipped = {name: MasterSettings.model_fields[name].default for name in FAST}
    return Machine(folder, settings={**shipped, **options.pop("settings", {})}, **options)


def wall(monotonic: float) -> float:
    """A moment of CLOCK_MONOTONIC as Unix time."""
    return time.time() - time.monotonic() + monotonic
