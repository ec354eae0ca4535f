"""`download` and `init_from` of a job that trains, saves and prunes while it is read.

At a chosen request of the reader the job commits two newer checkpoints and deletes what they have
superseded, over the same server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.agent_vm import assignment
from fakes.s3_server import FOR_EVER, Fault, S3Server
from spothop.checkpoints import (
    Chain,
    Entry,
    download_outputs,
    prune,
    restore_from_job,
    transfer,
    upload,
    upload_outputs,
)
from spothop.checkpoints.transfer import MAX_LISTINGS
from spothop.sdk.downloads import fetch
from spothop.storage import ObjectMissing, StorageUnavailable, open_store
from spothop.wire import InitFrom, SaveKind
from spothop_agent.checkpoint_store import CheckpointStore

JOB = "living"


class LivingJob:
    """Its checkpoints are directories of two files, whose content is the step."""

    def __init__(self, s3: S3Server, folder: Path) -> None:
        self.s3 = s3
        self._folder = folder
        self._chain = Chain(open_store(s3.spec()), JOB)
        self._chain.fence(1)
        self.step = 0
        self.keep = 0
        self.save()
        self.save()

    def save(self, kind: SaveKind = SaveKind.INSURANCE) -> Entry:
        self.step += 1
        source = self._folder / f"saved-{self.step}"
        source.mkdir()
        for name in ("a", "b"):
            (source / name).write_text(str(self.step))
        files = upload(self._chain.store, JOB, 1, self.step, kind, source)
        return self._chain.commit(
            1, step=self.step, kind=kind, files=files, root="out", is_dir=True, meta={}
        )

    def go_on(self, answer: bytes) -> bytes:
        """Two more checkpoints; of the older ones nothing stays."""
        self.save()
        self.save()
        prune(self._chain.store, JOB, self.keep, chain=self._chain)
        return answer

    def when(self, operation: str, key: str, *, times: int = 1, skip: int = 0) -> None:
        fault = Fault(operation=operation, key=key, times=times, skip=skip)
        fault.change = self._unseen(fault)
        self.s3.add(fault)

    def _unseen(self, fault: Fault) -> Callable[[bytes], bytes]:
        """Its own requests go undisturbed."""

        def change(answer: bytes) -> bytes:
            left, fault.times = fault.times, 0
            self.go_on(answer)
            fault.times = left
            return answer

        return change


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LivingJob]:
    with S3Server() as s3:
        yield LivingJob(s3, tmp_path)


MOMENTS = [
    ("ListObjectsV2", "", 0),
    ("ListObjectsV2", "", 1),
    ("GetObject", "*/chain/*", 0),
    ("GetObject", "*/data/*", 0),
    ("GetObject", "*/data/*", 1),
]
"""At a listing, at the reading of an entry, at the first file, and at the second."""


@pytest.mark.parametrize(("operation", "key", "skip"), MOMENTS)
def test_a_download_ends_with_a_whole_checkpoint(
    job: LivingJob, tmp_path: Path, operation: str, key: str, skip: int
) -> None:
    job.when(operation, key, skip=skip)
    found = fetch(job.s3.spec(), JOB, tmp_path / "to")
    assert found.rejected == []
    assert {(tmp_path / "to/out" / name).read_text() for name in "ab"} == {str(found.step)}
    assert found.step >= 2


@pytest.mark.parametrize(("operation", "key", "skip"), MOMENTS)
def test_an_input_checkpoint_is_a_whole_one(
    job: LivingJob, tmp_path: Path, operation: str, key: str, skip: int
) -> None:
    work = tmp_path / "work"
    source = InitFrom(storage=job.s3.spec(), job=JOB)
    mine = CheckpointStore(assignment(tmp_path / "own", init_from=source))
    fence = mine.fence()
    job.when(operation, key, skip=skip)
    found = mine.restore(work, fence=fence, on_progress=lambda done, total: None)
    assert (found.path, found.step, found.rejected) == ("out", 0, ())
    assert len({(work / "out" / name).read_text() for name in "ab"}) == 1


def test_a_job_that_prunes_again_and_again_is_caught_up_with(
    job: LivingJob, tmp_path: Path
) -> None:
    job.when("GetObject", "*/chain/*", times=3)
    found = restore_from_job(job.s3.spec(), JOB, tmp_path / "to")
    assert found.step == job.step
    assert found.rejected == []


def test_no_old_periodic_checkpoint_is_taken_in_place_of_the_newest(
    job: LivingJob, tmp_path: Path
) -> None:
    job.keep = 1
    job.save(SaveKind.PERIODIC)
    job.save()
    job.save()
    job.when("GetObject", "*/chain/*")
    found = restore_from_job(job.s3.spec(), JOB, tmp_path / "to")
    assert (found.step, found.rejected) == (7, [])


def test_one_that_is_never_caught_up_with_is_told(
    job: LivingJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "MAX_LISTINGS", 3)
    job.when("ListObjectsV2", "", times=FOR_EVER)
    with pytest.raises(StorageUnavailable, match="faster than they can be read"):
        restore_from_job(job.s3.spec(), JOB, tmp_path / "to")
    assert not (tmp_path / "to" / "out").exists()


# --- outputs ------------------------------------------------------------------------------------


def test_outputs_that_are_written_meanwhile_are_listed_again(
    job: LivingJob, tmp_path: Path
) -> None:
    store, outputs = open_store(job.s3.spec()), tmp_path / "outputs"
    outputs.mkdir()
    (outputs / "result").write_text("an old one, and longer")
    upload_outputs(store, JOB, 1, outputs)

    def written_anew(answer: bytes) -> bytes:
        (outputs / "result").write_text("42")
        upload_outputs(store, JOB, 1, outputs)
        return answer

    job.s3.add(Fault(operation="ListObjectsV2", change=written_anew))
    assert download_outputs(store, JOB, tmp_path / "to") == ["result"]
    assert (tmp_path / "to" / "result").read_text() == "42"


def test_outputs_that_are_never_there_are_told(job: LivingJob, tmp_path: Path) -> None:
    store, outputs = open_store(job.s3.spec()), tmp_path / "outputs"
    outputs.mkdir()
    (outputs / "result").write_text("42")
    upload_outputs(store, JOB, 1, outputs)
    job.s3.fail("GetObject", "*/outputs/*", 404, "NoSuchKey", times=FOR_EVER)
    with pytest.raises(ObjectMissing):
        download_outputs(store, JOB, tmp_path / "to")
    assert job.s3.count("GetObject", "*/outputs/*") == MAX_LISTINGS
