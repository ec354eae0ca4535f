"""`make bench`: runs every benchmark beside this file, one after the other, and says how it went.

    python benchmarks/run_all.py [NAME ...]     only those whose file name contains a NAME
    python benchmarks/run_all.py one-master     what one master carries, case by case: 12 minutes

Each prints its table and writes benchmarks/results/<name>.json.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PARTS: dict[str, list[list[str]]] = {
    "one-master": [
        ["master_load.py", "--agents", "1000", "--training", "--seconds", "60"],
        ["master_load.py", "--agents", "5000", "--every", "15", "--result", "master_load_5000"],
        ["master_load.py", "--agents", "500", "--quiet", "--result", "master_load_quiet"],
        ["master_load.py", "--grow", "--result", "master_load_grow"],
        ["queued_jobs.py"],
        ["retention_year.py", "--minutes", "3", "--rounds", "60", "--hurry"],
    ]
}
"""Cases that belong together, by the word that runs them; each script with its arguments."""

NOT_BENCHMARKS = {"run_all.py", "common.py", "live.py", "small_object_server.py"}


def main(wanted: list[str]) -> int:
    if wanted and wanted[0] in PARTS:
        runs = [(HERE / script, arguments) for script, *arguments in PARTS[wanted[0]]]
    else:
        runs = [
            (script, [])
            for script in sorted(HERE.glob("*.py"))
            if script.name not in NOT_BENCHMARKS
            and (not wanted or any(name in script.stem for name in wanted))
        ]
    if not runs:
        print(f"no benchmark matches {' '.join(wanted)}; hint: ls {HERE}")
        return 2
    failed = []
    for number, (script, arguments) in enumerate(runs, 1):
        what = " ".join([script.stem, *arguments])
        print(f"\n== {what} ({number} of {len(runs)})", flush=True)
        begun = time.monotonic()
        if subprocess.run([sys.executable, str(script), *arguments], check=False).returncode:
            failed.append(what)
        print(f"   ({time.monotonic() - begun:.0f} s)", flush=True)
    if failed:
        print(f"\nmissed or failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
