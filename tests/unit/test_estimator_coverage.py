"""How often the interval of M holds the truth, in worlds that the estimator does not assume.

Monte Carlo with fixed seeds. The tables are those of `benchmarks/estimator_coverage.py`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def coverage(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("estimator_coverage")


def share(coverage: ModuleType, scene: str, deaths: int, histories: int = 60) -> float:
    """Of histories whose 90 % interval holds the true mean life."""
    rng = coverage.random.Random(f"{scene} {deaths}")
    found = [coverage.HARD_SCENES[scene](rng, deaths) for _ in range(histories)]
    return sum(coverage.covered(p, truth) for truth, p in found) / histories


@pytest.mark.parametrize("scene", ["ten VMs that always die together"])
def test_vms_that_die_together_are_no_independent_deaths(coverage: ModuleType, scene: str) -> None:
    assert share(coverage, scene, 10) >= 0.8  # as ten deaths each: 0.46
