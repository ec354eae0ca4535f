"""The agent's store calls over a real folder: which checkpoint it takes, and when it may begin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.agent_vm import JOB, assignment
from fakes.s3_server import FOR_EVER, Fault, S3Server
from spothop.checkpoints import Chain, Entry, Fenced, Outline, upload
from spothop.storage import ObjectMissing, StorageUnavailable, open_store
from spothop.wire import InitFrom, SaveKind, StorageSpec
from spothop_agent.checkpoint_store import INIT, CheckpointStore, Restore
from spothop_agent.outbox import Entry as Accepted
from spothop_agent.outbox import Meta


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "storage"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


def store(folder: Path, *, attempt: int = 1, first: bool = True, **more: object) -> CheckpointStore:
    return CheckpointStore(assignment(folder, attempt=attempt, **more), first=first)


def chain(folder: Path, job: str = JOB) -> Chain:
    return Chain(open_store(StorageSpec(url=folder.as_uri()), create=True), job)


def save(folder: Path, step: int, *, attempt: int, job: str = JOB) -> Entry:
    """A committed checkpoint `c` that holds its step."""
    source = folder.parent / f"source-{job}-{step}"
    source.write_text(str(step))
    to = chain(folder, job)
    files = upload(to.store, job, attempt, step, SaveKind.PERIODIC, source)
    kind = SaveKind.PERIODIC
    return to.commit(attempt, step=step, kind=kind, files=files, root="c", is_dir=False, meta={})


def ignore(done: int, total: int) -> None:
    """Of progress."""


def test_it_restores_what_is_before_its_own_fence(folder: Path, work: Path) -> None:
    """A newer attempt may have fenced and saved since: an agent that was away must not take a step
    that is not this attempt's to go on from."""
    chain(folder).fence(1)
    old = save(folder, 10, attempt=1)
    fence = store(folder, attempt=2).fence()
    chain(folder).fence(3)
    save(folder, 20, attempt=3)
    found = store(folder, attempt=2).restore(work, fence=fence, on_progress=ignore)
    assert found == Restore(path="c", step=10, n=old.n)
    assert (work / "c").read_text() == "10"


def test_a_first_attempt_makes_its_storage_and_a_later_one_waits_for_it(folder: Path) -> None:
    with pytest.raises(StorageUnavailable, match="any more"):
        store(folder, first=False).fence()
    assert not folder.exists(), "an empty chain would let the job begin again"
    assert store(folder).fence() == 1
    assert store(folder, first=False).fence() == 1  # an agent that was started again


def test_where_an_earlier_attempt_was_an_empty_chain_is_no_beginning(folder: Path) -> None:
    folder.mkdir()
    with pytest.raises(StorageUnavailable, match="nothing of job"):
        store(folder, attempt=2, resumes=True).fence()
    chain(folder).fence(1)
    assert store(folder, attempt=2, resumes=True).fence() == 2


def test_a_newer_attempt_in_the_chain_fences_this_one_out(folder: Path) -> None:
    chain(folder).fence(2)
    with pytest.raises(Fenced):
        store(folder).fence()


def test_another_vm_with_this_attempts_number_fences_this_one_out(folder: Path) -> None:
    chain(folder).fence(1, vm="vm-a")
    assert CheckpointStore(assignment(folder), vm="vm-a").fence() == 1
    with pytest.raises(Fenced, match="vm-a"):
        CheckpointStore(assignment(folder), vm="vm-b").fence()


def test_without_a_checkpoint_it_begins_at_the_start(folder: Path, work: Path) -> None:
    mine = store(folder)
    found = mine.restore(work, fence=mine.fence(), on_progress=ignore)
    assert found == Restore(path=None, step=0, n=None)
    assert list(work.iterdir()) == []


def test_init_from_plain_files(folder: Path, work: Path, tmp_path: Path) -> None:
    files = tmp_path / "pretrained"
    (files / "deep").mkdir(parents=True)
    (files / "deep" / "w").write_text("weights")
    mine = store(folder, init_from=InitFrom(storage=StorageSpec(url=files.as_uri())))
    found = mine.restore(work, fence=mine.fence(), on_progress=ignore)
    assert found == Restore(path=INIT, step=0, n=None)
    assert (work / INIT / "deep" / "w").read_text() == "weights"


def test_init_from_another_job_begins_at_step_0(folder: Path, work: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    chain(other, "parent").fence(1)
    for step in (70, 80):
        save(other, step, attempt=1, job="parent")
    source = InitFrom(storage=StorageSpec(url=other.as_uri()), job="parent")
    mine = store(folder, init_from=source)
    found = mine.restore(work, fence=mine.fence(), on_progress=ignore)
    assert found == Restore(path="c", step=0, n=None)
    assert (work / "c").read_text() == "80"


def test_init_from_a_job_without_a_checkpoint_is_an_error(folder: Path, work: Path) -> None:
    source = InitFrom(storage=StorageSpec(url=folder.as_uri()), job="empty")
    mine = store(folder, init_from=source)
    fence = mine.fence()
    with pytest.raises(ObjectMissing, match="job 'empty' has no checkpoint"):
        mine.restore(work, fence=fence, on_progress=ignore)


def test_its_own_checkpoint_goes_before_init_from(folder: Path, work: Path, tmp_path: Path) -> None:
    chain(folder).fence(1)
    own = save(folder, 5, attempt=1)
    source = InitFrom(storage=StorageSpec(url=(tmp_path / "not there").as_uri()))
    mine = store(folder, attempt=2, init_from=source)
    found = mine.restore(work, fence=mine.fence(), on_progress=ignore)
    assert found == Restore(path="c", step=5, n=own.n)


def accepted(root: Path, step: int) -> Accepted:
    """A backup in the outbox."""
    made = root / f"{step:020d}-1"
    (made / "payload").mkdir(parents=True)
    (made / "payload" / "c").write_text(str(step))
    meta = {"v": 1, "id": made.name, "name": "c", "path": "c", "is_dir": False, "step": step}
    meta |= {"kind": "emergency", "request": "r", "delta_s": 0.5, "mono": 1.0}
    (made / "meta.json").write_text(json.dumps(meta))
    return Accepted(made, Meta.model_validate(meta), 4)


def test_upload_commit_and_what_an_agent_before_us_has_committed(
    folder: Path, work: Path, tmp_path: Path
) -> None:
    mine, backup = store(folder), accepted(tmp_path / "outbox", 7)
    mine.fence()
    assert mine.committed(backup.id) is None
    made = mine.commit(backup, mine.upload(backup, ignore), None)
    assert (made.n, made.step, made.kind) == (2, 7, SaveKind.EMERGENCY)
    assert made.meta == {"delta_s": 0.5, "request": "r"}
    again = store(folder, first=False)
    assert again.committed(backup.id) == Outline.of(made)
    assert again.commit(backup, again.upload(backup, ignore), None).n == 2  # one entry
    found = store(folder, attempt=2).restore(work, fence=3, on_progress=ignore)
    assert (found.step, (work / "c").read_text()) == (7, "7")


def test_old_checkpoints_go_and_outputs_stay(folder: Path, tmp_path: Path) -> None:
    mine = store(folder, keep=1)
    mine.fence()
    for step in (1, 2, 3, 4):
        save(folder, step, attempt=1)
    mine.prune()
    steps = [entry.step for entry in chain(folder).entries() if isinstance(entry, Entry)]
    assert steps[-2:] == [3, 4], "the newest two always stay (I1)"
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    (outputs / "result").write_text("r")
    (outputs / "bad").symlink_to("/nowhere")
    skipped: list[str] = []
    assert mine.upload_outputs(outputs, skipped.append) == 1
    assert (folder / "jobs" / JOB / "outputs" / "1" / "result").read_text() == "r"
    assert len(skipped) == 1


def test_data_of_the_user_is_fetched(folder: Path, work: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a").write_text("a")
    assert store(folder).fetch_data(data.as_uri(), work / "data" / "x") == 1
    assert (work / "data" / "x" / "a").read_text() == "a"


def test_an_agent_that_was_started_again_sends_only_what_is_missing(
    folder: Path, work: Path, tmp_path: Path
) -> None:
    backup = accepted(tmp_path / "outbox", 7)
    backup.payload.write_bytes(bytes(20_000_000))  # three parts
    with S3Server() as s3:

        def opened() -> CheckpointStore:
            work_of = assignment(folder).model_copy(update={"storage": s3.spec()})
            return CheckpointStore(work_of, first=True)

        landed: list[int] = []

        def killed_at_the_end() -> None:
            if s3.count("PutObject", "*/000001") and len(landed) == 2:
                raise KeyError("killed")

        s3.add(Fault(operation="PutObject", key="*/000001", stall=True, times=FOR_EVER))
        with pytest.raises(KeyError):
            opened().upload(backup, lambda done, _: landed.append(done), killed_at_the_end)
        s3.heal()
        before, mine = len(s3.asked), opened()
        mine.fence()
        files = mine.upload(backup, ignore)
        sent = [asked.key[-6:] for asked in s3.asked[before:] if "/data/" in asked.key]
        assert sent == ["000001"]
        mine.commit(backup, files, None)
        assert opened().restore(work, fence=99, on_progress=ignore).step == 7
        assert (work / "c").stat().st_size == 20_000_000
        before = len(s3.asked)
        assert opened().upload(backup, ignore) == files
        assert len(s3.asked) == before
    assert backup.journal.is_file()  # deleted with its entry
