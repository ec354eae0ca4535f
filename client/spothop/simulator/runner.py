"""Runs the policies of one input side by side on the same lives."""

from __future__ import annotations

from collections.abc import Iterator

from spothop.simulator.engine import NeverFinishesError, on_demand, simulate
from spothop.simulator.inputs import Arm, InputError, Inputs
from spothop.simulator.lives import Lives, Zones, make_lives
from spothop.simulator.result import Result, summarise


def run(inputs: Inputs) -> Result:
    """Every policy of `inputs` in its order; a note for one under which the job makes no progress.

    Raises InputError when the lives cannot be read, or no policy gets the job done.
    """
    lives = make_lives(inputs.lives)
    baseline = on_demand(inputs)
    outcomes, left_out = [], []
    for name in inputs.policies:
        try:
            trials = simulate(inputs, Arm.of(name), lives)
        except NeverFinishesError as error:
            left_out.append(str(error))
            continue
        outcomes.append(summarise(name, trials, baseline, inputs))
    if not outcomes:
        raise InputError("\n".join(left_out))
    notes = (*_prices(inputs, lives), *(f"left out: {policy}" for policy in left_out))
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
