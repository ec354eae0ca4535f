"""What every benchmark shares: quantiles, the table on the screen, and the JSON beside it."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


def quantile(values: Sequence[float], q: float) -> float:
    """The nearest-rank quantile; `q` in [0, 1]. Raises ValueError on no values."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def progress(text: str) -> None:
    """What is done now, with the time of day, for whoever waits."""
    print(f"  {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def publish(name: str, title: str, rows: Sequence[dict[str, Any]], **facts: Any) -> None:
    """Print `rows` as a table and write them with `facts` to results/<name>.json."""
    print(title)
    columns = list(rows[0])
    shown = [[_text(row[column]) for column in columns] for row in rows]
    widths = [max(len(c), *(len(r[i]) for r in shown)) for i, c in enumerate(columns)]
    print("  " + "  ".join(c.ljust(w) for c, w in zip(columns, widths, strict=True)))
    for row in shown:
        print("  " + "  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)))
    RESULTS.mkdir(exist_ok=True)
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    document = {"benchmark": name, "machine": machine, **facts, "rows": list(rows)}
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
