"""How a plan looks in a terminal: the code that would be packed, and the pools."""

from __future__ import annotations

from rich.console import Console

from spothop.cli import views
from spothop.cli.text import print_table, print_text
from spothop.durations import duration
from spothop.figures import size
from spothop.jobspec import JobSpec
from spothop.sdk.codefiles import CodeFiles, LeftOut, Rule, on_one_line
from spothop.wire import PlanReply, ReadPlan


def code(console: Console, name: str, found: CodeFiles, packed: str = "") -> None:
    """What of the code goes in, and what does not, by which rule."""
    files = _files(found.files)
    print_text(console, f"{name}: {files} of code, {packed or size(found.bytes)}")
    for left in found.left_out:
        print_text(console, _left_out(left))
    if any(left.rule is Rule.GITIGNORE for left in found.left_out):
        hint = "`code: {include: [PATTERN, ...]}` in the job file packs some of them"
        print_text(console, hint, first="  ", indent="  ")


def _left_out(left: LeftOut) -> str:
    count = f"{'' if left.all_counted else 'more than '}{_files(left.files)}, {size(left.bytes)}"
    if left.rule is Rule.ALWAYS:
        return f"always left out ({', '.join(left.names)}): {count}"
    return f"left out by {left.rule.value}: {count}, largest {on_one_line(left.largest)}"


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


def limits(console: Console, spec: JobSpec) -> None:
    """When it ends by itself, and what of it is kept for its next VMs."""
    if spec.setup_cache is not None:
        names, most = ", ".join(spec.setup_cache.folders), size(spec.setup_cache.max)
        text = f"setup runs on its first VM; the next ones unpack {names}, up to {most}"
        print_text(console, f"{text} (setup_cache)")
    if spec.max_duration is not None:
        told = duration(spec.max_duration.total_seconds())
        print_text(console, f"it may take {told} (max_duration); then it saves and fails")
    if spec.master_away is not None:
        told = duration(spec.master_away.total_seconds())
        print_text(
            console, f"its VMs save and end themselves {told} after their master's last word"
        )


def pools(console: Console, plan: PlanReply) -> None:
    """Where a job would run, first choice first."""
    print_text(console, "it would run in the first of these that has a VM:")
    _table(console, plan)
    if any(row.mttp_assumed for row in plan.pools):
        print_text(console, f"* assumed: {views.ASSUMED}", indent="  ")
    views.left_alone(console, plan.pools)
    views.old_offers(console, plan.pools)
    storages(console, plan)


def storages(console: Console, plan: PlanReply) -> None:
    """Where checkpoints go, and what it costs to read them from elsewhere."""
    others = [store.url for store in plan.stores[1:]]
    if others:
        urls = ", ".join([f"{plan.storage} (the chain)", *others])
        print_text(console, f"checkpoints go to the nearest of {urls}")
    else:
        print_text(console, f"checkpoints go to {plan.storage}")
    for store in plan.stores:
        costs: dict[str, list[str]] = {}
        for read in store.reads:
            if read.usd_per_gb != 0:
                costs.setdefault(_cost(read), []).append(f"{read.cloud}/{read.region}")
        for cost, places in costs.items():
            more = f" and {len(places) - 3} more" if len(places) > 3 else ""
            told = f"a restore in {', '.join(places[:3])}{more} from {store.url}: {cost}"
            print_text(console, told, first="  ", indent="    ")
        for hindrance in dict.fromkeys(read.hindrance for read in store.reads if read.hindrance):
            print_text(console, f"{store.url}: {hindrance}", first="  ", indent="    ")


def _cost(read: ReadPlan) -> str:
    if read.usd_per_gb is None:
        return f"egress unknown ({read.why})"
    return f"{read.usd_per_gb:.3g} USD a GB ({read.why})"


def _table(console: Console, plan: PlanReply) -> None:
    rows = [
        (
            views.place(row.pool),
            f"{row.spot_price if row.pool.spot else row.on_demand_price:.4g}",
            f"{row.on_demand_price:.4g}",
            duration(row.grace_s),
            duration(row.mttp_s) + "*" * row.mttp_assumed,
            duration(row.restart_s),
        )
        for row in plan.pools
    ]
    columns = ("POOL", "USD/H", "ON DEMAND", "NOTICE", "MTTP", "RESTART")
    print_table(console, columns, rows, right=columns[1:])
