"""Whatever the inputs accept comes out in finite figures, without a warning (which is an error)."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from rich.console import Console

from spothop.simulator import InputError, make, run
from spothop.simulator.show import screen
from support.examples import examples

SECONDS = (0, 1e-6, 0.5, 30, 1e5, 1e9)
LIVES = (1e-3, 1, 600, 1e5, 1e12, 1e15)
HOURS = (0.01, 1, 25, 10_000)

seconds = st.sampled_from(SECONDS) | st.lists(st.sampled_from(SECONDS), min_size=2, max_size=2).map(
    sorted
)
mean = st.sampled_from(LIVES) | st.floats(1e-3, 1e15)
hours = st.sampled_from(HOURS)
price = st.sampled_from([1e-6, 0.3, 1e6])


@st.composite
def zones(draw: st.DrawFn, folder: Path) -> dict[str, Any]:
    """Zones of six ticks, written to a file."""
    written: dict[str, Any] = {}
    priced = draw(st.booleans())
    for name in ("a", "b"):
        up = draw(st.lists(st.sampled_from([0, 1]), min_size=6, max_size=6))
        written[name] = {"available": [[value, 1] for value in up]}
        if priced:
            written[name]["price"] = [[draw(st.sampled_from([0, 1e-6, 1.2, 1e6])), 6]]
    tick_s = draw(st.sampled_from([1e-3, 60, 1e9]))
    path = folder / "zones.json"
    path.write_text(json.dumps({"gap_seconds": tick_s, "zones": written}), encoding="utf-8")
    return {"kind": "zones", "path": str(path)}


@st.composite
def measured(draw: st.DrawFn, folder: Path) -> dict[str, Any]:
    """A file of lives."""
    rows = draw(st.lists(st.tuples(mean, st.sampled_from(["preempted", "stop"])), min_size=2))
    path = folder / "lives.csv"
    lines = ["lifetime_s,end", *(f"{life},{end}" for life, end in rows)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return {"kind": "csv", "path": str(path)}


def laws(folder: Path) -> st.SearchStrategy[dict[str, Any]]:
    means = st.lists(mean, min_size=1, max_size=3)
    shape = st.sampled_from([0.05, 0.57, 3, 1_000])
    kind = st.just
    return st.one_of(
        st.fixed_dictionaries({"kind": kind("exponential"), "mttp_s": means}),
        st.fixed_dictionaries({"kind": kind("weibull"), "mttp_s": means, "shape": shape}),
        st.fixed_dictionaries(
            {
                "kind": kind("bathtub"),
                "a": st.sampled_from([1e-300, 0.638, 10]),
                "t1_h": hours,
                "t2_h": hours,
                "b_h": hours,
            }
        ),
        st.fixed_dictionaries({"kind": kind("replay"), "lives_s": st.lists(mean, max_size=3)}),
        measured(folder),
        zones(folder),
    )


def jobs(folder: Path) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "steps": st.sampled_from([1, 1_000, 10**12]),
            "step_s": st.sampled_from([1e-6, 4.6, [1, 2], 1e9]),
            "save_s": seconds,
            "backup_s": seconds,
            "allocation_s": seconds,
            "boot_s": seconds,
            "load_s": seconds,
            "boot_overlaps": st.booleans(),
            "stream": st.booleans(),
            "margin_s": st.sampled_from([0, 1e-6, 20]),
            "emergency": st.sampled_from(["once", "early+late"]),
            "grace_s": seconds,
            "lives": laws(folder),
            "spot_price": price,
            "on_demand_price": price,
            "policies": st.sampled_from(["thesis", "notice-aware", "static-1", "none"]).map(
                lambda policy: [policy, "on-demand"]
            ),
            "periodic_every": st.sampled_from([None, 1, 100, 10**12]),
            "notices_kept": st.sampled_from([0, 0.5, 1]),
            "replacement": st.sampled_from(["notice", "kill"]),
            "stall_s": st.none() | seconds,
            "detection_s": seconds,
            "mid_step": st.booleans(),
            "knowledge": st.sampled_from(["exact", "learned"]),
            "prior_mttp_s": mean,
            "trials": st.sampled_from([1, 3]),
        }
    )


@pytest.fixture
def few_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that gets nowhere is given up sooner."""
    monkeypatch.setattr("spothop.simulator.engine.MAX_LIVES", 30)
    monkeypatch.setattr("spothop.simulator.schedule._MAX_ENTRIES", 20)
    monkeypatch.setattr("spothop.simulator.lives._MAX_REFUSALS", 100)


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_figures_are_finite_and_fit_80_columns(
    data: st.DataObject, tmp_path: Path, few_lives: None
) -> None:
    try:
        result = run(make(data.draw(jobs(tmp_path))))
    except InputError:
        return
    for row in result.rows:
        for name, figure in row.items():
            assert name == "policy" or math.isfinite(float(figure)), (name, figure)
    console = Console(width=80, file=io.StringIO())
    with console.capture() as shown:
        console.print(screen(result))
    assert max(map(len, shown.get().splitlines())) <= 80
    assert "nan" not in shown.get()
    assert "inf" not in shown.get()
