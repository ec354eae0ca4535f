"""What `import spothop` costs a training script: time, and modules.

Bare interpreters and importing ones take turns, so that each pair sees the same machine; a process
is timed from outside, from its start to its end. Target: the median of the differences under 15 ms,
and nothing outside the standard library in `sys.modules`.
Run: python benchmarks/import_time.py [--pairs 60]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import spothop
from common import publish, quantile

TARGET_MS = 15.0
MODULES = (
    "import sys; before = set(sys.modules); import spothop; print(*(set(sys.modules) - before))"
)


def interpreter(code: str) -> list[str]:
    """With the client package first on its path, as the agent starts a training process."""
    client = str(Path(spothop.__file__).parent.parent)
    return [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {client!r}); {code}"]


def took_ms(code: str) -> float:
    began = time.perf_counter()
    subprocess.run(interpreter(code), check=True)
    return (time.perf_counter() - began) * 1000


def foreign_modules() -> list[str]:
    """What the import pulls in that is neither ours nor the standard library's."""
    answer = subprocess.run(interpreter(MODULES), check=True, capture_output=True, text=True)
    tops = {name.partition(".")[0] for name in answer.stdout.split()}
    return sorted(tops - {"spothop"} - sys.stdlib_module_names)


def measure(pairs: int) -> list[dict[str, Any]]:
    took_ms("import spothop")  # compiles what is not compiled yet
    bare, with_it = [], []
    for _ in range(pairs):
        bare.append(took_ms("pass"))
        with_it.append(took_ms("import spothop"))
    added = [after - before for before, after in zip(bare, with_it, strict=True)]
    series = {"bare interpreter": bare, "import spothop": with_it, "difference": added}
    return [
        {"what": name, "median ms": quantile(values, 0.5), "p90 ms": quantile(values, 0.9)}
        for name, values in series.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="What `import spothop` costs")
    parser.add_argument("--pairs", type=int, default=60, help="pairs of interpreters")
    pairs = parser.parse_args().pairs
    rows, foreign = measure(pairs), foreign_modules()
    cost = rows[-1]["median ms"]
    missed = [f"import takes {cost:.1f} ms"] if cost >= TARGET_MS else []
    missed += [f"not of the standard library: {', '.join(foreign)}"] if foreign else []
    publish(
        "import_time",
        f"import spothop, {pairs} pairs (target: {TARGET_MS:g} ms more, standard library only)",
        rows,
        pairs=pairs,
        foreign_modules=foreign,
        target={"ms": TARGET_MS, "met": not missed},
    )
    print("  targets met" if not missed else f"  targets MISSED: {'; '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
