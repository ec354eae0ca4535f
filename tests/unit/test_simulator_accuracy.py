"""The summary of the benchmark that compares the simulator with real runs."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_a_table_of_few_runs_has_their_spread_and_the_worst_of_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    accuracy = importlib.import_module("simulator_accuracy")
    published: dict[str, Any] = {}

    def publish(name: str, title: str, rows: list[dict[str, Any]], **facts: Any) -> None:
        published.update(facts, rows=rows)

    def record(mttp_s: float, wall_s: float) -> Any:
        case = accuracy.Case(workload=accuracy.WORKLOADS[0], policy="notice-aware", mttp_s=mttp_s)
        figures = dict.fromkeys(("step_s", "save_s", "backup_s", "allocation_s"), 1.0)
        return accuracy.Record(
            case=case, steps=9, wall_s=wall_s, lives_s=[], preparation_s=1, grace_s=1, **figures
        )

    monkeypatch.setattr(accuracy, "publish", publish)
    monkeypatch.setattr(accuracy, "predicted_s", lambda _: 100.0)
    accuracy.report([record(20, 100 / 1.02), record(20, 100 / 0.92), record(40, 100)])
    two, one = published["rows"]
    assert two["error_%"] == pytest.approx(-3)
    assert two["sd_%"] == pytest.approx(50**0.5)  # of (-8, 2): divided by n - 1
    assert two["worst_%"] == pytest.approx(-8)
    assert (one["runs"], one["sd_%"]) == (1, None)
    assert published["worst_error"] == pytest.approx(-0.08)
    assert "worst run -8.0 %" in capsys.readouterr().out
