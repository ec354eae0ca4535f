"""Inputs of the simulator: bounds, YAML, policies, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from spothop_master.simulator.inputs import Arm, Bounds, InputError, load, make
from spothop_master.simulator.presets import PRESETS

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
        ({"step_s": 0}, "step_s: a step takes more than 0 seconds"),
        ({"save_s": -1}, "save_s: -1: seconds are 0 or more"),
        ({"save_s": "soon"}, "save_s: 'soon' is neither seconds nor"),
        ({"backup_s": [1, 2, 3]}, "backup_s: .* is neither seconds nor"),
        ({"allocation_s": float("inf")}, "allocation_s: inf: seconds are 0 or more, and finite"),
        ({"mttp_s": 0}, "mttp_s.*greater than 0"),
        ({"mttp_s": []}, "mttp_s.*at least 1"),
        ({"mttp_s": float("nan")}, r"mttp_s.*(finite|greater than 0)"),
        ({"steps": 0}, "steps.*greater than 0"),
        ({"notices_kept": 1.5}, "notices_kept.*less than or equal to 1"),
        ({"trials": 0}, "trials.*greater than or equal to 1"),
        ({"policies": []}, "policies.*at least 1"),
        ({"policies": ["thesys"]}, "no policy 'thesys'"),
        ({"policies": ["thesis+emergency"]}, "only static and none take"),
        ({"backup": 5}, "there is no input 'backup'; did you mean backup_s?"),
        ({"lives": {"kind": "bathtub"}}, "give mttp_s .* or lives, not both"),
        ({"vm": "m5.large"}, "no price of VM type 'm5.large'"),
    ],
)
def test_nonsense_is_refused_with_the_fact_and_the_way_out(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        make({**BASE, **change})


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


@pytest.mark.parametrize("text", ["- 1\n", "just text", "a: [1\n", "\x00"])
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
