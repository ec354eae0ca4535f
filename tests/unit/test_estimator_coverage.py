"""How often the interval of M holds the truth, in worlds that the estimator does not assume.

Monte Carlo with fixed seeds. The whole table is that of `benchmarks/estimator_coverage.py`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

SHOCKS = "ten VMs that always die together"
HALF = "ten VMs, half of the deaths in shocks"
ALIKE = "four other zones, all alike"
CLOSE = "four other zones, within a factor 1.6"
APART = "four other zones, within a factor 2.7"
OUTLIER = "1 h among four zones of 12 h"
FELL = "M fell from 6 h to 2 h"
WANDERS = "M doubles or halves each day"
WEIBULL = "Weibull lives, shape 0.8"
YOUNG = "Weibull lives, shape 0.6"


@pytest.fixture
def coverage(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("estimator_coverage")


def held(coverage: ModuleType, scene: str, deaths: int, histories: int) -> tuple[float, float]:
    """Share of histories whose 90 % interval holds the true M; median of believed over true M."""
    cell = coverage.hard_cell(1, scene, deaths, histories)
    return cell["coverage"], cell["median"]


@pytest.mark.parametrize(
    ("scene", "deaths", "at_least"),
    [
        (SHOCKS, 12, 0.8),  # as ten deaths each: 0.46
        (CLOSE, 3, 0.75),
        (APART, 12, 0.78),  # neighbours as five preemptions, whatever they say: 0.67
        (WEIBULL, 12, 0.75),
    ],
)
def test_the_interval_holds_the_truth(
    coverage: ModuleType, scene: str, deaths: int, at_least: float
) -> None:
    assert held(coverage, scene, deaths, 40)[0] >= at_least


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("scene", "deaths", "at_least", "off"),
    [
        (SHOCKS, 12, 0.85, 1.15),
        (SHOCKS, 50, 0.85, 1.15),
        (HALF, 12, 0.8, 1.15),
        (ALIKE, 3, 0.9, 1.15),
        (CLOSE, 12, 0.8, 1.15),
        (APART, 12, 0.8, 1.2),
        (OUTLIER, 12, 0.25, 2.0),
        (OUTLIER, 145, 0.65, 1.15),
        (FELL, 50, 0.8, 1.15),
        (WANDERS, 12, 0.7, 1.3),
        (WEIBULL, 50, 0.75, 1.15),
        (YOUNG, 50, 0.5, 1.2),
    ],
)
def test_what_the_documentation_says_of_it(
    coverage: ModuleType, scene: str, deaths: int, at_least: float, off: float
) -> None:
    share, median = held(coverage, scene, deaths, 300)
    assert share >= at_least
    assert 1 / off < median < off
