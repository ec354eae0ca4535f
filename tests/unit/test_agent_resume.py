"""A script that is started again inside its attempt gets the newest accepted save in its place."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from fakes.attempt_harness import AttemptHarness
from fakes.scripted_process import PID
from fakes.virtual_time import play, until
from spothop.storage.errors import StorageDenied
from spothop.training import resume
from spothop_agent.checkpoint_store import Restore
from spothop_agent.resume import put


def note(run: AttemptHarness) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run.context.paths.restored.read_text())
    return found


async def answer(run: AttemptHarness, name: str, pid: int = PID) -> dict[str, Any]:
    """As `latest_checkpoint()` of a process that was started again."""
    token = f"{pid}-{name}"
    run.process.say("hello", v=1, pid=pid)
    run.process.say("resume", token=token, pid=pid)
    await until(lambda: run.context.paths.restored.exists() and token in note(run)["answered"])
    return note(run)


def in_place(run: AttemptHarness) -> bool:
    paths = run.context.paths
    waiting = resume.published(str(paths.run))
    return resume.is_in_place(note(run), waiting=waiting, job_dir=str(paths.work))


def test_a_committed_save_is_kept_and_moved_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        name = run.process.hand_over(10)
        await until(lambda: run.store.steps == [10] and not any_waiting(run))
        kept = run.context.paths.kept / name
        assert kept.exists()
        assert not in_place(run)
        place = run.context.paths.work / "c"
        place.write_text("half of the save after it")
        found = await answer(run, "a")
        assert (found["path"], found["step"], found["error"]) == ("c", 10, "")
        assert place.read_text() == "data"
        assert in_place(run)
        assert not kept.exists()
        assert "put back: step 10" in run.log()
        await run.over()

    play(scenario)


def test_beside_one_that_trains_nothing_is_replaced(tmp_path: Path) -> None:
    """A script that evaluates the newest save asks as well, while training writes the next one."""

    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        run.process.hand_over(10)
        await until(lambda: run.store.steps == [10] and not any_waiting(run))
        place = run.context.paths.work / "c"
        place.write_text("half of the save after it")
        found = await answer(run, "a", pid=PID + 1)
        assert (found["path"], found["step"], found["error"]) == ("c", 10, "")
        assert place.read_text() == "half of the save after it"
        place.unlink()
        await answer(run, "b", pid=PID + 1)
        assert place.read_text() == "data"  # where nothing lies, as without spothop
        place.write_text("the save after it")
        await answer(run, "c", pid=PID + 1)
        assert place.read_text() == "the save after it"
        run.process.hand_over(20)
        await until(lambda: run.store.steps == [10, 20] and not any_waiting(run))
        run.process.gone(PID)
        await answer(run, "d", pid=PID + 1)  # nobody trains any more
        assert place.read_text() == "data"
        await run.over()

    play(scenario)


def test_an_answer_that_fails_ends_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next one hears the question again: nobody waits an hour for an answer."""

    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)

        def fails(*arguments: object, **options: object) -> None:
            raise RuntimeError("ours")

        monkeypatch.setattr("spothop_agent.resume._lives", fails)
        (run.context.paths.outbox / ".tmp-notes").mkdir()  # somebody else's
        await answer(run, "a")
        (run.context.paths.outbox / ".tmp-1-99").mkdir()
        run.process.say("resume", token=f"{PID}-b")
        with pytest.raises(RuntimeError, match="ours"):
            await run.over(None)

    play(scenario)


def test_what_is_written_while_it_is_copied_is_not_replaced(tmp_path: Path) -> None:
    source, place = tmp_path / "source", tmp_path / "place"
    source.write_text("old")
    place.write_text("new")
    with pytest.raises(FileExistsError):
        put(source, place, copy=True, replace=False)
    assert (place.read_text(), sorted(p.name for p in tmp_path.iterdir())) == (
        "new",
        ["place", "source"],
    )


def any_waiting(run: AttemptHarness) -> bool:
    return any(not n.name.startswith(".") for n in run.context.paths.outbox.iterdir())


def test_an_accepted_save_is_copied_while_it_is_uploaded(tmp_path: Path) -> None:
    """What the script writes into its copy is not seen by the upload."""

    async def scenario() -> None:
        run = AttemptHarness(tmp_path)
        run.store.takes = {10: 5.0}
        await run.training(step=10)
        name = run.process.hand_over(10)
        await until(lambda: run.store.uploads == [10])
        assert (await answer(run, "a"))["step"] == 10
        place = run.context.paths.work / "c"
        assert place.read_text() == "data"
        place.write_text("the script goes on in place")
        payload = run.context.paths.outbox / name / "payload" / "c"
        assert payload.read_text() == "data"
        await until(lambda: run.store.steps == [10])
        await answer(run, "b")  # and again, after the commit
        assert place.read_text() == "data"
        await run.over()
        assert not run.context.paths.kept.exists()

    play(scenario)


def test_one_copy_at_most_and_none_beside_a_newer_save(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path)
        run.store.takes = {20: 5.0}
        await run.training(step=10)
        run.process.hand_over(10)
        await until(lambda: run.store.steps == [10])
        run.process.hand_over(20)
        await until(lambda: run.store.uploads == [10, 20])
        assert list(run.context.paths.kept.iterdir()) == []
        await until(lambda: run.store.steps == [10, 20])
        assert len(list(run.context.paths.kept.iterdir())) == 1
        await run.over()

    play(scenario)


def test_what_this_vm_has_no_more_comes_from_the_store(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        run.process.hand_over(10)
        await until(lambda: run.store.steps == [10])
        shutil.rmtree(run.context.paths.kept)

        def restore(work: Path, **_: Any) -> Restore:
            (work / "c").write_text("from the store")
            return Restore(path="c", step=10, n=2)

        run.store.restore = restore  # type: ignore[method-assign]
        found = await answer(run, "a")
        assert (found["step"], found["id"]) == (10, found["id"])
        assert (run.context.paths.work / "c").read_text() == "from the store"
        assert in_place(run)
        await run.over()

    play(scenario)


def test_what_was_being_handed_over_counts_for_nothing_and_goes(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        run.process.hand_over(10)
        await until(lambda: run.store.steps == [10])
        torn = run.context.paths.outbox / f".tmp-{11:020d}-{PID}"
        living = run.context.paths.outbox / f".tmp-{11:020d}-{os.getpid()}"
        for folder in (torn, living):
            (folder / "payload").mkdir(parents=True)
            (folder / "payload" / "c").write_text("whole or not, nobody knows")
        assert (await answer(run, "a"))["step"] == 10
        assert not torn.exists()
        assert living.exists()
        await run.over()

    play(scenario)


def test_a_store_that_refuses_is_told_to_the_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path)
        run.store.found = Restore(path="c", step=5, n=2)
        await run.training(step=6)
        (run.context.paths.work / "c").write_text("half of the next")
        refused = StorageDenied("no access")
        run.store.fails = {"restore": [refused] * 50}
        found = await answer(run, "a")
        assert "no access" in found["error"]
        run.store.fails = {}
        assert (await answer(run, "b"))["error"] == ""
        await run.over()

    play(scenario)


def test_an_agent_that_is_started_again_answers_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        run.process.hand_over(10)
        await until(lambda: run.store.steps == [10] and not any_waiting(run))
        await run.die()
        run.process.say("resume", token=f"{PID}-a")
        later = run.again()
        later.start()
        await until(lambda: f"{PID}-a" in note(later)["answered"])
        assert (later.context.paths.work / "c").read_text() == "data"
        await later.over()

    play(scenario)


def test_steps_and_a_waiting_request_follow_the_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=100)
        run.attempt.on_notice("e", run.context.now() + 60)
        (asked,) = run.process.heard()
        run.process.say("hello", v=1)  # it saves no more: another one is in its place
        run.process.steps(51)
        await until(lambda: run.attempt.heartbeat().step == 51)
        (again,) = run.process.heard()
        assert again["request"] == asked["request"]
        await run.over()

    play(scenario)


@pytest.mark.parametrize("free", [0, 4])
def test_a_nearly_full_disk_costs_the_copy_first(tmp_path: Path, free: int) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        run.process.hand_over(10)
        await until(lambda: run.store.steps == [10] and not any_waiting(run))
        backups = run.attempt._backups
        assert backups is not None
        assert not backups.resume.make_room(5)  # "data" has four bytes
        assert backups.resume.make_room(free)
        assert not list(run.context.paths.kept.glob("[!.]*"))
        assert "for a restart of the script is deleted" in run.log()
        await run.over()

    play(scenario)
