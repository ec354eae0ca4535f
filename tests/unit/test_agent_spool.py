"""The spool: numbered without gaps, replayable after any crash, bounded where it may be."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from spothop.wire import (
    MAX_TEXT,
    AnyReport,
    MessageReport,
    MetricsReport,
    StepsReport,
    plain_text,
)
from spothop_agent.coalesce import MOST
from spothop_agent.spool import BATCH, Spool
from support.examples import examples


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def message(text: str) -> MessageReport:
    return MessageReport(text=text)


def steps(step: int, *, count: int = 1, step_s: float = 0.1) -> StepsReport:
    return StepsReport(step=step, count=count, step_s=step_s, load_s=0.0)


def texts(spool: Spool) -> list[str]:
    return [e.report.text for e in spool.batch() if isinstance(e.report, MessageReport)]


def test_reports_wait_in_order_until_they_are_confirmed(tmp_path: Path) -> None:
    clock = Clock()
    spool = Spool(tmp_path, clock)
    for text in ("a", "b", "c"):
        spool.add(1, message(text))
    clock.now += 5.0
    assert [(e.seq, e.age_s) for e in spool.batch()] == [(1, 5.0), (2, 5.0), (3, 5.0)]
    spool.ack(2)
    assert texts(spool) == ["c"]
    spool.ack(1)  # an old reply that comes late
    assert texts(spool) == ["c"]


def test_a_restarted_agent_goes_on_with_numbers_ages_and_keys(tmp_path: Path) -> None:
    clock = Clock()
    first = Spool(tmp_path, clock)
    first.add(1, message("a"), key="a")
    first.add(1, message("b"), key="b")
    first.ack(1)
    clock.now += 3.0
    second = Spool(tmp_path, clock)
    second.add(1, message("a"), key="a")  # the same fact again
    second.add(1, message("c"))
    assert [(e.seq, e.age_s) for e in second.batch()] == [(2, 3.0), (3, 0.0)]


def test_steps_merge_while_the_master_is_away(tmp_path: Path) -> None:
    spool = Spool(tmp_path, Clock())
    spool.merge(1, steps(1))
    assert len(spool.batch()) == 1  # sent, never answered
    for step in range(2, 1000):
        spool.merge(1, steps(step, count=1, step_s=0.3))
        spool.merge(1, MetricsReport(step=step, values={"loss": 1 / step}))
        assert len(spool.batch()) == 1
    spool.ack(1)
    batch = spool.batch()
    assert batch[0].seq == 2
    merged = batch[0].report
    assert isinstance(merged, StepsReport)
    assert (merged.step, merged.count) == (999, 998)
    assert merged.step_s == pytest.approx(0.3)
    assert len(batch) <= MOST + 1
    assert batch[-1].report == MetricsReport(step=999, values={"loss": 1 / 999})


def test_progress_keeps_its_place_before_a_later_report(tmp_path: Path) -> None:
    spool = Spool(tmp_path, Clock())
    spool.merge(1, steps(5))
    spool.add(1, message("exited"))
    spool.merge(2, steps(1))
    spool.merge(1, steps(6))
    assert [(e.attempt, e.report.kind) for e in spool.batch()] == [
        *((1, "steps"), (1, "message"), (2, "steps"))
    ]


def test_metrics_of_one_step_become_one_report(tmp_path: Path) -> None:
    spool = Spool(tmp_path, Clock())
    spool.merge(1, MetricsReport(step=3, values={"loss": 1.0, "lr": 0.1}))
    spool.merge(1, MetricsReport(step=3, values={"loss": 2.0}))
    assert [e.report for e in spool.batch()] == [
        MetricsReport(step=3, values={"loss": 2.0, "lr": 0.1})
    ]


def test_a_batch_is_bounded(tmp_path: Path) -> None:
    spool = Spool(tmp_path, Clock())
    for number in range(BATCH + 1):
        spool.add(1, message(str(number)))
    assert len(spool.batch()) == BATCH
    spool.ack(BATCH)
    assert texts(spool) == [str(BATCH)]


def test_a_full_disk_loses_nothing_as_long_as_the_agent_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path, Clock())

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.write", full)
        spool.add(1, message("a"))
    spool.add(1, message("b"))  # room again: both are written
    assert texts(Spool(tmp_path, Clock())) == ["a", "b"]


def test_a_short_write_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up in the middle of a line: what follows must not be glued to its half."""
    spool = Spool(tmp_path, Clock())
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr("os.write", lambda descriptor, data: write(descriptor, data[:10]))
        spool.add(1, message("a"))
    spool.add(1, message("b"))
    found = Spool(tmp_path, Clock())
    assert texts(found) == ["a", "b"]
    assert [e.seq for e in found.batch()] == [1, 2]


def damage(journal: Path, line: int) -> None:
    lines = journal.read_bytes().split(b"\n")
    lines[line] = b"{corrupt"
    journal.write_bytes(b"\n".join(lines))


def test_a_corrupt_line_keeps_its_number_and_what_follows_it(tmp_path: Path) -> None:
    """The master takes only last + 1, and each number once: neither a gap nor a second use."""
    spool = Spool(tmp_path, Clock())
    for text in ("a", "b", "c", "d"):
        spool.add(1, message(text), key=text)
    damage(tmp_path / "journal", 2)
    again = Spool(tmp_path, Clock())
    again.add(1, message("b"), key="b")  # an agent that is started again reports its facts again
    again.add(1, message("c"), key="c")
    batch = again.batch()
    assert [e.seq for e in batch] == [1, 2, 3, 4, 5]
    first, lost, *rest = texts(again)
    assert (first, rest) == ("a", ["c", "d", "b"])
    assert "lost" in lost


def test_a_corrupt_head_costs_no_report(tmp_path: Path) -> None:
    spool = Spool(tmp_path, Clock())
    for text in ("a", "b", "c"):
        spool.add(1, message(text), key=text)
    spool.ack(1)
    for text in (b"{", b"[]", b"{}", b"\xff", b'{"acked": null, "keys": []}'):
        lines = (tmp_path / "journal").read_bytes().split(b"\n")
        (tmp_path / "journal").write_bytes(b"\n".join([text, *lines[1:]]))
        assert [e.seq for e in Spool(tmp_path, Clock()).batch()] == [2, 3]


def test_numbers_that_only_the_master_knows_are_not_used_again(tmp_path: Path) -> None:
    """A full disk did not take the reports; the master did."""
    first = Spool(tmp_path, Clock())
    first.add(1, message("on disk"))
    again = Spool(tmp_path, Clock())
    again.add(1, message("new"))
    assert not again.met
    again.ack(3)  # the master's answer to the first question of an agent that is started again
    assert again.met
    assert [(e.seq, e.report) for e in again.batch()] == [(4, message("new"))]
    again.ack(3)
    again.add(1, message("newer"))
    assert [e.seq for e in again.batch()] == [4, 5]


def test_what_cannot_be_sent_is_never_queued(tmp_path: Path) -> None:
    spool = Spool(tmp_path, Clock())
    spool.add(1, message("half \ud800, NUL \0"))
    spool.add(1, message("long " * 10_000))
    assert texts(spool)[0] == "half ?, NUL \ufffd"
    assert len(texts(spool)[1]) == MAX_TEXT
    assert texts(Spool(tmp_path, Clock())) == texts(spool)
    with pytest.raises(ValidationError):
        MetricsReport(step=1, values={"loss": float("inf")})
    with pytest.raises(ValidationError):
        steps(10**30)


def test_many_names_of_one_step_become_several_reports(tmp_path: Path) -> None:
    spool = Spool(tmp_path, Clock())
    for begin in range(0, 1_000, 100):
        values = {f"m{begin + i}": 1.0 for i in range(100)}
        spool.merge(1, MetricsReport(step=1, values=values))
    found = [e.report for e in spool.batch() if isinstance(e.report, MetricsReport)]
    assert sum(len(report.values) for report in found) == 1_000
    assert {report.step for report in found} == {1}


ACTIONS = st.lists(
    st.one_of(
        st.builds(lambda text: ("add", text), st.text(max_size=5)),
        st.builds(lambda step: ("merge", step), st.integers(1, 9)),
        st.just(("send", None)),
        st.builds(lambda part: ("ack", part), st.floats(0, 1)),
        st.builds(lambda cut: ("crash", cut), st.integers(0, 200)),
    ),
    max_size=30,
)


@examples(100)
@given(ACTIONS)
def test_any_crash_leaves_a_sequence_without_gaps(actions: list[tuple[str, object]]) -> None:
    """The master accepts only last + 1: whatever happens, every control report reaches it once."""
    folder = Path(tempfile.mkdtemp())
    try:
        received: list[AnyReport] = []
        added: list[str] = []
        spool = Spool(folder, Clock())
        for action, value in actions:
            if action == "add":
                added.append(plain_text(str(value)))
                spool.add(1, message(str(value)))
            elif action == "merge":
                spool.merge(1, steps(int(str(value))))
            elif action == "crash":
                _tear(folder / "journal", int(str(value)))
                spool = Spool(folder, Clock())
            else:
                if not spool.met:
                    spool.ack(len(received))
                for envelope in spool.batch():
                    if envelope.seq == len(received) + 1:
                        received.append(envelope.report)
                    assert envelope.seq <= len(received)
                if action == "ack":
                    spool.ack(round(len(received) * float(str(value))))
        spool.ack(0)
        received += [e.report for e in spool.batch() if e.seq > len(received)]
        assert [r.text for r in received if isinstance(r, MessageReport)] == added
    finally:
        shutil.rmtree(folder)


def _tear(journal: Path, size: int) -> None:
    """A write that was under way: a line without its end, after all that was promised."""
    with open(journal, "ab") as file:
        file.write((b'{"seq":1,"made":0,"attempt":1,"report":{"kind":"message"' * 5)[:size])
