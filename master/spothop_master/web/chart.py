"""Geometry of the pictures on the pages. Pure: figures in, positions in a 1000 x 100 box out.

The box is stretched to the page's width, so labels are text beside it and never inside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from spothop.figures import number, shown_state
from spothop.wire import AttemptView, CheckpointView, VmView

WIDTH = 1000
HEIGHT = 100


@dataclass(frozen=True, kw_only=True)
class LineChart:
    """One metric over steps."""

    path: str
    """`d` of an SVG path."""
    y_labels: tuple[str, ...]
    """From top to bottom."""
    x_labels: tuple[str, ...]
    marks: tuple[float, ...]
    """Where preemptions happened."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One phase of an attempt: waiting, preparing, starting, training or draining."""

    phase: str
    x: float
    width: float


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A checkpoint."""

    kind: str
    x: float


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One attempt's row in the timeline."""

    number: int
    zone: str
    outcome: str
    segments: tuple[Segment, ...]
    ticks: tuple[Tick, ...]


def line_chart(points: Sequence[tuple[int, float]], marks: Sequence[int]) -> LineChart | None:
    """None below two finite points."""
    finite = [(step, value) for step, value in points if math.isfinite(value)]
    if len(finite) < 2:
        return None
    first, last = finite[0][0], finite[-1][0]
    low, high = min(v for _, v in finite), max(v for _, v in finite)
    across, up = max(1, last - first), (high - low) or 1.0

    def x(step: int) -> float:
        return round((step - first) / across * WIDTH, 1)

    def y(value: float) -> float:
        return round((high - value) / up * HEIGHT, 2)

    path = "M" + " L".join(f"{x(step)},{y(value)}" for step, value in finite)
    return LineChart(
        path=path,
        y_labels=tuple(number(v) for v in (high, (high + low) / 2, low)),
        x_labels=(number(first), number((first + last) // 2), number(last)),
        marks=tuple(x(step) for step in marks if first <= step <= last),
    )


def timeline(
    attempts: Sequence[AttemptView],
    vms: Sequence[VmView],
    checkpoints: Sequence[CheckpointView],
    *,
    start: datetime,
    end: datetime,
) -> list[Lane]:
    """One lane per attempt, newest last; `start` and `end` are the edges of the picture."""
    by_id = {vm.id: vm for vm in vms}
    span = max(1e-3, (end - start).total_seconds())

    def x(at: datetime) -> float:
        return round(min(1.0, max(0.0, (at - start).total_seconds() / span)) * WIDTH, 1)

    lanes = []
    ended_on: dict[str, datetime | None] = {}
    for attempt in attempts:
        vm = by_id.get(attempt.vm)
        if vm is None:
            continue
        segments = [
            Segment(phase=phase, x=x(begin), width=max(2.0, round(x(until) - x(begin), 1)))
            for phase, begin, until in _phases(attempt, vm, ended_on.get(vm.id), start, end)
        ]
        ended_on[vm.id] = attempt.ended_at
        ticks = [
            Tick(kind=c.kind.value, x=x(c.committed_at))
            for c in checkpoints
            if c.attempt == attempt.number
        ]
        lanes.append(
            Lane(
                number=attempt.number,
                zone=vm.pool.zone,
                outcome=(attempt.reason or shown_state(attempt)).replace("_", " "),
                segments=tuple(segments),
                ticks=tuple(ticks),
            )
        )
    return lanes


def _phases(
    attempt: AttemptView, vm: VmView, before: datetime | None, start: datetime, end: datetime
) -> list[tuple[str, datetime, datetime]]:
    """What is known of an attempt, as stretches of time without gaps.

    `before`: the end of the attempt before on the same VM, which did not wait for one.
    """
    over = attempt.ended_at or end
    points: list[tuple[str, datetime | None]] = [
        ("waiting", None if before else max(start, vm.requested_at)),
        ("preparing", before or vm.running_at),
        ("starting", attempt.started_at if attempt.started_at != attempt.first_step_at else None),
        ("training", attempt.first_step_at),
        ("draining", attempt.notice_at),
    ]
    known = [(phase, min(at, over)) for phase, at in points if at is not None]
    edges = [*(at for _, at in known[1:]), over]
    return [
        (phase, begin, max(begin, until))
        for (phase, begin), until in zip(known, edges, strict=True)
    ]
