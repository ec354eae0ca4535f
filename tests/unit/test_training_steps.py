"""Step times and save requests by themselves: pure bookkeeping, time is an argument."""

from __future__ import annotations

import pytest

from spothop.training.requests import SaveRequests
from spothop.training.steps import StepTimes


def message(times: StepTimes) -> tuple[float, float]:
    found = times.message(1)
    assert found is not None
    return found["step_s"], found["load_s"]


def step(times: StepTimes, enter: float, end: float) -> None:
    times.enter(enter, -1.0)
    times.exit(end)


def test_an_exit_belongs_to_one_enter() -> None:
    times = StepTimes(0, now=0)
    step(times, 1, 2)
    with pytest.raises(RuntimeError, match="without enter_step"):
        times.exit(3)


def test_a_save_before_the_first_step_is_part_of_init_only() -> None:
    times = StepTimes(0, now=0)
    times.saved(1, 5)
    assert times.enter(6, -1.0) == 6
    times.exit(7)
    step(times, 10, 11)
    assert message(times) == (1.0, 3 / 2)


def test_a_save_that_ran_beside_a_step_is_no_data_loading_after_it_only() -> None:
    times = StepTimes(0, now=0)
    step(times, 1, 2)
    times.saved(1.5, 4)  # 2 s of it after the step
    step(times, 7, 8)
    assert message(times) == (1.0, 3 / 2)


def test_times_never_go_below_zero() -> None:
    times = StepTimes(0, now=0)
    step(times, 1, 2)
    times.saved(2, 9)
    step(times, 8, 9)  # of another thread, while the save ended
    assert message(times) == (1.0, 0.0)


def test_a_report_begins_anew() -> None:
    times = StepTimes(0, now=0)
    assert times.message(0) is None
    step(times, 1, 2)
    step(times, 4, 5)
    times.clear()
    assert times.message(2) is None
    step(times, 6, 9)
    assert message(times) == (3.0, 1.0)


def want(requests: SaveRequests, id: str, kind: str, at_step: int | None = None) -> str | None:
    return requests.take({"request": id, "kind": kind, "at_step": at_step}, 0)


def test_only_an_emergency_replaces_an_emergency() -> None:
    requests = SaveRequests()
    want(requests, "e1", "emergency")
    want(requests, "i1", "insurance")
    assert requests.pending is not None
    assert requests.pending.id == "e1"
    want(requests, "e2", "emergency")
    assert requests.pending.id == "e2"


def test_a_check_before_a_requests_step_counts_as_a_check() -> None:
    requests = SaveRequests()
    want(requests, "i1", "insurance", 10)
    assert requests.begin(5, 1.0) is None
    assert want(requests, "i2", "insurance", 5) == "i2"  # missed: the check of step 5 is over
    assert want(requests, "i3", "insurance", 6) is None
