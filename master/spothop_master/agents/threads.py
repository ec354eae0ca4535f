"""Threads that belong to the agents' calls.

The pages and storage probes share the default threads of the server. When those are all at work, a
call waits for one of them, and a notice must not. So agents have threads of their own, by how much
a call may wait:

- `urgent`: syncs with reports other than progress (a notice, a commit, an exit), and joins;
- `plain`: syncs with nothing new, answered from the database;
- `bulk`: log chunks, bundles, and syncs that are long to read;
- `background`: what no call waits for.
"""

from __future__ import annotations

from spothop_master.lanes import Lane

URGENT, PLAIN, BULK = 4, 4, 4
"""More would only wait for each other: one core, and one writer at a time on SQLite."""


class AgentThreads:
    """One of each per master."""

    def __init__(self) -> None:
        self.urgent = Lane("agents-urgent", URGENT)
        self.plain = Lane("agents-plain", PLAIN)
        self.bulk = Lane("agents-bulk", BULK)
        self.background = Lane("agents-background", 1)

    def close(self) -> None:
        for lane in (self.urgent, self.plain, self.bulk, self.background):
            lane.close()
