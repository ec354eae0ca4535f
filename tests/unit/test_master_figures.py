"""Sums over a job's rows, and how the pages say and draw them."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone

import pytest

from fakes import sample_rows
from spothop.wire import AttemptView
from spothop_master.store import vm_views
from spothop_master.store.figures import bill, cost, current_attempt, newest_step, progress
from spothop_master.store.schema import Attempt, Place, VmRow
from spothop_master.web import chart

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def ran(start: int | None, last: int | None, *, state: str = "ended") -> Attempt:
    return Attempt(
        number=1,
        state=state,
        fenced_in=False,
        restored_step=start,
        step_s=2.0,
        places=[Place(vm_id="vm-1", last_step=last)],
    )


def test_steps_beyond_the_next_restore_are_lost() -> None:
    figures = progress([ran(0, 100), ran(90, 150)])
    assert (figures.useful_s, figures.recomputed_steps) == ((90 + 60) * 2.0, 10)


def test_a_restore_counts_before_its_first_step() -> None:
    assert progress([ran(0, 100), ran(70, None)]).recomputed_steps == 30


def test_an_attempt_that_never_restored_changes_nothing() -> None:
    assert progress([ran(0, 100), ran(None, None), ran(100, 110)]).recomputed_steps == 0


def test_falling_back_twice_loses_what_both_did() -> None:
    """0-120, then 100-110, then from 90 to 200: 240 steps for 200."""
    figures = progress([ran(0, 120), ran(100, 110), ran(90, 200)])
    assert (figures.recomputed_steps, figures.useful_s) == (40, 200 * 2.0)


def test_no_attempts_no_figures() -> None:
    assert progress([]).useful_s == 0
    assert newest_step([]) is None
    assert current_attempt([]) is None


def test_the_current_attempt_is_the_one_that_trains() -> None:
    old, training, preparing = ran(0, 1), ran(1, 2, state="draining"), ran(None, None, state="x")
    training.fenced_in = True
    assert current_attempt([old, training, preparing]) is training
    training.state = "ended"
    assert current_attempt([old, training, preparing]) is preparing
    assert newest_step([old, training, preparing]) == 2


def test_a_vm_costs_from_running_to_its_end() -> None:
    vm = sample_rows.vm(1, "j", 0, -60.8, None, None)  # running for an hour at NOW
    assert cost(vm, 2.0, now=sample_rows.NOW) == pytest.approx(2.0)
    vm.ended_at = sample_rows.at(-30)
    assert cost(vm, 2.0, now=sample_rows.NOW) == pytest.approx(1.0)
    vm.running_at = None
    assert cost(vm, 2.0, now=sample_rows.NOW) == 0


def hopped() -> tuple[list[Attempt], list[VmRow]]:
    """Two VMs of an hour each, at 1 and 1.1 USD against 3.06. Each: half an hour of 2 s steps."""
    vms = [sample_rows.vm(n, "j", n - 1, 60.0 * n - 180.8, 60.0 * n - 120, None) for n in (1, 2)]
    for vm, price in zip(vms, (1.0, 1.1), strict=True):
        vm.price = price
    attempts = [
        sample_rows.attempt("j", n, n, 60.0 * n - 170, None, None, restored=start, last=last)
        for n, start, last in ((1, 0, 900), (2, 700, 1600))
    ]
    for attempt in attempts:
        attempt.step_s = 2.0
    return attempts, vms


def test_on_demand_is_what_the_useful_steps_and_one_start_would_have_cost() -> None:
    """1,600 steps of 2 s, and 10 minutes from running to the first step; the second start and the
    200 steps that were lost are the preemptions' price."""
    made = bill(*hopped(), now=sample_rows.NOW)
    assert made.cost == pytest.approx(1.0 + 1.1)
    assert made.on_demand == pytest.approx((1600 * 2.0 + 600) / 3600 * 3.06)
    assert made.lost == pytest.approx(200 * 2.0 / 3600 * 1.0)
    assert progress(hopped()[0]).lost_s == 400.0


def test_a_run_that_wastes_its_vms_is_dearer_than_on_demand() -> None:
    """A hung job goes on costing, but makes no more useful steps."""
    attempts, vms = hopped()
    vms[1].ended_at = None
    vms[1].price = 3.0
    made = bill(attempts, vms, now=sample_rows.at(600))
    assert made.on_demand == pytest.approx((1600 * 2.0 + 600) / 3600 * 3.06)
    assert made.cost > 10 * made.on_demand


def test_without_a_useful_step_or_a_spot_vm_there_is_no_comparison() -> None:
    attempts, vms = hopped()
    assert bill([], vms, now=sample_rows.NOW).on_demand is None
    for vm in vms:
        vm.spot = False
    assert bill(attempts, vms, now=sample_rows.NOW).on_demand is None
    assert bill(attempts, vms, now=sample_rows.NOW).lost > 0


def test_a_line_chart_spans_its_box_and_skips_what_is_not_finite() -> None:
    drawn = chart.line_chart([(0, 4.0), (5, math.nan), (10, 2.0)], marks=[5, 99])
    assert drawn is not None
    assert drawn.path == "M0.0,0.0 L1000.0,100.0"
    assert drawn.y_labels == ("4", "3", "2")
    assert drawn.marks == (500.0,)
    assert chart.line_chart([(0, 1.0), (1, math.inf)], marks=[]) is None


def test_a_flat_line_is_no_division_by_zero() -> None:
    drawn = chart.line_chart([(3, 1.0), (3, 1.0)], marks=[])
    assert drawn is not None
    assert "nan" not in drawn.path


def attempt_view(number: int, **more: object) -> AttemptView:
    fields = {
        "number": number,
        "vm": "vm-1",
        "state": "ended",
        "reason": "user_failure",
        "detail": "",
        "started_at": None,
        "ended_at": None,
        "restored_step": None,
        "last_step": None,
        "notice_at": None,
        **more,
    }
    return AttemptView.model_validate(fields)


def test_a_lane_has_its_phases_without_gaps() -> None:
    vm = vm_views.vm_view(
        sample_rows.vm(1, "j", 0, -100, -50, "preempted"), [], now=sample_rows.NOW
    )
    one = attempt_view(
        1,
        first_step_at=sample_rows.at(-90),
        notice_at=sample_rows.at(-60),
        ended_at=sample_rows.at(-50),
    )
    [lane] = chart.timeline([one], [vm], [], start=sample_rows.at(-100), end=sample_rows.NOW)
    assert [segment.phase for segment in lane.segments] == [
        "waiting",
        "preparing",
        "training",
        "draining",
    ]
    assert [segment.x for segment in lane.segments] == [0.0, 8.0, 100.0, 400.0]
    assert lane.segments[-1].width == 100.0
    assert lane.outcome == "user failure"


def test_imports_before_the_first_step_are_a_phase_of_their_own() -> None:
    vm = vm_views.vm_view(sample_rows.vm(1, "j", 0, -100, None, None), [], now=sample_rows.NOW)

    def phases(**more: object) -> list[tuple[str, float]]:
        one = attempt_view(1, state="preparing", reason=None, **more)
        start, end = sample_rows.at(-100), sample_rows.NOW
        [lane] = chart.timeline([one], [vm], [], start=start, end=end)
        return [(segment.phase, segment.x) for segment in lane.segments[1:]]

    began, first = sample_rows.at(-70), sample_rows.at(-50)
    assert phases(started_at=began) == [("preparing", 8.0), ("starting", 300.0)]
    assert phases(started_at=began, first_step_at=first)[1:] == [
        ("starting", 300.0),
        ("training", 500.0),
    ]


def test_a_second_attempt_on_the_same_vm_did_not_wait_for_it() -> None:
    vm = vm_views.vm_view(sample_rows.vm(1, "j", 0, -100, None, None), [], now=sample_rows.NOW)
    first = attempt_view(1, first_step_at=sample_rows.at(-90), ended_at=sample_rows.at(-60))
    second = attempt_view(2, first_step_at=sample_rows.at(-50), state="running", reason=None)
    lanes = chart.timeline(
        [first, second], [vm], [], start=sample_rows.at(-100), end=sample_rows.NOW
    )
    assert [s.phase for s in lanes[1].segments] == ["preparing", "training"]
    assert lanes[1].segments[0].x == 400.0


def test_a_vm_that_never_ran_only_waited() -> None:
    row = sample_rows.vm(1, "j", 0, -100, -90, "launch_failed")
    row.running_at = None
    vm = vm_views.vm_view(row, [], now=sample_rows.NOW)
    end = sample_rows.NOW + timedelta(0)
    [lane] = chart.timeline(
        [attempt_view(1, ended_at=sample_rows.at(-90))],
        [vm],
        [],
        start=sample_rows.at(-100),
        end=end,
    )
    assert [(s.phase, s.width) for s in lane.segments] == [("waiting", 100.0)]
