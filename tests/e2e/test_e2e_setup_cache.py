"""What `setup:` made on one VM is unpacked by the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.counter import check_result
from support.machine import Machine
from support.waiting import until

pytestmark = pytest.mark.e2e

SETUP = """
echo "setup runs"
mkdir -p deps/bin
echo 'print("made by setup", flush=True)' > deps/made.py
ln -s ../made.py deps/bin/link
python -c 'import os; os.utime("deps/made.py", ns=(10**18 + 1, 10**18 + 1))'
"""
RUN = "python deps/bin/link; stat -c %y deps/made.py; "


def test_the_next_vm_unpacks_what_setup_made_and_ends_the_same(
    machine: Machine, tmp_path: Path
) -> None:
    job = machine.counter(
        20, endless=1, setup=SETUP, setup_cache=["deps"], run_before=RUN, dialect="gcp"
    )
    until(lambda: told(machine, job, 1, "kept deps"), what="what setup made is kept")
    machine.reaches(job, 5)
    machine.client.preempt(job)
    ended = machine.ends(job)
    check_result(machine, job, tmp_path)
    assert [a.reason for a in ended.attempts] == ["preempted", "succeeded"]
    assert told(machine, job, 2, "of attempt 1, unpacked in")
    first, second = machine.log(job, 1), machine.log(job, 2)
    assert "setup runs" in first
    assert "setup runs" not in second
    for log in (first, second):
        assert "made by setup" in log
        assert "2001-09-09 01:46:40.000000001" in log
    env = machine.home / "storage" / "jobs" / job / "env"
    assert not [path for path in env.rglob("*") if path.is_file()]  # the job is over


def told(machine: Machine, job: str, attempt: int, words: str) -> bool:
    return any(
        words in event.text
        for event in machine.events(job, "message")
        if event.attempt == attempt and "setup_cache" in event.text
    )
