"""Shards of one step are one checkpoint; until all are there, nothing was accepted."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from fakes.attempt_harness import AttemptHarness
from fakes.backup_room import Room
from fakes.scripted_process import PID
from fakes.virtual_time import play, until
from spothop.wire import MessageReport
from spothop_agent import shards
from spothop_agent.checkpoint_store import Restore
from spothop_agent.outbox import Entry, names, read
from spothop_agent.shards import ROOT, Shards
from support.disks import fill, small_disk
from support.require import need_mounts


def messages(run: AttemptHarness) -> list[str]:
    return [report.text for report in run.reports(MessageReport)]


def part(outbox: Path, number: int, *, step: int = 10, place: int = 0, **more: Any) -> str:
    name = f"{number:020d}-{place}"
    (outbox / name / "payload").mkdir(parents=True)
    (outbox / name / "payload" / "c").write_text(f"{place} of {step}, {number}")
    meta = {"v": 1, "id": name, "name": "c", "path": "c", "is_dir": False, "step": step}
    meta |= {"kind": "periodic", "request": None, "delta_s": number / 10, "began": float(number)}
    meta |= {"mono": float(number), "part": place, "parts": 2, **more}
    (outbox / name / "meta.json").write_text(json.dumps(meta))
    return name


def joined(outbox: Path) -> list[Entry]:
    found = [read(outbox, name) for name in names(outbox) if name.endswith("s")]
    return [entry for entry in found if isinstance(entry, Entry)]


def test_two_shards_are_one_checkpoint_and_one_alone_is_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        run.process.hand_over(10, part=(0, 2))
        run.process.hand_over(20, part=(1, 2))
        await until(lambda: not run.process.heard() and run.context.now() > 1010)
        assert run.store.steps == []
        assert run.attempt.heartbeat().pending_saves == 0
        run.process.hand_over(10, part=(1, 2))
        await until(lambda: run.store.steps == [10])
        run.process.hand_over(20, part=(0, 2))
        await until(lambda: run.store.steps == [10, 20])
        note = json.loads(run.context.paths.restored.read_text())
        assert (note["path"], note["shards"]) == (ROOT, ["0/c", "1/c"])
        run.process.hand_over(30, part=(1, 2))
        await run.over()
        assert run.store.steps == [10, 20]
        assert messages(run) == [
            "the save of step 30 is not complete and was not backed up: 1 of 2 shards were handed"
            " over"
        ]

    play(scenario)


def test_two_whole_saves_of_one_step_are_told_once(tmp_path: Path) -> None:
    """Of processes whose ranks nobody knows; one by one after a restart they are none."""

    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        run.process.hand_over(10)
        run.process.hand_over(10, pid=PID + 1)  # it only saves: a forked child
        run.process.say("steps", pid=PID + 1, step=9, count=9, step_s=0.1, load_s=0.0)
        await until(lambda: PID + 1 in run.state.training)
        for step in (20, 30):
            run.process.hand_over(step)
            run.process.hand_over(step, pid=PID + 1)
        await until(lambda: run.store.steps == [10, 10, 20, 20, 30, 30])
        assert [text.partition(":")[0] for text in messages(run)] == [
            "two processes have each handed over a checkpoint of step 20, and a restore takes one"
            " only"
        ]
        await run.over()

    play(scenario)


def test_a_script_that_is_started_again_finds_all_shards_and_mixes_none(tmp_path: Path) -> None:
    """One of step 20 was handed over before, the other one comes from the run after it."""

    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        for number in (0, 1):
            run.process.hand_over(10, part=(number, 2))
        await until(lambda: run.store.steps == [10])
        run.process.hand_over(20, part=(0, 2))
        run.process.say("hello", v=2, at=run.context.now() + 1)
        run.process.say("resume", token=f"{PID}-1")
        folder = run.context.paths.work / ROOT
        await until(lambda: (folder / "1" / "c").exists())
        assert (folder / "0" / "c").read_text() == "shard 0 of step 10"
        run.process.hand_over(20, part=(1, 2))
        await until(lambda: "1 of 2 shards" in str(messages(run)))
        assert run.store.steps == [10]
        run.process.hand_over(20, part=(0, 2))
        await until(lambda: run.store.steps == [10, 20])
        await run.over()

    play(scenario)


def test_a_restore_says_which_shard_is_whose(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path)
        run.store.found = Restore(path=ROOT, step=5, n=2, shards=("0/c", "1/c"))
        await run.training(step=6)
        note = json.loads(run.context.paths.restored.read_text())
        assert note["shards"] == ["0/c", "1/c"]
        await run.over()

    play(scenario)


def test_the_newest_of_each_part_counts_and_the_request_of_any(tmp_path: Path) -> None:
    part(tmp_path, 1, place=0)
    part(tmp_path, 2, place=0, request="r1", kind="emergency")
    waiting, left = Shards(tmp_path).look(names(tmp_path))
    assert len(waiting) == 2
    assert left == []
    part(tmp_path, 3, place=1)
    looked = Shards(tmp_path)
    waiting, left = looked.look(names(tmp_path))
    (entry,) = joined(tmp_path)
    assert (entry.payload / "0" / "c").read_text() == "0 of 10, 2"
    assert (entry.payload / "1" / "c").read_text() == "1 of 10, 3"
    meta = entry.meta
    assert (meta.kind.value, meta.request, meta.step) == ("emergency", "r1", 10)
    assert (meta.began, meta.mono, meta.delta_s) == (2.0, 3.0, 0.3)
    assert len(left) == 2
    assert len(waiting) == 1  # the one that came twice
    assert looked.drop(step=10) != []
    assert looked.look(names(tmp_path)) == (set(), [])


@pytest.mark.parametrize("moves", [0, 1, 2])
def test_an_agent_that_died_between_two_moves_is_followed_by_one_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    for place in (0, 1):
        part(tmp_path, place + 1, place=place)
    real, left = shards.os.replace, [moves]

    def replace(source: Path, target: Path) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(shards.os, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            Shards(tmp_path).look(names(tmp_path))
    Shards(tmp_path).look(names(tmp_path))
    (entry,) = joined(tmp_path)
    assert sorted(str(p.relative_to(entry.payload)) for p in entry.payload.rglob("c")) == [
        "0/c",
        "1/c",
    ]
    assert names(tmp_path) == [entry.id]


@pytest.mark.parametrize("what", ["meta.json", "payload/c"])
def test_a_shard_that_cannot_be_read_now_is_not_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    broken: list[Path] = []
    lstat, read_bytes = os.lstat, Path.read_bytes

    def check(path: Any) -> None:
        if Path(path) in broken:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "lstat", lambda path, **how: (check(path), lstat(path, **how))[1])
    monkeypatch.setattr(Path, "read_bytes", lambda path: (check(path), read_bytes(path))[1])
    made = Shards(tmp_path)
    one = part(tmp_path, 1, place=0)
    broken.append(tmp_path / one / what)
    assert made.look(names(tmp_path)) == (set(), [])
    broken.clear()
    assert made.look(names(tmp_path)) == ({one}, [])
    two = part(tmp_path, 2, place=1)
    made.look(names(tmp_path))
    assert [entry.id for entry in joined(tmp_path)] == [f"{two}s"]


def test_a_shard_that_can_be_read_a_moment_later_is_no_whole_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        backups = room.worker()
        one = part(room.context.paths.outbox, 1, place=0)
        with monkeypatch.context() as patched:
            patched.setattr(Shards, "look", lambda shards, names: (set(), []))
            assert not backups.look()
        assert backups.waiting == 0
        assert backups.look()
        assert names(room.context.paths.outbox) == [one]
        await room.context.link.close()

    play(scenario)


def test_a_full_disk_only_delays_the_joining(tmp_path: Path) -> None:
    need_mounts()
    disk = tmp_path / "disk"
    with small_disk(disk, "1m"):
        for number in (0, 1):
            part(disk, number + 1, place=number)
        both, filler = names(disk), fill(disk)
        waiting = Shards(disk)
        assert waiting.look(both) == (set(both), [])
        assert waiting.delayed
        filler.unlink()
        waiting.look(both)
        assert not waiting.delayed
        assert [entry.meta.shards for entry in joined(disk)] == [("0/c", "1/c")]


def test_a_full_disk_delays_an_agent_that_finds_a_joining_that_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (0, 1):
        part(tmp_path, number + 1, place=number)
    both = names(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shards, "suppress", lambda error: 1 / 0)  # killed at the first move
        killed = Shards(tmp_path)
        with pytest.raises(ZeroDivisionError):
            killed.look(both)
    aside = next(tmp_path.glob(".join-*"))
    (tmp_path / both[0] / "payload/c").rename(aside / "payload" / ROOT / "0/c")
    shutil.rmtree(aside / "payload" / ROOT / "1")

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    waiting = Shards(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", full)  # Python 3.10 keeps os.mkdir where nobody reaches it
        assert waiting.look(both) == (set(both), [])
        assert waiting.delayed
    waiting.look(both)
    assert not waiting.delayed
    (entry,) = joined(tmp_path)
    found = {file.read_text() for file in entry.payload.rglob("c")}
    assert found == {"0 of 10, 1", "1 of 10, 2"}
