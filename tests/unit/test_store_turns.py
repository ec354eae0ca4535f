"""Whose turn it is to write: in the order in which they came, urgent ones first."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from spothop_master.store.db import Turns

PATIENCE_S = 60


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(PATIENCE_S * 100):
        if holds():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never came to that")


def test_urgent_ones_come_first_and_others_as_they_came() -> None:
    turns, order = Turns(), []
    threads = []

    def take(name: str, urgent: bool) -> None:
        with turns.one(urgent=urgent):
            order.append(name)

    with turns.one():
        for number, urgent in enumerate((False, True, False, True)):
            name = f"{number} urgent" if urgent else str(number)
            threads.append(threading.Thread(target=take, args=(name, urgent)))
            threads[-1].start()
            wait_until(lambda number=number: turns.waiting == number + 1)
        assert order == []
    for thread in threads:
        thread.join(PATIENCE_S)
    assert order == ["1 urgent", "3 urgent", "0", "2"]


def test_a_turn_that_fails_is_passed_on() -> None:
    turns = Turns()
    with pytest.raises(ValueError, match="bad"), turns.one():
        raise ValueError("bad")
    with turns.one():
        pass
