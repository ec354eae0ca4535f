"""The points at which a test may end or pause the agent (see `spothop.chaos`), in their order.

`SPOTHOP_CHAOS=agent:<point>=kill` or `=pause`, several with commas; each strikes once per agent
directory.
"""

from __future__ import annotations

from pathlib import Path

from spothop import chaos

POINTS = (
    *("before_fence", "after_fence", "before_restore", "during_restore", "after_restore"),
    "after_start",
    *("before_upload", "during_upload", "after_upload", "before_commit", "after_commit"),
    "after_report",  # of a commit: it is spooled, and the backup still lies in the outbox
    "after_exit",
)


def from_text(text: str, directory: Path) -> chaos.Chaos:
    """Raises ValueError for an unknown point or action; leaves other programs' entries alone."""
    return chaos.from_text(text, directory, POINTS, program="agent")
