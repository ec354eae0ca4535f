"""How a plan looks in a terminal: the code that would be packed, and the pools."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spothop.cli import views
from spothop.cli.text import table
from spothop.durations import duration
from spothop.figures import size
from spothop.sdk.codefiles import CodeFiles, LeftOut, Rule
from spothop.wire import PlanReply


def code(console: Console, name: str, found: CodeFiles, packed: str = "") -> None:
    """What of the code goes in, and what does not, by which rule."""
    files = _files(found.files)
    console.print(Text(f"{name}: {files} of code, {packed or size(found.bytes)}", overflow="fold"))
    for left in found.left_out:
        console.print(Text(_left_out(left), overflow="fold"))
    if any(left.rule is Rule.GITIGNORE for left in found.left_out):
        console.print("  `code: {include: [PATTERN, ...]}` in the job file packs some of them")


def _left_out(left: LeftOut) -> str:
    count = f"{'' if left.all_counted else 'more than '}{_files(left.files)}, {size(left.bytes)}"
    if left.rule is Rule.ALWAYS:
        return f"always left out ({', '.join(left.names)}): {count}"
    return f"left out by {left.rule.value}: {count}, largest {left.largest}"


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def code_json(found: CodeFiles) -> dict[str, object]:

    return {
        "files": found.files,
        "bytes": found.bytes,
        "left_out": [
            {
                "rule": each.rule.value,
                "files": each.files,
                "bytes": each.bytes,
                "largest": each.largest,
                "all_counted": each.all_counted,
            }
            for each in found.left_out
        ],
    }


def pools(console: Console, plan: PlanReply) -> None:
    """Where a job would run, first choice first."""
    console.print(_table(plan))
    if any(row.lives == 0 for row in plan.pools):
        console.print("* assumed: no VM of this pool has been preempted yet")
    views.old_offers(console, plan.pools)
    console.print(Text(f"checkpoints go to {plan.storage}", overflow="fold"))


def _table(plan: PlanReply) -> Table:
    rows = [
        (
            str(i),
            views.place(row.pool),
            f"{row.spot_price if row.pool.spot else row.on_demand_price:.4g}",
            f"{row.on_demand_price:.4g}",
            duration(row.grace_s),
            duration(row.mttp_s) + ("" if row.lives else "*"),
            duration(row.restart_s),
        )
        for i, row in enumerate(plan.pools, 1)
    ]
    columns = ("", "POOL", "USD/H", "ON DEMAND", "NOTICE", "MTTP", "RESTART")
    return table(columns, rows, right=columns[2:])
