"""What stays of a curve, whoever deletes the others, how often, and however far he gets."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from spothop_master.core.thinning import FEWEST, Point, Rule, kept, lot, stays

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
RULE = Rule(full=timedelta(days=1), tenth=timedelta(days=30))


def at(age: timedelta) -> datetime:
    return NOW - age


def left(points: Sequence[Point], *, now: datetime = NOW) -> list[Point]:
    marked = kept(points, RULE, now=now)
    return [point for point in points if stays(point, marked, RULE, now=now)]


ages = st.floats(0, 60).map(lambda days: at(timedelta(days=days)))
curves = st.lists(
    st.builds(Point, st.integers(0, 10**9), st.integers(0, 10**6), st.floats(-9, 9), ages),
    max_size=120,
    unique_by=lambda point: point.id,
)


@given(curves)
def test_a_second_run_changes_nothing(points: list[Point]) -> None:
    once = left(points)
    assert left(once) == once


@given(curves, st.data())
def test_a_run_that_was_killed_in_the_middle_goes_on_to_the_same_end(
    points: list[Point], data: st.DataObject
) -> None:
    end = left(points)
    gone = [point for point in points if point not in end]
    deleted = data.draw(st.lists(st.sampled_from(gone), unique=True)) if gone else []
    rest = [point for point in points if point not in deleted]
    assert left(rest) == end


@given(curves, st.floats(0, 40))
def test_what_an_earlier_run_deleted_would_not_stay_now(points: list[Point], days: float) -> None:
    """So that a master that was away for a month leaves the same as one that ran each hour."""
    later = NOW + timedelta(days=days)
    assert left(left(points), now=later) == left(points, now=later)


@given(curves)
def test_young_points_first_last_and_extremes_stay(points: list[Point]) -> None:
    stayed = set(left(points))
    assert {point for point in points if NOW - point.at < RULE.full} <= stayed
    if points:
        in_order = sorted(points, key=lambda point: (point.step, point.id))
        values = {point.value for point in stayed}
        assert {in_order[0], in_order[-1], max(points, key=lambda p: p.id)} <= stayed
        assert {min(p.value for p in points), max(p.value for p in points)} <= values


@given(curves)
def test_few_points_lose_nothing(points: list[Point]) -> None:
    assert left(points[:FEWEST]) == points[:FEWEST]


MANY = 5_000


def test_one_in_ten_then_one_in_a_hundred_whatever_the_spacing() -> None:
    for spacing in (1, 7, 10, 50, 100, 610, 1000):
        for days, share in ((0.5, 1.0), (2, 0.1), (40, 0.01)):
            points = [Point(i, i * spacing, 0.0, at(timedelta(days=days))) for i in range(MANY)]
            expected = MANY * share
            assert abs(len(left(points)) - expected) < 0.15 * expected + FEWEST


def test_the_lots_of_steps_are_the_same_for_ever() -> None:
    """Another mixing would delete nine of the ten that were kept."""
    assert [round(lot(step), 6) for step in (0, 1, 1000)] == [0.883311, 0.566562, 0.234844]
