"""How fast the simulator is: CPU time of one process for table 6.2's adaptive row.

Run: python benchmarks/simulator_speed.py
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from spothop.simulator import PRESETS, make, run

CASES: dict[str, dict[str, Any]] = {
    "100 trials": {"trials": 100},
    "10,000 trials": {"trials": 10_000},
    "100 trials, 10 x the steps, 10 x the MTTP": {
        "trials": 100,
        "steps": 1_000_000,
        "mttp_s": 108_000,
    },
    "100 trials, 1.3B": {"preset": "thesis-1.3b", "trials": 100},
    "10,000 trials, 1.3B": {"preset": "thesis-1.3b", "trials": 10_000},
}
REPEATS = 5


def measure(changes: dict[str, Any]) -> dict[str, float]:
    """The fastest of a few runs, in seconds, and the preemptions of one trial."""
    changes = dict(changes)
    preset = PRESETS[changes.pop("preset", "thesis-117m")]
    inputs = make({**preset, "policies": ["thesis"], **changes})
    best = float("inf")
    for _ in range(REPEATS if inputs.trials <= 100 else 1):
        begun = time.process_time()
        result = run(inputs)
        best = min(best, time.process_time() - begun)
    return {"cpu_s": best, "preemptions": result.outcomes[0].row.preemptions}


def main() -> int:
    """1 when a goal is missed: 1 s, 60 s, and no more time for more steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "simulator_speed.json"
    )
    options = parser.parse_args()
    measured = {name: measure(changes) for name, changes in CASES.items()}
    print(f"{'policy thesis':45} {'CPU s':>8} {'preemptions':>12}")
    for name, row in measured.items():
        print(f"{name:45} {row['cpu_s']:8.3f} {row['preemptions']:12.1f}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(measured, indent=2) + "\n")
    print(f"written to {options.out}")
    few, many = measured["100 trials"]["cpu_s"], measured["10,000 trials"]["cpu_s"]
    longer = measured["100 trials, 10 x the steps, 10 x the MTTP"]["cpu_s"]
    return int(few > 1 or many > 60 or longer > 2 * few)


if __name__ == "__main__":
    sys.exit(main())
