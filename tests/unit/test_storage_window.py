"""How many pieces are sent at once, and when one is late."""

from __future__ import annotations

from spothop.storage.base import MIB
from spothop.storage.window import FIRST, Patience, Window


def play(window: Window, *, rounds: int, seconds: float, bytes_per_s: float) -> int:
    """Whole rounds against a line: a delay for each request, and a bandwidth for all."""
    now = 0.0
    for _ in range(rounds):
        at_once = window.at_once
        took = seconds + at_once * MIB / bytes_per_s
        window.begun(now)
        now += took
        for _ in range(at_once):
            window.finished(MIB, took, now)
    return window.at_once


def test_it_grows_while_more_at_once_is_faster() -> None:
    assert play(Window(1 << 40), rounds=8, seconds=0.1, bytes_per_s=1e12) == 64


def test_it_stays_where_the_line_is_full() -> None:
    assert play(Window(1 << 40), rounds=8, seconds=0.0, bytes_per_s=1e6) == 2 * FIRST


def test_it_stops_where_the_delay_is_hidden() -> None:
    # 20 ms and 1 GB/s: 20 MB under way fill the line
    assert play(Window(1 << 40), rounds=8, seconds=0.02, bytes_per_s=1e9) in (32, 64)


def test_a_refusal_halves_it_for_good() -> None:
    window = Window(1 << 40)
    play(window, rounds=2, seconds=0.1, bytes_per_s=1e12)
    grown = window.at_once
    window.failed()
    assert play(window, rounds=5, seconds=0.1, bytes_per_s=1e12) == grown // 2
    for _ in range(10):
        window.failed()
    assert window.at_once == 1


def test_memory_is_bounded_and_one_may_always_go() -> None:
    window = Window(10 * MIB, at_once=64)
    assert window.admits(0, 0, 100 * MIB)
    assert window.admits(1, 5 * MIB, 5 * MIB)
    assert not window.admits(1, 5 * MIB, 6 * MIB)
    assert not window.admits(64, 0, 1)


def test_late_is_several_times_the_siblings() -> None:
    window, patience = Window(1 << 40), Patience()
    assert window.late_after_s(8 * MIB, patience, None) == patience.alone_s
    for _ in range(3):
        window.finished(8 * MIB, 2.0, 0.0)
    assert window.late_after_s(8 * MIB, patience, None) == 8.0
    assert window.late_after_s(16 * MIB, patience, None) == 16.0
    assert window.late_after_s(100, patience, None) == patience.least_s


def test_after_a_notice_the_time_left_decides() -> None:
    window, patience = Window(1 << 40), Patience()
    assert window.late_after_s(8 * MIB, patience, 20.0) == 5.0
    assert window.late_after_s(8 * MIB, patience, 0.0) == patience.least_s
    for _ in range(3):
        window.finished(8 * MIB, 2.0, 0.0)
    assert window.late_after_s(8 * MIB, patience, 20.0) == 5.0
    assert window.late_after_s(8 * MIB, patience, 100.0) == 8.0
    assert window.late_after_s(8 * MIB, patience, 2.0) == 4.0  # a slow line, not a hanging one
    assert Window(1 << 40, paces=window.paces).late_after_s(8 * MIB, patience, None) == 8.0
