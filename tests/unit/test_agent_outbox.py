"""The outbox: what is next, what is given up, and entries that are none."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.storage.remote import BUDGET
from spothop.wire import SaveKind
from spothop_agent import outbox
from spothop_agent.outbox import Entry, Meta, Saved, Torn

P, N, E = SaveKind.PERIODIC, SaveKind.INSURANCE, SaveKind.EMERGENCY


def entry(number: int, kind: SaveKind, size: int = 10) -> Entry:
    meta = Meta(
        v=1,
        id=f"{number:020d}-1",
        name="c.pt",
        path="c.pt",
        is_dir=False,
        step=number,
        kind=kind,
        request=None,
        delta_s=0.1,
        mono=float(number),
    )
    return Entry(Path(meta.id), meta, size)


def queue(*kinds: SaveKind) -> list[Entry]:
    return [entry(number, kind) for number, kind in enumerate(kinds)]


def put(folder: Path, entry_id: str, *, content: bytes = b"data", **changes: object) -> Path:
    meta = entry(1, P).meta.model_dump(mode="json") | {"id": entry_id} | changes
    (folder / entry_id / "payload").mkdir(parents=True)
    (folder / entry_id / "payload" / "c.pt").write_bytes(content)
    (folder / entry_id / "meta.json").write_text(json.dumps(meta))
    return folder / entry_id


@pytest.mark.parametrize(
    ("kinds", "left_s", "backup_s", "next_step", "gone"),
    [
        ((), None, None, None, []),
        ((P, N), None, None, 0, []),
        ((P, N, E), None, 1.0, 0, []),  # an emergency without a notice: an old one; no haste
        ((P, N, E), 10.0, 1.0, 0, []),  # all three fit
        ((P, N, E), 2.0, 1.0, 2, [0, 1]),
        ((P, N, E), 0.5, 1.0, 2, [0, 1]),  # none fits: the emergency save holds most
        ((P, N, E), 100.0, None, 2, [0, 1]),  # nothing measured: every notice is short
        ((P, E, P), 0.5, 1.0, 1, [0]),
        ((E, P), 0.1, 1.0, 0, []),
        ((P, N), 0.1, 1.0, 0, []),
    ],
)
def test_plan(
    kinds: tuple[SaveKind, ...],
    left_s: float | None,
    backup_s: float | None,
    next_step: int | None,
    gone: list[int],
) -> None:
    plan = outbox.plan(queue(*kinds), left_s=left_s, backup_s=backup_s)
    assert (plan.next.meta.step if plan.next else None) == next_step
    assert [e.meta.step for e in plan.superseded] == gone


MB = 1_000_000


@pytest.mark.parametrize(
    ("left_s", "done", "next_step", "gone"),
    [
        (30.0, 0, 0, []),  # both fit
        (12.0, 0, 1, [0]),  # only one does: the newer
        (2.0, 95, 0, []),  # 95 % through, and the emergency save cannot make it
        (2.0, 20, 0, []),  # nor can this one, but it is nearer to its end
        (12.0, 95, 0, []),  # what is left of it and the emergency save both fit
        (10.6, 95, 1, [0]),  # they do not, and the emergency save alone does
    ],
)
def test_an_upload_that_is_almost_done_is_weighed_against_the_emergency_save(
    left_s: float, done: int, next_step: int, gone: list[int]
) -> None:
    old, new = (replace(e, size=100 * MB) for e in queue(P, E))
    current = outbox.Upload(id=old.id, done=done * MB)
    plan = outbox.plan(
        [old, new], left_s=left_s, backup_s=None, bytes_per_s=10 * MB, current=current
    )
    assert plan.next is not None
    assert plan.next.meta.step == next_step
    assert [e.meta.step for e in plan.superseded] == gone


def test_an_upload_that_hangs_is_expected_to_hang_as_long_again() -> None:
    old, new = (replace(e, size=10 * MB) for e in queue(P, E))

    def chosen(stalled_s: float) -> int:
        found = outbox.plan(
            [old, new],
            left_s=5.0,
            backup_s=None,
            bytes_per_s=10 * MB,
            current=outbox.Upload(id=old.id, done=9 * MB),
            stalled_s={old.id: stalled_s},
        )
        assert found.next is not None
        return found.next.meta.step

    assert (chosen(0.0), chosen(4.0)) == (0, 0)  # 1 s of silence is usual at this rate
    assert (chosen(5.0), chosen(60.0)) == (1, 1)


def test_the_silence_of_a_slow_line_is_no_hang() -> None:
    """The parts under way arrive together, every 48 s at 1 MiB/s. What needs 4 s more is not broken
    off for what needs 40 s of 30."""
    mib = 1 << 20
    old, new = (replace(e, size=size * mib) for e, size in zip(queue(P, E), (100, 40), strict=True))
    found = outbox.plan(
        [old, new],
        left_s=30.0,
        backup_s=None,
        bytes_per_s=1.0 * mib,
        current=outbox.Upload(id=old.id, done=96 * mib),
        stalled_s={old.id: 48.0},
    )
    assert (found.next, found.superseded) == (old, ())
    assert BUDGET == outbox.UNDER_WAY


@given(
    st.lists(st.sampled_from([P, N, E]), max_size=6),
    st.none() | st.floats(-5, 50),
    st.none() | st.floats(0, 10),
)
def test_nothing_older_is_ever_committed_after_something_newer(
    kinds: list[SaveKind], left_s: float | None, backup_s: float | None
) -> None:
    """The chain restores by number: an older step behind a newer one would undo it."""
    left = queue(*kinds)
    committed = []
    while left:
        plan = outbox.plan(left, left_s=left_s, backup_s=backup_s)
        assert plan.next is not None
        committed.append(plan.next.meta.step)
        left = [e for e in left if e not in plan.superseded and e is not plan.next]
    assert committed == sorted(committed)
    if kinds:
        assert committed[-1] == len(kinds) - 1


@pytest.mark.parametrize(
    ("kinds", "free", "victim"),
    [
        ((P, N, P), 11, None),
        ((P, N, P), 10, 0),
        ((N, P, P), 0, 1),
        ((N, E, P), 0, 0),
        ((E, P), 0, None),
        ((P,), 0, None),
        ((), 0, None),
    ],
)
def test_a_full_disk_costs_the_oldest_periodic_save_first(
    kinds: tuple[SaveKind, ...], free: int, victim: int | None
) -> None:
    found = outbox.to_evict(queue(*kinds), free=free)
    assert (found.meta.step if found else None) == victim


def test_reads_what_the_process_published(tmp_path: Path) -> None:
    put(tmp_path, "2-1", content=b"12345", step=7, kind="insurance", future="key")
    put(tmp_path, "1-1")
    (tmp_path / ".tmp-3-1").mkdir()
    assert outbox.names(tmp_path) == ["1-1", "2-1"]
    found = outbox.read(tmp_path, "2-1")
    assert isinstance(found, Entry)
    assert (found.id, found.size, found.meta.step, found.meta.kind) == ("2-1", 5, 7, N)
    assert found.payload.read_bytes() == b"12345"
    aside = found.set_aside()
    assert outbox.names(tmp_path) == ["1-1"]
    assert outbox.leftovers(tmp_path) == [aside]


@pytest.mark.parametrize("damage", ["no meta", "no payload", "garbage", "directory", "escape"])
def test_a_torn_entry_is_told_once_and_skipped(tmp_path: Path, damage: str) -> None:
    folder = put(tmp_path, "1-1", **({"name": "../meta.json"} if damage == "escape" else {}))
    if damage == "no meta":
        (folder / "meta.json").unlink()
    elif damage == "no payload":
        (folder / "payload" / "c.pt").unlink()
    elif damage == "garbage":
        (folder / "meta.json").write_text('{"v": 1')
    elif damage == "directory":
        (folder / "payload" / "c.pt").unlink()
        (folder / "payload" / "c.pt").mkdir()
    found = outbox.read(tmp_path, "1-1")
    assert isinstance(found, Torn)
    assert "1-1 is torn" in found.message
    assert outbox.names(tmp_path) == []


def test_what_an_earlier_agent_was_deleting_is_found(tmp_path: Path) -> None:
    put(tmp_path, "1-1").rename(tmp_path / ".gone-1-1")
    put(tmp_path, "2-1")
    assert outbox.leftovers(tmp_path) == [tmp_path / ".gone-1-1"]
    assert outbox.names(tmp_path) == ["2-1"]


def test_a_tree_is_told_apart_and_measured(tmp_path: Path) -> None:
    put(tmp_path, "1-1", content=b"12345")
    assert not outbox.is_tree(tmp_path, "1-1")
    assert not outbox.is_tree(tmp_path, "none")
    folder = put(tmp_path, "2-1", name="d", is_dir=True)
    payload = folder / "payload"
    for file in payload.iterdir():
        file.unlink()
    (payload / "d" / "deep").mkdir(parents=True)
    (payload / "d" / "deep" / "f").write_bytes(b"123")
    (payload / "d" / "g").write_bytes(b"45")
    (payload / "d" / "link").symlink_to("g")
    assert outbox.is_tree(tmp_path, "2-1")
    found = outbox.read(tmp_path, "2-1")
    assert isinstance(found, Entry)
    assert found.size == 5


def test_a_backup_that_cannot_be_read_now_is_not_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "1-1")
    with monkeypatch.context() as patched:

        def no_handle(path: Path) -> bytes:
            raise OSError(errno.EMFILE, "Too many open files")

        patched.setattr(Path, "read_bytes", no_handle)
        assert outbox.read(tmp_path, "1-1") is None
    assert isinstance(outbox.read(tmp_path, "1-1"), Entry)


def test_an_input_error_is_no_damage_on_any_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 3.14 on `Path.is_dir` says False for it."""
    put(tmp_path, "1-1", is_dir=True)
    real = os.stat

    def broken(path: Any, **how: Any) -> os.stat_result:
        if Path(path).parent.name == "payload":
            raise OSError(errno.EIO, "Input/output error")
        return real(path, **how)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", broken)
        patched.setattr(Path, "is_dir", lambda path: False)
        assert outbox.read(tmp_path, "1-1") is None
    assert outbox.names(tmp_path) == ["1-1"]


def saved(id_: str, step: int, began: float | None = None) -> Saved:
    return Saved(id_, step, began)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (saved("1", 5), saved("2", 5)),  # the same step: the one that was handed over first
        (saved("2", 5, 10.0), saved("1", 9, 20.0)),  # the one that began first
        (saved("2", 9, 10.0), saved("1", 5, 20.0)),  # although a script has gone back
        (saved("2", 5, 10.0), saved("1", 9, 10.0)),  # at the same time: by step
        (saved("2", 5, 0.0), saved("1", 9, 20.0)),  # where one has no time: by step
        (saved("2", 5, 20.0), saved("1", 9, 0.0)),
        (saved("2", 5), saved("1", 9)),
    ],
)
def test_which_of_two_saves_is_older(older: Saved, newer: Saved) -> None:
    assert older.older_than(newer)
    assert not newer.older_than(older)
    assert not older.older_than(older)


def test_a_save_is_as_old_as_its_begin_or_else_its_hand_over() -> None:
    made = entry(3, N)
    assert Saved.of(made) == Saved(made.id, 3, 3.0)
    began = replace(made, meta=made.meta.model_copy(update={"began": 1.5}))
    assert Saved.of(began) == Saved(made.id, 3, 1.5)
    unknown = replace(made, meta=made.meta.model_copy(update={"began": 0.0}))
    assert Saved.of(unknown) == Saved(made.id, 3, 0.0)


@pytest.mark.parametrize(
    ("left_s", "next_step"),
    [(4.0, 2), (4.0 + 1e-9, 0), (2.0, 2), (2.0 + 1e-9, 2)],
)
def test_what_needs_all_the_time_that_is_left_does_not_fit(left_s: float, next_step: int) -> None:
    """Two uploads of 2 s each; a third is not waited for."""
    plan = outbox.plan(queue(P, N, E)[:1] + queue(P, N, E)[2:], left_s=left_s, backup_s=2.0)
    assert plan.next is not None
    assert plan.next.meta.step == next_step


def test_the_upload_that_just_does_not_fit_gives_way_to_the_one_with_the_least_left() -> None:
    old, new = (replace(e, size=size) for e, size in zip(queue(P, E), (70, 170), strict=True))

    def chosen(left_s: float) -> int:
        plan = outbox.plan([old, new], left_s=left_s, backup_s=None, bytes_per_s=100)
        assert plan.next is not None
        return plan.next.meta.step

    # 0.7 s and 1.7 s, and 0.3 s for the entry of each
    assert chosen(2.0) == 0
    assert chosen(2.0 + 1e-9) == 1


def test_an_upload_that_is_through_needs_its_entry_only() -> None:
    old, new = (replace(e, size=100) for e in queue(P, E))

    def chosen(left_s: float, current: outbox.Upload | None) -> int:
        plan = outbox.plan([old, new], left_s=left_s, backup_s=None, bytes_per_s=1, current=current)
        assert plan.next is not None
        return plan.next.meta.step

    through = outbox.Upload(id=old.id, done=150)  # more than the entry's size: it has grown
    assert chosen(100.6 + 1e-6, through) == 0
    assert chosen(100.6 - 1e-6, through) == 1
    assert chosen(200.6 + 1e-6, None) == 0
    assert chosen(200.6 - 1e-6, None) == 1


def test_a_folder_is_as_large_as_its_files(tmp_path: Path) -> None:
    folder = put(tmp_path, "1-1", is_dir=True)
    payload = folder / "payload" / "c.pt"
    payload.unlink()
    (payload / "rank-0").mkdir(parents=True)
    (payload / "rank-0" / "weights").write_bytes(b"12345")
    (payload / "meta").write_bytes(b"123")
    found = outbox.read(tmp_path, "1-1")
    assert isinstance(found, Entry)
    assert found.size == 8


def test_a_torn_entry_says_its_id_and_what_is_wrong(tmp_path: Path) -> None:
    folder = put(tmp_path, "1-1")
    (folder / "meta.json").unlink()
    found = outbox.read(tmp_path, "1-1")
    assert isinstance(found, Torn)
    assert found.id == "1-1"
    assert "No such file" in found.message
    assert "\n" not in found.message


def test_an_error_without_words_is_named_by_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "1-1")

    def fail(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(outbox, "_size", fail)
    found = outbox.read(tmp_path, "1-1")
    assert isinstance(found, Torn)
    assert found.message.endswith(": FileNotFoundError")
