"""`spothop doctor`: what the master's cloud accounts lack, one line each with its hint."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from spothop.cli.text import print_text
from spothop.wire import CheckView, Verdict

_MARKS = {Verdict.OK: "ok", Verdict.LOOK: "look", Verdict.FAILED: "FAILED"}
_WIDTH = max(map(len, _MARKS.values())) + 2


def show(console: Console, checks: Sequence[CheckView]) -> None:
    for check in checks:
        mark = f"{_MARKS[check.verdict]:<{_WIDTH}}"
        text = f"{check.cloud}: {check.subject}: {check.fact}"
        print_text(console, text, first=mark, indent=" " * _WIDTH)
        if check.hint:
            gap = " " * _WIDTH
            print_text(console, f"hint: {check.hint}", first=gap, indent=f"{gap}  ")
    failed = sum(check.verdict is Verdict.FAILED for check in checks)
    print_text(console, f"{failed} of {len(checks)} checks failed" if failed else "nothing failed")
