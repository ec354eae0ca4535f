"""A process that the tests leave behind is found, named and ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from pathlib import Path

from support import leftovers


def test_what_carries_the_marker_is_named_and_killed() -> None:
    marker = uuid.uuid4().hex
    with subprocess.Popen(["sleep", "1004"], env={leftovers.MARKER: marker}) as left:
        assert leftovers.end_what_is_left(marker, within_s=0) == [
            f"process {left.pid}: sleep 1004 "
        ]
        assert left.wait() == -signal.SIGKILL
    assert leftovers.end_what_is_left(marker, within_s=0) == []


def test_what_has_another_environment_is_found_by_where_it_works(tmp_path: Path) -> None:
    """As the wrapper of a training process: it had outlived a test by 24 minutes."""
    above = [sys.executable, "-c", "import time; time.sleep(1005)", f"{tmp_path}/log"]
    sleep = ["sleep", "1006"]
    with (
        subprocess.Popen(above, env={}, cwd="/") as named,
        subprocess.Popen(sleep, env={}, cwd=tmp_path) as there,
    ):
        found = leftovers.end_what_is_left(None, below=tmp_path, within_s=0)
        assert {line.partition(":")[0] for line in found} >= {
            f"process {named.pid}",
            f"process {there.pid}",
        }
        assert (named.wait(), there.wait()) == (-signal.SIGKILL, -signal.SIGKILL)
    assert leftovers.end_what_is_left(None, below=tmp_path, within_s=0) == []
