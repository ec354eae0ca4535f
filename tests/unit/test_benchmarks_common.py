"""What the benchmarks share: quantiles, and the table with its JSON."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "common.py"


def load() -> ModuleType:
    """Benchmarks are scripts, not a package."""
    spec = importlib.util.spec_from_file_location("benchmarks_common", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common = load()


def test_quantiles_are_values_that_were_measured() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [common.quantile(values, q) for q in (0, 0.5, 0.9, 1)] == [1.0, 3.0, 5.0, 5.0]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1))
def test_a_quantile_leaves_its_share_below(values: list[float], q: float) -> None:
    found = common.quantile(values, q)
    below = sum(value < found for value in values)
    assert found in values
    assert below <= q * len(values)


def test_there_is_no_quantile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        common.quantile([], 0.5)


def test_the_table_stands_on_the_screen_and_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path / "results")
    rows = [{"what": "a", "ms": 1.23456}, {"what": "longer", "ms": 2.0}]
    common.publish("name", "a title", rows, runs=7)
    assert capsys.readouterr().out.splitlines() == [
        "a title",
        "  what    ms   ",
        "  a       1.235",
        "  longer  2    ",
    ]
    written = json.loads((tmp_path / "results" / "name.json").read_text())
    assert written["rows"] == rows, "rounded on the screen only"
    assert (written["benchmark"], written["runs"]) == ("name", 7)
    assert set(written["machine"]) == {"cores", "python"}
