"""The points at which a test may end the master (see `spothop.chaos`), in their order.

The setting `chaos` (SPOTHOP_MASTER_CHAOS), such as `after_launch=kill,after_apply@2=kill`: the
first, or the second, time it comes there; each strikes once per home.
"""

from __future__ import annotations

from pathlib import Path

from spothop import chaos

POINTS = ("before_plan", "vm_row_committed", "after_launch", "after_apply", "after_terminate")


def from_text(text: str, directory: Path) -> chaos.Chaos:
    """Raises ValueError for an unknown point or action."""
    return chaos.from_text(text, directory, POINTS)
