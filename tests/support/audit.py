"""`make audit`: asks pip-audit for known faults of everything in requirements/*.txt.

pip-audit exits with 0 where its source knows none of the packages, or is not there at all. An audit
that did not take place is no success, so this tells the difference.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

REQUIREMENTS = Path(__file__).parents[2] / "requirements"

OPTIONS = ["--require-hashes", "--disable-pip", "--format", "json", "--progress-spinner", "off"]

CLEAN, FAULTY, NOT_AUDITED = 0, 1, 2


def judge(report: dict[str, Any] | None, why_not: str = "") -> tuple[int, list[str]]:
    """Exit code and what to print. `report`: pip-audit's own; None where it made none."""
    if report is None:
        return NOT_AUDITED, [f"not audited: pip-audit says: {why_not}"]
    asked = report["dependencies"]
    skipped = [package["name"] for package in asked if "skip_reason" in package]
    faults = [
        f"{package['name']} {package['version']}: {fault['id']}, "
        + (f"mended in {', '.join(fault['fix_versions'])}" if fault["fix_versions"] else "no mend")
        for package in asked
        for fault in package.get("vulns", [])
    ]
    if asked and len(skipped) == len(asked):
        return NOT_AUDITED, ["not audited: pip-audit's source is not reachable from here"]
    lines = [*faults, f"{len(asked) - len(skipped)} packages audited, {len(faults)} known faults"]
    if skipped:
        lines.append(f"not audited: {', '.join(skipped)}")
    return FAULTY if faults else NOT_AUDITED if skipped else CLEAN, lines


def audit(file: Path) -> tuple[int, list[str]]:
    told = subprocess.run(
        [sys.executable, "-m", "pip_audit", "--requirement", file, *OPTIONS],
        capture_output=True,
        text=True,
    )
    try:
        report = json.loads(told.stdout)
    except ValueError:
        return judge(None, told.stderr.strip().splitlines()[-1] if told.stderr.strip() else "-")
    return judge(report)


if __name__ == "__main__":
    worst = CLEAN
    for file in sorted(REQUIREMENTS.glob("*.txt")):
        code, lines = audit(file)
        worst = max(worst, code, key=(CLEAN, NOT_AUDITED, FAULTY).index)
        sys.stdout.write("".join(f"{file.name}: {line}\n" for line in lines))
    sys.exit(worst)
