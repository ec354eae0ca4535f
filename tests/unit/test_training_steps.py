"""Step times and save requests by themselves: pure bookkeeping, time is an argument."""

from __future__ import annotations

from pathlib import Path

import pytest

from spothop.training.agreement import Agreement
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


class Asked(SaveRequests):
    """Those of one process; `late` are the requests that it has missed."""

    def __init__(self, root: Path) -> None:
        self.late: list[str] = []
        super().__init__(
            Agreement(str(root), 1), lambda request, missing: self.late.append(request)
        )

    def want(self, id: str, kind: str, at_step: int | None = None) -> None:
        self.take({"request": id, "kind": kind, "at_step": at_step, "ranks": [1]})


def test_only_an_emergency_replaces_an_emergency(tmp_path: Path) -> None:
    requests = Asked(tmp_path)
    requests.want("e1", "emergency")
    requests.want("i1", "insurance")
    assert requests.pending is not None
    assert requests.pending.id == "e1"
    requests.want("e2", "emergency")
    assert requests.pending.id == "e2"


def test_a_check_before_a_requests_step_counts_as_a_check(tmp_path: Path) -> None:
    requests = Asked(tmp_path)
    requests.want("i1", "insurance", 10)
    assert requests.begin(5, 1.0) is None
    requests.want("i2", "insurance", 5)  # missed: the check of step 5 is over
    assert requests.late == ["i2"]
    requests.want("i3", "insurance", 6)
    assert requests.late == ["i2"]
