"""Questions that wait at the same time are answered in one go, and none waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

import pytest

from spothop_master.agents.together import MOST, Together

PATIENCE_S = 60


class Answerer:
    """Answers each number with its square, but 0; holds still while `gate` is closed."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Event()
        self.bad: set[int] = set()

    def __call__(self, numbers: Sequence[int]) -> Mapping[int, int]:
        self.asked.append([*numbers])
        self.began.set()
        assert self.gate.wait(PATIENCE_S)
        if self.bad.intersection(numbers):
            raise ValueError(f"bad: {sorted(self.bad)}")
        return {number: number**2 for number in numbers if number}


@pytest.fixture
def answerer() -> Answerer:
    return Answerer()


@pytest.fixture
def rests() -> list[float]:
    return []


@pytest.fixture
def together(answerer: Answerer, rests: list[float]) -> Iterator[Together[int, int]]:
    together = Together("test", answerer, rest_s=0.5, sleep=rests.append)
    yield together
    together.close()


def hold(answerer: Answerer, together: Together[int, int]) -> None:
    """One question is being answered from now on, until the gate opens."""
    answerer.gate.clear()
    together.ask(1000)
    assert answerer.began.wait(PATIENCE_S)


def test_those_that_wait_are_asked_once_and_together(
    answerer: Answerer, together: Together[int, int], rests: list[float]
) -> None:
    hold(answerer, together)
    waiting = [together.ask(number) for number in (3, 4, 3, 0)]
    answerer.gate.set()
    assert [each.result(PATIENCE_S) for each in waiting] == [9, 16, 9, None]
    together.close()
    assert answerer.asked == [[1000], [3, 4, 0]]
    assert rests == [0.5]  # after the one that was alone nobody rested


def test_no_more_are_answered_in_one_go_than_is_good_for_the_first(
    answerer: Answerer, together: Together[int, int]
) -> None:
    hold(answerer, together)
    waiting = [together.ask(number) for number in range(MOST + 3)]
    answerer.gate.set()
    assert [each.result(PATIENCE_S) for each in waiting[1:]] == [n**2 for n in range(1, MOST + 3)]
    assert [len(asked) for asked in answerer.asked] == [1, MOST, 3]


def test_one_that_cannot_be_answered_hurts_nobody_else(
    answerer: Answerer, together: Together[int, int]
) -> None:
    answerer.bad = {5}
    hold(answerer, together)
    waiting = [together.ask(number) for number in (3, 5, 7)]
    answerer.gate.set()
    assert (waiting[0].result(PATIENCE_S), waiting[2].result(PATIENCE_S)) == (9, 49)
    with pytest.raises(ValueError, match="bad"):
        waiting[1].result(PATIENCE_S)


def test_who_gave_up_is_not_asked_for_and_holds_up_nobody(
    answerer: Answerer, together: Together[int, int]
) -> None:
    hold(answerer, together)
    given_up, other = together.ask(3), together.ask(4)
    assert given_up.cancel()
    answerer.gate.set()
    assert other.result(PATIENCE_S) == 16
    assert answerer.asked == [[1000], [4]]


def test_without_a_new_thread_whoever_asks_answers(
    answerer: Answerer, together: Together[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all who ask later would wait for a thread that there is not."""

    def refuse(work: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(together._thread, "submit", refuse)
        assert together.ask(3).result(PATIENCE_S) == 9
    assert together.ask(4).result(PATIENCE_S) == 16
