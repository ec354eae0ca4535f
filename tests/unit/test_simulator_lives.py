"""Laws of lives, and VMs in zones that come and go."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spothop.policy.estimators import Life
from spothop.simulator.inputs import InputError, Inputs, make
from spothop.simulator.lives import Drawn, Zones, empirical, make_lives
from spothop.simulator.presets import PRESETS

EVEN = (np.arange(20_000) + 0.5) / 20_000


def spec(**lives: Any) -> Inputs:
    base = {key: value for key, value in PRESETS["thesis-117m"].items() if key != "mttp_s"}
    return make({**base, "lives": lives})


def law(**lives: Any) -> Drawn:
    made = make_lives(spec(**lives).lives)
    assert isinstance(made, Drawn)
    return made


@pytest.mark.parametrize(
    "lives",
    [
        {"kind": "exponential", "mttp_s": 7_200},
        {"kind": "weibull", "mttp_s": 7_200, "shape": 0.6},
        {"kind": "weibull", "mttp_s": 7_200, "shape": 3},
    ],
)
def test_laws_have_the_mean_that_they_are_given(lives: dict[str, Any]) -> None:
    made = law(**lives)
    assert made.draw(0, EVEN).mean() == pytest.approx(7_200, rel=0.01)
    assert made.mean_s(5) == 7_200


def test_the_bathtub_kills_early_and_at_the_end_of_the_day() -> None:
    drawn = law(kind="bathtub").draw(0, EVEN) / 3_600
    assert np.mean(drawn < 3) == pytest.approx(0.638 * (1 - math.exp(-3 / 0.96)), abs=0.01)
    assert np.mean((drawn > 5) & (drawn < 20)) < 0.02
    assert drawn.max() < 25
    with pytest.raises(InputError, match="never kills"):
        law(kind="bathtub", a=1e-60)


def test_the_bathtub_has_a_hazard_that_falls_and_rises() -> None:
    hazard = law(kind="bathtub").hazard()
    assert hazard is not None

    def rate(hours: float) -> float:
        at = hours * 3_600
        return (hazard.cumulative(at + 600) - hazard.cumulative(at)) / 600

    assert rate(0.5) > 10 * rate(10)
    assert rate(23) > 10 * rate(10)


def test_measured_lives_are_drawn_from_their_kaplan_meier_curve() -> None:
    rng = random.Random(4)
    lives = []
    for _ in range(3_000):
        death, cut = rng.expovariate(1 / 3_600), rng.expovariate(1 / 3_600)
        lives.append(Life(duration_s=min(death, cut), preempted=death < cut))
    drawn = empirical(lives).draw(0, EVEN)
    assert np.median(drawn) == pytest.approx(3_600 * math.log(2), rel=0.08)


def test_what_outlives_the_last_death_dies_at_the_longest_age_seen() -> None:
    lives = [Life(duration_s=50, preempted=True)]
    lives += [Life(duration_s=100_000, preempted=False)] * 9
    made = empirical(lives)
    assert made.mean_s(0) == pytest.approx(90_005, rel=1e-4)  # Efron's
    assert set(made.draw(0, np.linspace(0.101, 0.999, 50))) == {100_000}


def test_replayed_lives_come_in_their_order_and_then_nothing_dies() -> None:
    made = law(kind="replay", lives_s=[10, 20])
    assert [made.draw(k, np.zeros(1))[0] for k in (0, 1)] == [10, 20]
    assert made.draw(2, np.zeros(1))[0] > 1e12


def test_an_unreadable_trace_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        make_lives(spec(kind="csv", path=str(tmp_path / "no.csv")).lives)


# ticks of 100 s: a is up for 0-2 and 5-9, b for 3-6
UP = {"a": [[1, 3], [0, 2], [1, 5]], "b": [[0, 3], [1, 4], [0, 3]]}


def zoned(tmp_path: Path, *names: str) -> Zones:
    price = {"a": 1.0, "b": 2.0}
    data = {
        "gap_seconds": 100,
        "zones": {n: {"available": UP[n], "price": [[price[n], 10]]} for n in names},
    }
    path = tmp_path / "zones.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    made = make_lives(spec(kind="zones", path=str(path)).lives)
    assert isinstance(made, Zones)
    return made


def place(zones: Zones, at: float, latency: float = 10.0, last: int = -1) -> tuple[float, ...]:
    placed = zones.place(
        0,
        np.zeros(1, dtype=np.int64),
        np.array([at]),
        np.array([latency]),
        np.zeros(1),
        np.array([last]),
    )
    return float(placed.running[0]), float(placed.killed[0]), int(placed.zone[0])


def test_a_vm_lives_until_its_zone_goes_away(tmp_path: Path) -> None:
    zones = zoned(tmp_path, "a")
    assert place(zones, 0) == (10, 300, 0)
    assert place(zones, 350) == (510, 1_300, 0)  # waits for tick 5; the window goes round
    assert place(zones, 295, latency=10) == (510, 1_300, 0)  # gone before it is allocated


def test_the_next_vm_comes_from_another_zone_if_there_is_one(tmp_path: Path) -> None:
    zones = zoned(tmp_path, "a", "b")
    assert place(zones, 320) == (330, 700, 1)
    assert place(zones, 550) == (560, 1_300, 0)  # both up: the cheaper
    assert place(zones, 550, last=0) == (560, 700, 1)  # both up: not where it was just lost
    assert place(zones, 700, last=0) == (710, 1_300, 0)  # only the same zone is there


def test_the_last_tick_of_a_zone_takes_no_vm_and_kills_somewhere_in_it(tmp_path: Path) -> None:
    zones = zoned(tmp_path, "a")
    assert place(zones, 200) == (510, 1_300, 0)
    placed = zones.place(
        0, np.arange(1), np.zeros(1), np.full(1, 10.0), np.full(1, 0.25), np.full(1, -1)
    )
    assert placed.killed == pytest.approx([275])


def test_zones_bill_their_own_prices(tmp_path: Path) -> None:
    zones = zoned(tmp_path, "a", "b")
    trial = np.zeros(2, dtype=np.int64)
    placed = zones.place(
        0, trial, np.array([0.0, 320.0]), np.array([0.0, 0.0]), np.zeros(2), np.array([-1, -1])
    )
    cost = zones.cost(placed, trial, placed.running + 180.0, 99.0)
    assert cost == pytest.approx([0.05, 0.1])


def test_the_statistics_of_a_zone_are_those_of_the_vms_held_there(tmp_path: Path) -> None:
    zones = zoned(tmp_path, "a", "b")
    zones.start(5, 1, 10.0)
    # b is taken when it opens at tick 3, and kept until somewhere in tick 6; 10 s to allocate
    assert zones.mean_s(0, 1) == pytest.approx(340, rel=0.05)
    # a is taken when b goes away, and kept over the end of the window until somewhere in tick 2
    assert zones.mean_s(0, 0) == pytest.approx(590, rel=0.05)
    assert zones.hazard(1) is None  # it went away once: no law can be told from that


def test_a_zone_where_no_scout_was_has_the_prior_and_what_the_others_have_shown() -> None:
    # of the two cheap zones one is always there: nobody comes to the third
    up = np.ones((3, 20), dtype=bool)
    up[0, :2] = up[1, 10:12] = False
    zones = Zones(100.0, up, np.repeat([[1.0], [1.0], [2.0]], 20, axis=1))
    zones.start(5, 1, 10.0)
    first_s, second_s = zones.mean_s(0, 0), zones.mean_s(0, 1)
    assert first_s == pytest.approx(second_s, rel=0.1)
    held_s = 1_000 * (first_s + second_s) / 2  # 40 scouts held 25 VMs each
    assert zones.mean_s(0, 2) == pytest.approx((3 * 3_600 + held_s) / (1 + 1_000), rel=0.01)


def test_a_zone_that_went_away_often_has_a_hazard() -> None:
    rng = np.random.default_rng(1)
    zones = Zones(100.0, rng.random((1, 400)) < 0.8, np.ones((1, 400)))
    zones.start(5, 1, 10.0)
    assert zones.hazard() is not None


def test_a_zone_that_never_goes_away_has_a_long_mean_life(tmp_path: Path) -> None:
    zones = Zones(100.0, np.ones((1, 10), dtype=bool), np.ones((1, 10)))
    zones.start(5, 1, 10.0)
    assert zones.mean_s(0) > 1e4
    assert zones.hazard() is None


def test_a_zone_that_never_goes_away_may_be_asked_at_any_time() -> None:
    zones = Zones(1e-3, np.ones((1, 10), dtype=bool), np.ones((1, 10)))
    running, killed, _ = place(zones, 1e20)
    assert 1e20 <= running < killed


def test_zones_that_are_gone_after_each_tick_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "zones.json"
    flips = {"a": {"available": [[1, 1], [0, 1]]}}
    path.write_text(json.dumps({"gap_seconds": 60, "zones": flips}), encoding="utf-8")
    with pytest.raises(InputError, match=r"zones.json: no zone stays available for two ticks"):
        make_lives(spec(kind="zones", path=str(path)).lives)


def test_an_allocation_longer_than_every_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no zone stays available"):
        place(zoned(tmp_path, "b"), 0, latency=1_000)
