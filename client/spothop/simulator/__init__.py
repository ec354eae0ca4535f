"""The training simulator: what a job would take and cost on spot VMs, policy by policy.

    from spothop.simulator import make, run, PRESETS
    result = run(make({**PRESETS["thesis-117m"], "notices_kept": 0.95}))

Needs the `simulator` extra (numpy, scipy, plotly). The decisions are those of `spothop.policy`:
what is simulated is what runs.
"""

from __future__ import annotations

from spothop.simulator.inputs import InputError, Inputs, load, make
from spothop.simulator.presets import PRESETS
from spothop.simulator.result import Outcome, Result, Row
from spothop.simulator.runner import run

__all__ = ["PRESETS", "InputError", "Inputs", "Outcome", "Result", "Row", "load", "make", "run"]
