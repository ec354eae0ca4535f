"""`spothop simulate`: the simulator on the command line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from spothop.durations import parse_seconds
from spothop.simulator.inputs import InputError, load, make
from spothop.simulator.presets import PRESETS
from spothop.simulator.result import Result
from spothop.simulator.runner import run
from spothop.simulator.show import screen

app = typer.Typer(add_completion=False, rich_markup_mode=None)


FileArgument = Annotated[Path | None, typer.Argument(metavar="FILE", help="The inputs, as YAML.")]
PresetOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help=f"Inputs that come with spothop: {' or '.join(PRESETS)}."),
]
PolicyOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A policy: thesis, notice-aware, static-50, none, on-demand; may be repeated.",
    ),
]
MttpOption = Annotated[
    str | None,
    typer.Option(metavar="TIMES", help="Mean lives, such as 600,20m; the last repeats."),
]
TraceOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Measured lives: a .csv of lives, or a .json of zones."),
]
SpotPriceOption = Annotated[float | None, typer.Option(metavar="USD", help="An hour of a spot VM.")]
OnDemandPriceOption = Annotated[
    float | None,
    typer.Option(
        metavar="USD",
        help="An hour of an on-demand VM; with a trace, of the VM type in it.",
    ),
]
NoticesKeptOption = Annotated[
    float | None,
    typer.Option(metavar="P", help="Share of notices that are kept, 0 to 1; default: 0.95."),
]
ReplacementOption = Annotated[
    str | None,
    typer.Option(metavar="WHEN", help="When the next VM is asked for: notice or kill."),
]
BootOption = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Until a VM could load a checkpoint.")
]
LoadOption = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="To load it and begin, after the last save."),
]
BootOverlapsOption = Annotated[
    bool | None, typer.Option("--boot-overlaps", help="A VM boots while it is allocated.")
]
StreamOption = Annotated[
    bool | None, typer.Option("--stream", help="Saves are uploaded while they are written.")
]
EmergencyOption = Annotated[
    str | None,
    typer.Option(
        metavar="WHEN",
        help="Saves after a notice: once, or early+late, which is what spothop does.",
    ),
]
MarginOption = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Kept free before the kill.")
]
TrialsOption = Annotated[
    int | None, typer.Option(metavar="N", help="Runs of each policy; default: 100.")
]
SeedOption = Annotated[
    int | None, typer.Option(metavar="N", help="The same number gives the same figures.")
]
AsJsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ReportOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a report there, as HTML.")
]


@app.command()
def simulate(
    file: FileArgument = None,
    preset: PresetOption = None,
    policy: PolicyOption = None,
    mttp: MttpOption = None,
    trace: TraceOption = None,
    spot_price: SpotPriceOption = None,
    on_demand_price: OnDemandPriceOption = None,
    notices_kept: NoticesKeptOption = None,
    replacement: ReplacementOption = None,
    boot: BootOption = None,
    load: LoadOption = None,
    boot_overlaps: BootOverlapsOption = None,
    stream: StreamOption = None,
    emergency: EmergencyOption = None,
    margin: MarginOption = None,
    trials: TrialsOption = None,
    seed: SeedOption = None,
    as_json: AsJsonOption = False,
    report: ReportOption = None,
) -> None:
    """Show what a job would take and cost on spot VMs under each policy.

    docs/checkpointing.md has a file to begin with.

    Example: spothop simulate --preset thesis-117m --report out.html

    Example: spothop simulate inputs.yaml --policy static-51 --json
    """
    given = {
        "policies": policy or None,
        "spot_price": spot_price,
        "on_demand_price": on_demand_price,
        "notices_kept": notices_kept,
        "replacement": replacement,
        "boot_s": boot,
        "load_s": load,
        "boot_overlaps": boot_overlaps,
        "stream": stream,
        "emergency": emergency,
        "margin_s": margin,
        "trials": trials,
        "seed": seed,
    }
    try:
        data = _base(file, preset)
        data.update({key: value for key, value in given.items() if value is not None})
        _lives(data, mttp, trace)
        seen = Patience(typer.echo, time.monotonic)
        result = run(make(data), seen=seen)
    except InputError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    _show(result, as_json)
    if report is not None:
        seen.what = "the report: "
        _write(report, result, seen)


class Patience:
    """Tells how far a long simulation is, on standard error: a line at most every few seconds."""

    EVERY_S = 5.0

    def __init__(self, tell: Callable[..., None], clock: Callable[[], float]) -> None:
        self.what = ""
        self._tell, self._clock = tell, clock
        self._told_at = clock()

    def __call__(self, policy: str, share: float) -> None:
        now = self._clock()
        if now - self._told_at < self.EVERY_S:
            return
        self._told_at = now
        self._tell(f"{self.what}{policy}: {100 * share:.0f} % of the steps simulated", err=True)


def _base(file: Path | None, preset: str | None) -> dict[str, Any]:
    if (file is None) == (preset is None):
        raise InputError(f"give a YAML file or --preset {' | '.join(PRESETS)}, one of the two")
    if file is not None:
        return load(file)
    if preset not in PRESETS:
        raise InputError(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
    return dict(PRESETS[preset])


def _lives(data: dict[str, Any], mttp: str | None, trace: Path | None) -> None:
    if mttp is None and trace is None:
        return
    if mttp is not None and trace is not None:
        raise InputError("give --mttp or --trace, not both")
    data.pop("mttp_s", None)
    data.pop("lives", None)
    if trace is not None:
        kind = "zones" if trace.suffix.lower() == ".json" else "csv"
        data["lives"] = {"kind": kind, "path": str(trace)}
        return
    try:
        data["mttp_s"] = parse_seconds(str(mttp))
    except ValueError as error:
        raise InputError(f"--mttp: {error}") from None


def _show(result: Result, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(result.rows, indent=2, allow_nan=False))
        for note in result.notes:
            typer.echo(note, err=True)
        return
    Console().print(screen(result))


def _write(report: Path, result: Result, seen: Patience) -> None:
    from spothop.simulator.report import page  # plotly takes a second to import

    try:
        report.write_text(page(result, seen=seen), encoding="utf-8")
    except OSError as error:
        typer.echo(f"error: {report}: {error.strerror}", err=True)
        raise typer.Exit(2) from error
    typer.echo(f"report written to {report}", err=True)
