"""The whole simulator: the thesis's figures, rows, tables, the report, and the command."""

from __future__ import annotations

import html
import io
import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from spothop.simulator import PRESETS, InputError, Inputs, Row, make, run
from spothop.simulator.cli import Patience, app
from spothop.simulator.published import PUBLISHED, beside
from spothop.simulator.report import kept_sweep, mttp_sweep, overheads, page, spread
from spothop.simulator.result import confidence
from spothop.simulator.show import clock, screen

KEYS = [
    "policy",
    "overhead",
    "overhead_low",
    "overhead_high",
    "saving",
    "computation_s",
    "recomputation_s",
    "save_s",
    "allocation_s",
    "preparation_s",
    "total_s",
    "cost_usd",
    "preemptions",
]


@pytest.fixture(autouse=True)
def _sweeps_of_few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report simulates each policy at each of 19 points. Its ends tell what it looks like."""
    monkeypatch.setattr("spothop.simulator.report.MTTP_HOURS", (1, 12))
    monkeypatch.setattr("spothop.simulator.report.KEPT", (0.0, 0.5, 1.0))


@pytest.mark.parametrize(
    ("preset", "policy", "expected", "tolerance"),
    [
        ("thesis-117m", "thesis", 2.85, 0.35),
        ("thesis-117m", "static-10", 8.45, 0.2),
        ("thesis-117m", "static-51", 4.85, 0.2),
        ("thesis-117m", "static-100", 5.45, 0.2),
        ("thesis-1.3b", "thesis", 10.7, 0.6),
        ("thesis-1.3b", "static-10", 15.55, 0.2),
        ("thesis-1.3b", "static-33", 10.55, 0.2),
        ("thesis-1.3b", "static-100", 15.35, 0.2),
    ],
)
def test_the_thesis_tables_as_independent_programs_found_them(
    preset: str, policy: str, expected: float, tolerance: float
) -> None:
    result = run(make({**PRESETS[preset], "policies": [policy], "trials": 400}))
    assert 100 * result.of(policy).row.overhead == pytest.approx(expected, abs=tolerance)


def test_with_missing_notices_ours_beats_the_thesis_and_it_costs_little_without() -> None:
    arms = ["thesis", "notice-aware", "static-51"]
    missing = run(
        make({**PRESETS["thesis-117m"], "policies": arms, "trials": 400, "notices_kept": 0.95})
    )
    overhead = {o.row.policy: 100 * o.row.overhead for o in missing.outcomes}
    assert overhead["notice-aware"] == pytest.approx(3.2, abs=0.15)
    assert overhead["thesis"] == pytest.approx(6.8, abs=0.5)
    assert overhead["notice-aware"] < overhead["static-51"]
    kept = run(make({**PRESETS["thesis-117m"], "policies": arms, "trials": 400}))
    behind = kept.of("notice-aware").row.overhead - kept.of("thesis").row.overhead
    assert 0 < 100 * behind < 0.3


def test_rows_have_exactly_these_keys() -> None:
    result = run(make({**PRESETS["thesis-117m"], "trials": 3}))
    assert [field.name for field in fields(Row)] == KEYS
    assert all(list(row) == KEYS for row in result.rows)
    assert [row["policy"] for row in result.rows] == PRESETS["thesis-117m"]["policies"]


def test_on_demand_is_the_baseline() -> None:
    row = run(make({**PRESETS["thesis-117m"], "policies": ["on-demand"]})).of("on-demand").row
    assert (row.overhead, row.saving, row.preemptions) == (pytest.approx(0), pytest.approx(0), 0)
    assert row.total_s == pytest.approx(100_000 * 4.6 + 25 + 133.5 + 160)


def test_a_policy_that_gets_nowhere_is_left_out_with_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spothop.simulator.engine.MAX_LIVES", 100)
    short = {**PRESETS["thesis-117m"], "periodic_every": None, "notices_kept": 0, "trials": 2}
    result = run(make({**short, "policies": ["none", "static-51"]}))
    assert [o.row.policy for o in result.outcomes] == ["static-51"]
    assert "none: 2 of 2 trials" in result.notes[0]
    with pytest.raises(InputError, match="2 of 2 trials"):
        run(make({**short, "policies": ["none"]}))


def test_the_interval_of_the_mean_narrows_with_trials_and_exists_for_one() -> None:
    rng = np.random.default_rng(1)
    few, many = (confidence(rng.normal(size=n)) for n in (10, 1_000))
    assert few[1] - few[0] > 5 * (many[1] - many[0])
    assert confidence(np.array([3.0])) == (3.0, 3.0)


def test_published_figures_stand_only_beside_the_same_job() -> None:
    preset = PRESETS["thesis-117m"]
    assert beside(make({**preset, "trials": 7, "replacement": "kill"})) == PUBLISHED["thesis-117m"]
    assert beside(make({**preset, "mttp_s": 3_600})) == {}
    assert beside(make({**preset, "name": "mine"})) == {}


@pytest.mark.parametrize(
    ("preset", "told"),
    [
        ("thesis-117m", ["2.86", "The adaptive row lies between ours"]),
        ("thesis-1.3b", ["12.25", "The published rows lie"]),
    ],
)
def test_80_columns_show_ours_beside_the_published_figures(preset: str, told: list[str]) -> None:
    result = run(make({**PRESETS[preset], "trials": 3}))
    console = Console(width=80, file=io.StringIO())
    with console.capture() as shown:
        console.print(screen(result))
    assert "published and simulated" in shown.get()
    for line in shown.get().splitlines():
        assert len(line) <= 80
        assert line == line.rstrip()
    for text in told:
        assert text in shown.get()
    assert clock(max(outcome.row.total_s for outcome in result.outcomes)) in shown.get()  # whole


def test_a_jobs_name_is_no_markup() -> None:
    result = run(
        make({**PRESETS["thesis-117m"], "trials": 1, "name": "[/b]", "policies": ["none"]})
    )
    console = Console(width=80, file=io.StringIO())
    with console.capture() as shown:
        console.print(screen(result))
    assert shown.get().startswith("[/b]: 100,000 steps")


def test_clock() -> None:
    assert clock(473_488) == "5d 11:31:28"
    assert clock(59.6) == "0:01:00"


def test_the_report_is_one_file_that_needs_no_network() -> None:
    arms = ["static-51", "on-demand"]
    inputs = make({**PRESETS["thesis-117m"], "policies": arms, "trials": 2, "name": "<b>"})
    text = page(run(inputs))
    assert "<script src" not in text
    assert "<b>" not in text.split("</title>")[0]
    for title in ("figures 6.1, 6.2", "figure 6.3", "share of notices kept", "single trials"):
        assert title in text


def test_the_report_has_every_table_of_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spothop.simulator.engine.MAX_LIVES", 500)
    given = {**PRESETS["thesis-117m"], "trials": 2}
    text = page(run(make({**given, "policies": ["thesis", "static-51"]})))
    for told in ("computation", "5-95 %", "useful %", "published and simulated", "2.86"):
        assert told in text
    assert "The adaptive row lies between ours" in text
    lost = {**given, "notices_kept": 0, "periodic_every": None}
    result = run(make({**lost, "policies": ["none", "static-51"]}))
    assert result.notes
    assert html.escape(result.notes[0]) in page(result)


def one_far_off(**more: object) -> Inputs:
    """The thesis's rule has no insurance: without notices it computes everything again."""
    arms = ["thesis", "notice-aware", "static-51"]
    return make({**PRESETS["thesis-117m"], "policies": arms, "trials": 2, **more})


def test_an_axis_is_logarithmic_where_one_policy_is_far_off() -> None:
    figure = kept_sweep(one_far_off())
    assert figure.layout.yaxis.type == "log"
    line = figure.data[0]
    assert max(line.y) > 1_000
    assert all(y - low > 0 for y, low in zip(line.y, line.error_y.arrayminus, strict=True))
    assert mttp_sweep(one_far_off()).layout.yaxis.type is None
    assert spread(run(one_far_off())).layout.yaxis.type is None
    assert spread(run(one_far_off(notices_kept=0))).layout.yaxis.type == "log"


def test_what_lies_on_0_stands_at_the_foot_of_a_logarithmic_axis() -> None:
    calm = {key: value for key, value in PRESETS["thesis-117m"].items() if key != "mttp_s"}
    calm |= {"lives": {"kind": "replay", "lives_s": []}, "trials": 2}
    figure = spread(run(make({**calm, "policies": ["none", "static-10"]})))
    assert figure.layout.yaxis.type == "log"
    assert min(figure.data[0].y) == 0.01


def test_a_bar_that_is_far_off_is_cut_off_and_its_height_is_told() -> None:
    figure = overheads(run(one_far_off(notices_kept=0.5)))
    assert figure.layout.yaxis.range[1] < 20
    assert [note.x for note in figure.layout.annotations] == ["thesis"]
    assert "%</b>, cut off" in figure.layout.annotations[0].text
    assert not overheads(run(one_far_off())).layout.annotations
    assert not overheads(run(one_far_off(policies=["on-demand"]))).layout.annotations


runner = CliRunner()


def test_the_command_prints_rows_as_json(tmp_path: Path) -> None:
    report = tmp_path / "out.html"
    options = "--preset thesis-117m --trials 3 --mttp 3600,2h --json"
    chosen = ["--policy", "thesis-always", "--policy", "on-demand", "--report", str(report)]
    done = runner.invoke(app, [*options.split(), *chosen])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [row["policy"] for row in rows] == ["thesis-always", "on-demand"]
    assert 40 < rows[0]["preemptions"] < 100
    assert report.stat().st_size > 1_000_000


def test_the_command_takes_a_file_and_a_trace(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "steps: 1000\nstep_s: [1, 2]\nsave_s: 1\nbackup_s: 1\nallocation_s: 30\n"
        "preparation_s: 30\ngrace_s: 30\nmttp_s: 600\npolicies: [notice-aware]\ntrials: 4\n",
        encoding="utf-8",
    )
    trace = tmp_path / "lives\udcff.csv"  # no text in UTF-8
    trace.write_text("lifetime_s,end\n300,preempted\n900,preempted\n", encoding="utf-8")
    report = tmp_path / "out.html"
    done = runner.invoke(app, [str(job), "--trace", str(trace), "--report", str(report)])
    assert done.exit_code == 0, done.output
    assert "notice-aware" in done.stdout
    assert "udcff.csv" in report.read_text(encoding="utf-8")


def zones_json(folder: Path, *prices: float | None) -> str:
    """Zones that are up for 9 of 10 hours, each with its price."""
    path = folder / "zones.json"
    zones = {
        f"z{n}": {"available": [[1, 9], [0, 1]]} | ({"price": [[price, 10]]} if price else {})
        for n, price in enumerate(prices)
    }
    path.write_text(json.dumps({"gap_seconds": 3_600, "zones": zones}), encoding="utf-8")
    return str(path)


def test_prices_of_a_trace_are_not_those_of_the_presets_vm(tmp_path: Path) -> None:
    base = ["--preset", "thesis-117m", "--policy", "static-51", "--trials", "3"]
    base += ["--trace", zones_json(tmp_path, 0.93)]
    report = tmp_path / "out.html"
    done = runner.invoke(app, [*base, "--report", str(report)])
    assert done.exit_code == 0, done.output
    told = "on-demand price of Standard_NC12s_v3, 6.2 USD an hour"
    assert told in " ".join(done.stdout.split())
    assert told in report.read_text(encoding="utf-8")
    done = runner.invoke(app, [*base, "--json"])
    assert told in done.stderr
    assert "--on-demand-price" in done.stderr
    done = runner.invoke(app, [*base, "--json", "--on-demand-price", "3.1", "--spot-price", "2"])
    assert json.loads(done.stdout)[0]["saving"] == pytest.approx(0.7, abs=0.02)
    assert done.stderr == "spot_price 2 is not used: the trace has spot prices of its own\n"


def test_a_trace_without_prices_costs_the_spot_price(tmp_path: Path) -> None:
    base = ["--preset", "thesis-117m", "--policy", "thesis", "--trials", "3", "--json"]
    base += ["--trace", zones_json(tmp_path, None)]
    for more, saving in ([], 1 - 2.3 / 6.2), (["--spot-price", "3.1"], 0.5):
        done = runner.invoke(app, [*base, *more])
        assert json.loads(done.stdout)[0]["saving"] == pytest.approx(saving, abs=0.02)
        assert done.stderr == ""
    done = runner.invoke(app, [*base[:-1], zones_json(tmp_path, None, 0.9)])
    assert done.exit_code == 2
    assert "others none (z0)" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a YAML file or --preset"),
        (["--preset", "x"], "no preset 'x'"),
        (["--preset", "thesis-117m", "--mttp", "soon"], "--mttp: 'soon' is no time above 0"),
        (["--preset", "thesis-117m", "--on-demand-price", "nan"], "on_demand_price: nan"),
        (["--preset", "thesis-117m", "--mttp", "1", "--trace", "x.csv"], "not both"),
        (["--preset", "thesis-117m", "--notices-kept", "2"], "notices_kept"),
        (["--preset", "thesis-117m", "--margin", "30"], "margin_s: 30: leaves nothing of a grace"),
        (["--preset", "thesis-117m", "--emergency", "late"], "emergency: 'late': should be 'once'"),
        (["--preset", "thesis-117m", "--boot", "-1"], "boot_s: -1.0: seconds are 0 or more"),
    ],
)
def test_the_command_refuses_nonsense(arguments: list[str], message: str) -> None:
    done = runner.invoke(app, arguments)
    assert done.exit_code == 2
    assert message in done.stderr


def test_the_commands_help_has_an_example_and_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = runner.invoke(app, ["--help"])
    assert done.exit_code == 0, done.output
    assert "Example: spothop simulate" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_the_command_knows_what_later_features_would_bring() -> None:
    base = ["--preset", "thesis-1.3b", "--policy", "notice-aware", "--trials", "20", "--json"]
    ahead = ["--stream", "--boot-overlaps", "--emergency", "early+late", "--margin", "1"]
    image = ["--boot", "30", "--load", "10"]
    overheads = []
    for options in ([], ahead, [*ahead, *image]):
        done = runner.invoke(app, [*base, *options])
        assert done.exit_code == 0, done.output
        overheads.append(json.loads(done.stdout)[0]["overhead"])
        names = "boot_overlaps, stream" if options else ""
        assert (
            f"cannot do this yet, the figures say what it would bring: {names}" in done.stderr
        ) is (bool(options))
    assert overheads[0] > overheads[1] + 0.02 > overheads[2] + 0.03


def test_vms_that_live_shorter_than_a_restart_are_told_of() -> None:
    (note,) = run(
        make(
            {
                **PRESETS["thesis-117m"],
                "policies": ["thesis"],
                "trials": 1,
                "steps": 50,
                "mttp_s": 280,
            }
        )
    ).notes
    assert note.startswith("VMs live 4 min 40 s on average and 4 min 54 s pass from the request")


def test_a_long_simulation_tells_how_far_it_is() -> None:
    told: list[str] = []
    now = iter([0.0, 1.0, 4.9, 5.0, 9.0, 11.0])

    def tell(text: str, *, err: bool) -> None:
        assert err, "standard output is for the figures"
        told.append(text)

    seen = Patience(tell, lambda: next(now))
    for share in (0.1, 0.2, 0.3, 0.4):
        seen("thesis", share)
    seen.what = "the report: "
    seen("none", 0.5)
    assert told == [
        "thesis: 30 % of the steps simulated",
        "the report: none: 50 % of the steps simulated",
    ]
