"""Runs the policies of one input side by side on the same lives."""

from __future__ import annotations

from spothop_master.simulator.engine import NeverFinishesError, on_demand, simulate
from spothop_master.simulator.inputs import Arm, InputError, Inputs
from spothop_master.simulator.lives import make_lives
from spothop_master.simulator.result import Result, summarise


def run(inputs: Inputs) -> Result:
    """Every policy of `inputs` in its order; one under which the job makes no way becomes a note.

    Raises InputError when the lives cannot be read, or no policy gets the job done.
    """
    lives = make_lives(inputs.lives)
    baseline = on_demand(inputs)
    outcomes, notes = [], []
    for name in inputs.policies:
        try:
            trials = simulate(inputs, Arm.of(name), lives)
        except NeverFinishesError as error:
            notes.append(str(error))
            continue
        outcomes.append(summarise(name, trials, baseline, inputs))
    if not outcomes:
        raise InputError("\n".join(notes))
    return Result(inputs=inputs, outcomes=tuple(outcomes), notes=tuple(notes))
