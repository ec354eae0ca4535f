"""A process that the tests leave behind is found, named and ended."""

from __future__ import annotations

import signal
import subprocess
import uuid

from support import leftovers


def test_what_carries_the_marker_is_named_and_killed() -> None:
    marker = uuid.uuid4().hex
    with subprocess.Popen(["sleep", "1004"], env={leftovers.MARKER: marker}) as left:
        assert leftovers.end_what_is_left(marker, within_s=0) == [
            f"process {left.pid}: sleep 1004 "
        ]
        assert left.wait() == -signal.SIGKILL
    assert leftovers.end_what_is_left(marker, within_s=0) == []
