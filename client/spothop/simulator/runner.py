"""Runs the policies of one input side by side on the same lives."""

from __future__ import annotations

from collections.abc import Iterator

from spothop.durations import duration
from spothop.simulator.engine import NeverFinishesError, Seen, on_demand, simulate
from spothop.simulator.inputs import Arm, InputError, Inputs
from spothop.simulator.lives import Lives, Zones, make_lives
from spothop.simulator.result import Result, summarise


def run(inputs: Inputs, *, seen: Seen | None = None) -> Result:
    """Every policy of `inputs` in its order; a note for one under which the job makes no progress.

    `seen` is told how far it is, for a caller who shows that to somebody.
    Raises InputError when the lives cannot be read, or no policy gets the job done.
    """
    lives = make_lives(inputs.lives)
    baseline = on_demand(inputs)
    outcomes, left_out = [], []
    for name in inputs.policies:
        try:
            trials = simulate(inputs, Arm.of(name), lives, seen=seen)
        except NeverFinishesError as error:
            left_out.append(str(error))
            continue
        outcomes.append(summarise(name, trials, baseline, inputs))
    if not outcomes:
        raise InputError("\n".join(left_out))
    notes = (
        *_prices(inputs, lives),
        *_short_lives(inputs, lives),
        *_ahead(inputs),
        *(f"left out: {policy}" for policy in left_out),
    )
    return Result(inputs=inputs, outcomes=tuple(outcomes), notes=notes)


def _prices(inputs: Inputs, lives: Lives) -> Iterator[str]:
    """Whose prices the saving compares."""
    if not isinstance(lives, Zones) or lives.price is None:
        return
    if inputs.on_demand_price is None:
        yield (
            f"saving: the trace's spot prices stand against the on-demand price of {inputs.vm}, "
            f"{inputs.prices[1]:g} USD an hour. It says nothing where the trace is of another VM "
            "type: give that type's price with --on-demand-price, or on_demand_price in the file"
        )
    if inputs.spot_price is not None:
        yield f"spot_price {inputs.spot_price:g} is not used: the trace has spot prices of its own"


def _short_lives(inputs: Inputs, lives: Lives) -> Iterator[str]:
    """Most VMs train nothing."""
    mean_s = lives.mean_s(0)
    if lives.zones == 1 and mean_s < inputs.restart_s:
        yield (
            f"VMs live {duration(mean_s)} on average and {duration(inputs.restart_s)} pass from "
            "the request for one until it trains: most of them train little or nothing. Look for "
            "a pool whose VMs live longer, or shorten the start (an image with everything in it)"
        )


def _ahead(inputs: Inputs) -> Iterator[str]:
    """Inputs that no job can have yet."""
    told = {
        "boot_overlaps": inputs.boot_overlaps,
        "stream": inputs.stream,
        "mid_step": inputs.mid_step,
    }
    names = [name for name, given in told.items() if given]
    if names:
        yield f"spothop cannot do this yet, the figures say what it would bring: {', '.join(names)}"
