"""Inputs of the simulator: bounds, YAML, policies, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from spothop.simulator.inputs import Arm, Bounds, InputError, load, make
from spothop.simulator.presets import PRESETS

BASE = PRESETS["thesis-117m"]


def test_presets_are_valid_and_bounds_are_numbers_or_pairs() -> None:
    for preset in PRESETS.values():
        assert make(preset).steps == 100_000
    inputs = make({**BASE, "step_s": [4, 5]})
    assert inputs.step_s == Bounds(4, 5)
    assert inputs.save_s == Bounds(2.5, 2.5)
    assert inputs.prices == (2.3, 6.2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step_s": [5, 4]}, r"step_s: low 5 is above high 4: write \[low, high\]"),
        ({"step_s": 0}, "step_s: 0: a step takes more than 0 seconds"),
        ({"save_s": -1}, "save_s: -1: seconds are 0 or more"),
        ({"save_s": "soon"}, "save_s: 'soon' is neither seconds nor"),
        ({"backup_s": [1, 2, 3]}, "backup_s: .* is neither seconds nor"),
        ({"allocation_s": float("inf")}, r"allocation_s: inf: seconds .* 1e\+09 at most"),
        ({"backup_s": 10**400}, "backup_s: 1000.*0000: seconds are 0 or more"),
        ({"step_s": True}, "step_s: True is neither seconds nor"),
        ({"step_s": 1e9, "steps": 10**12}, "steps: 1000000000000 steps of 1e.09 s .* lower steps"),
        ({"mttp_s": 0}, "mttp_s.0: 0: should be greater than or equal to 0.001"),
        ({"mttp_s": 1e300}, r"mttp_s.0: 1e\+300: should be less than or equal to 1000000000000000"),
        ({"mttp_s": [600, True]}, "mttp_s.1: True is no number"),
        ({"lives": {}}, "lives: {}: say which kind it is: exponential, weibull,"),
        ({"lives": {"kind": "gamma"}}, "lives: {'kind': 'gamma'}: .* 'exponential', 'weibull'"),
        ({"lives": {"kind": "exponential"}}, "lives.mttp_s: is missing; docs/"),
        (
            {"lives": {"kind": "bathtub", "b": 1}},
            "lives: there is no input 'b'; there are kind, a,",
        ),
        ({"lives": {"kind": "bathtub", "a": 1e300}}, r"lives.a: 1e\+300: .* 10$"),
        ({"lives": {"kind": "bathtub", "b_h": 1e300}}, r"lives.b_h: 1e\+300: .* 10000$"),
        ({"lives": {"kind": "weibull", "mttp_s": 7200, "shape": 0.001}}, "shape: 0.001: .* 0.05$"),
        ({"lives": {"kind": "weibull", "mttp_s": 7200, "shape": 1e4}}, "shape: 10000.0: .* 1000$"),
        ({"lives": {"kind": "replay", "lives_s": [1, 0]}}, "lives.lives_s.1: 0: .* 0.001"),
        (
            {"lives": {"kind": "zones", "path": "z", "zones": ["a", "a"]}},
            "lives.zones: 'a' stands there more than once",
        ),
        ({"spot_price": 1e300}, r"spot_price: 1e\+300: should be less than or equal to 1000000"),
        (
            {"on_demand_price": 1e-300},
            "on_demand_price: 1e-300: should be greater than .* 0.000001",
        ),
        ({"seed": 16**5000}, "seed: a number of thousands of digits: "),
        ({"periodic_every": 10**30}, "periodic_every: 1000.*000: should be less than"),
        ({"name": "\ud800"}, r"name: '\\ud800': write 1 to 100 characters"),
        ({"mttp_s": []}, "mttp_s.*at least 1"),
        ({"mttp_s": float("nan")}, "mttp_s.0: nan: should be greater than"),
        ({"steps": 0}, "steps: 0: should be greater than 0"),
        ({"notices_kept": 1.5}, "notices_kept.*less than or equal to 1"),
        ({"trials": 0}, "trials.*greater than or equal to 1"),
        ({"policies": []}, "policies.*at least 1"),
        ({"policies": ["thesys"]}, "no policy 'thesys'"),
        ({"policies": ["thesis+emergency"]}, "only static and none take"),
        ({"backup": 5}, "there is no input 'backup'; did you mean backup_s?"),
        ({"mttp_s": 1, "lives": {"kind": "bathtub"}}, "give mttp_s .* or lives, not both"),
        ({"boot_s": -1}, "boot_s: -1: seconds are 0 or more"),
        ({"load_s": None}, "load_s: is missing; a VM prepares for boot_s"),
        ({"boot_s": None, "load_s": None}, "boot_s: is missing; .*preparation_s: both together"),
        (
            {"preparation_s": 160},
            "boot_s: 140: preparation_s stands for boot_s and load_s together",
        ),
        ({"margin_s": -1}, "margin_s: -1: should be greater than or equal to 0"),
        ({"margin_s": True}, "margin_s: True is no number"),
        ({"margin_s": 30}, "margin_s: 30: leaves nothing of a grace period of 30 s: lower it"),
        ({"emergency": "late"}, "emergency: 'late': should be 'once' or 'early.late'"),
        ({"stream": "perhaps"}, "stream: 'perhaps': should be a valid boolean"),
        ({"boot_overlaps": 7}, "boot_overlaps: 7: should be a valid boolean"),
        ({"overlap": True}, "there is no input 'overlap'; did you mean boot_overlaps"),
        ({"vm": "m5.large"}, "no price of VM type 'm5.large'"),
    ],
)
def test_nonsense_is_refused_with_the_fact_and_the_way_out(
    change: dict[str, Any], message: str
) -> None:
    base = {k: v for k, v in BASE.items() if k != "mttp_s" or "lives" not in change}
    with pytest.raises(InputError, match=message):
        make({**base, **change})


def test_every_fault_gets_a_line() -> None:
    with pytest.raises(InputError) as caught:
        make({**BASE, "steps": 0, "trials": 0})
    assert len(str(caught.value).splitlines()) == 2


def test_any_vm_type_goes_with_its_prices() -> None:
    inputs = make({**BASE, "vm": "m5.large", "spot_price": 1, "on_demand_price": 3})
    assert inputs.prices == (1, 3)


def test_a_file_is_yaml_and_its_trace_is_relative_to_it(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("steps: 10\nlives: {kind: csv, path: lives.csv}\n", encoding="utf-8")
    assert load(path) == {
        "steps": 10,
        "lives": {"kind": "csv", "path": str(tmp_path / "lives.csv")},
    }


@pytest.mark.parametrize(
    "text",
    ["- 1\n", "just text", "a: [1\n", "\x00", "seed: " + 5_000 * "9", "[" * 700, "a: 2020-13-13"],
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(str(path))):
        load(path)
    with pytest.raises(InputError, match="No such file"):
        load(tmp_path / "nowhere.yaml")


def test_arms_say_what_happens_at_a_notice() -> None:
    assert Arm.of("thesis").emergency == "fits"
    assert Arm.of("notice-aware").emergency == "always"
    assert Arm.of("static-51") == Arm("static-51", "static:51", "never")
    assert Arm.of("static-51+emergency").emergency == "always"
    assert Arm.of("on-demand").policy is None


def test_preparation_is_boot_and_load_or_both_together() -> None:
    split = make(BASE)
    whole = make(
        {**{k: v for k, v in BASE.items() if k not in ("boot_s", "load_s")}, "preparation_s": 160}
    )
    assert (split.boot.mean, split.load.mean) == (140, 20)
    assert (whole.boot.mean, whole.load.mean) == (160, 0)
    assert split.restart_s == whole.restart_s == 133.5 + 160
    beside = make({**BASE, "boot_overlaps": True})
    assert beside.restart_s == 140 + 20
    assert make({**BASE, "boot_overlaps": True, "boot_s": 30}).restart_s == 133.5 + 20


def test_a_preset_assumes_what_the_thesis_does_and_a_file_what_spothop_does() -> None:
    thesis = make(BASE)
    assert (thesis.notices_kept, thesis.emergency) == (1, "once")
    own = make({k: v for k, v in BASE.items() if k not in ("notices_kept", "emergency")})
    assert (own.notices_kept, own.emergency) == (0.95, "early+late")
