"""Two real masters on PostgreSQL, killed one after the other while jobs train."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from fakes.s3_server import S3Server
from support.counter import check_result
from support.masters import Masters
from support.waiting import until

pytestmark = [pytest.mark.e2e]


def test_the_master_that_supervises_is_killed_and_the_other_one_goes_on(tmp_path: Path) -> None:
    with Masters(tmp_path / "machine") as masters:
        job = masters.counter(60, step_ms=20, save_every=20)
        masters.reaches(job, 2)
        first = masters.supervisor()
        assert first is not None
        masters.kill_one(first)
        masters.until_supervised(lambda number: number != first)
        ended = masters.ends(job)
        assert [a.reason for a in ended.attempts] == ["succeeded"]
        assert len(ended.vms) == 1
        check_result(masters, job, tmp_path)
        masters.gone(job)


def test_a_job_trains_through_a_preemption_on_postgresql(tmp_path: Path) -> None:
    with Masters(tmp_path / "machine", count=1) as masters:
        job = masters.counter(20, endless=1)
        masters.reaches(job, 10)
        masters.client.preempt(job)
        ended = masters.ends(job)
        assert [a.reason for a in ended.attempts] == ["preempted", "succeeded"]
        check_result(masters, job, tmp_path)
        masters.gone(job)


@pytest.mark.thorough
def test_masters_that_share_no_disk_keep_bundles_and_logs_in_a_bucket(tmp_path: Path) -> None:
    """The one that was sent the code and has the log so far is killed."""
    with S3Server() as s3:
        bucket = {
            "SPOTHOP_MASTER_FILES": (
                f"s3://bucket/masters?endpoint={quote(s3.endpoint)}&allow_http=true"
            ),
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
        with Masters(tmp_path / "machine", environment=bucket) as masters:
            job = masters.counter(20, endless=1, step_ms=20, save_every=20, setup="seq 300000")
            masters.reaches(job, 2)
            first = masters.supervisor()
            assert first is not None
            masters.kill_one(first)
            masters.until_supervised(lambda number: number != first)
            masters.client.preempt(job)  # the new VM asks the other master for the code
            masters.ends(job)
            check_result(masters, job, tmp_path)
            log = masters.log(job, 1)
            assert "\n299999\n300000\n" in log
            assert "step 1 " in log
            masters.gone(job)
        assert [key for key in s3.objects if key.startswith("masters/logs/")]
        assert len([key for key in s3.objects if key.startswith("masters/bundles/")]) == 1


@pytest.mark.thorough
def test_a_master_that_is_stopped_and_goes_on_does_no_harm(tmp_path: Path) -> None:
    """For longer than its leases, and longer than silence of a VM is borne. It also holds the
    connections of agents that wait for an answer of it."""
    settings = {"silent_after_s": 20}
    with Masters(tmp_path / "machine", settings=settings) as masters:
        job = masters.counter(endless=1, steps=0, step_ms=50, save_every=100)
        masters.reaches(job, 2)
        stopped = masters.supervisor()
        assert stopped is not None
        process = masters.masters[stopped]
        assert process is not None
        other = 1 - stopped
        direct = masters.of(other)
        process.send_signal(signal.SIGSTOP)
        try:
            until(
                lambda: masters.loop_of("supervise", seen_by=other) == other,
                what="the other master supervises",
            )
            time.sleep(25)
            more = direct.job(job)
            assert (more.state, len(more.vms)) == ("running", 1)
        finally:
            process.send_signal(signal.SIGCONT)
        until(lambda: masters.ready(stopped), what="it is back")
        for _ in range(3):
            time.sleep(5)
            assert masters.loop_of("supervise", seen_by=other) == other
            assert direct.job(job).state == "running"
        found = direct.cancel(job)
        ended = masters.ends(job, state="cancelled")
        assert len(ended.vms) == 1, found
        masters.gone(job)
        direct.close()


@pytest.mark.thorough
def test_twenty_jobs_train_while_a_master_is_killed_every_few_seconds(tmp_path: Path) -> None:
    with Masters(tmp_path / "machine") as masters:
        jobs = [
            masters.counter(600, step_ms=100, save_every=100, name=f"job-{number}")
            for number in range(20)
        ]
        turns, began = 0, time.monotonic()
        while time.monotonic() - began < 90:
            number = turns % 2
            masters.kill_one(number)
            time.sleep(4)
            masters.start_one(number)
            masters.answers(number)
            turns += 1
        for job in jobs:
            ended = masters.ends(job, within_s=300)
            assert [a.reason for a in ended.attempts] == ["succeeded"], masters.timeline(job)
            assert len([vm for vm in ended.vms if vm.cloud_id]) == 1
            check_result(masters, job, tmp_path)
        for job in jobs:
            masters.gone(job)
        assert masters.cloud.list("") == [] or masters.live_vms() == []
        assert turns >= 5
