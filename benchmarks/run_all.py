"""`make bench`: runs every benchmark beside this file, one after the other, and says how it went.

    python benchmarks/run_all.py [NAME ...]     only those whose file name contains a NAME

Each prints its table and writes benchmarks/results/<name>.json.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
NOT_BENCHMARKS = {"run_all.py", "common.py", "live.py", "small_object_server.py"}


def main(wanted: list[str]) -> int:
    scripts = [
        script
        for script in sorted(HERE.glob("*.py"))
        if script.name not in NOT_BENCHMARKS
        and (not wanted or any(name in script.stem for name in wanted))
    ]
    if not scripts:
        print(f"no benchmark matches {' '.join(wanted)}; hint: ls {HERE}")
        return 2
    failed = []
    for script in scripts:
        print(f"\n== {script.stem}", flush=True)
        begun = time.monotonic()
        if subprocess.run([sys.executable, str(script)], check=False).returncode:
            failed.append(script.stem)
        print(f"   ({time.monotonic() - begun:.0f} s)", flush=True)
    if failed:
        print(f"\nmissed or failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
