"""The demo's figures, computed from what the master recorded, and the promises they must keep."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.box import SIMPLE
from rich.table import Table

from plan import Kind, Plan, Preemption
from spothop.figures import saved
from spothop.wire import AttemptView, JobDetail, SaveKind

Row = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What `demo-report.json` holds."""

    preemptions: int
    noticed: int
    """Those whose notice was as long as promised."""
    steps_recomputed_noticed: int
    """Steps finished before such a notice that had to be computed again."""
    steps_recomputed_unnoticed: int
    """The same for the others, from the last step that the master knew of."""
    notice_to_commit_s: list[float]
    """From the notice at the metadata server to the checkpoint's chain entry."""
    kill_to_step_s: list[float]
    """From the kill to the first step on the next VM; negative: the next one was ahead. A VM that
    was released before its announced end (its replacement had taken over) counts from that end."""
    effective_training_time: float
    """Time inside steps that counted / wall time, a fraction."""
    saving: float
    """1 - cost of the preempted run on spot / cost of the uninterrupted run on demand."""
    weights_identical: bool
    steps: int
    wall_s: float
    uninterrupted_wall_s: float
    cost_usd: float
    on_demand_usd: float
    saves: dict[str, int]
    weights_sha256: list[str]
    processes_left: int = 0

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def compute(
    hopped: JobDetail,
    straight: JobDetail,
    preemptions: list[Preemption],
    released: set[str],
    weights: tuple[str, str],
) -> Report:
    """Every figure from the two jobs' records and the list of what the demo did to the first.

    `released`: VMs that were given back before the cloud took them.
    """
    attempts = {attempt.number: attempt for attempt in hopped.attempts}
    noticed = [p for p in preemptions if p.kind is Kind.NOTICE]
    others = [p for p in preemptions if p.kind is not Kind.NOTICE]
    return Report(
        preemptions=len(preemptions),
        noticed=len(noticed),
        steps_recomputed_noticed=sum(recomputed(p, attempts) for p in noticed),
        steps_recomputed_unnoticed=sum(recomputed(p, attempts) for p in others),
        notice_to_commit_s=[
            round(seconds, 3)
            for p in noticed
            if (seconds := notice_to_commit(p, hopped)) is not None
        ],
        kill_to_step_s=[
            round(seconds, 3)
            for p in preemptions
            if (seconds := kill_to_step(p, hopped, released)) is not None
        ],
        effective_training_time=round(hopped.useful_s / wall(hopped), 4),
        saving=round(1 - hopped.cost / straight.cost, 4) if straight.cost else 0.0,
        weights_identical=weights[0] == weights[1],
        steps=hopped.step or 0,
        wall_s=round(wall(hopped), 1),
        uninterrupted_wall_s=round(wall(straight), 1),
        cost_usd=round(hopped.cost, 6),
        on_demand_usd=round(straight.cost, 6),
        saves={kind.value: hopped.saves.get(kind, 0) for kind in SaveKind},
        weights_sha256=list(weights),
    )


def wall(job: JobDetail) -> float:
    assert job.ended_at is not None
    return (job.ended_at - job.submitted_at).total_seconds()


def recomputed(preemption: Preemption, attempts: dict[int, AttemptView]) -> int:
    """Steps known to be finished (before the notice, where there was one) and computed again; 0 as
    long as no other attempt has restored."""
    old = attempts[preemption.attempt]
    later = (a.restored_step for number, a in sorted(attempts.items()) if number > old.number)
    restored = next((step for step in later if step is not None), None)
    if restored is None:
        return 0
    finished = old.step_at_notice if preemption.kind is Kind.NOTICE else old.last_step
    return max(0, (finished or 0) - restored)


def notice_to_commit(preemption: Preemption, job: JobDetail) -> float | None:
    after = [
        c.committed_at.timestamp()
        for c in job.checkpoints
        if c.attempt == preemption.attempt and c.committed_at.timestamp() >= preemption.at
    ]
    return min(after) - preemption.at if after else None


def kill_to_step(preemption: Preemption, job: JobDetail, released: set[str]) -> float | None:
    vm = next(vm for vm in job.vms if vm.id == preemption.vm)
    later = (a.first_step_at for a in job.attempts if a.number > preemption.attempt)
    first_step_at = next((at for at in later if at is not None), None)
    if vm.ended_at is None or first_step_at is None:
        return None
    kill = preemption.deadline if vm.id in released else vm.ended_at.timestamp()
    return first_step_at.timestamp() - kill


def broken_promises(report: Report, hopped: JobDetail, plan: Plan) -> list[str]:
    """One line per promise that does not hold; empty when all do. `plan` after the run."""
    promises = [
        (not plan.left, f"planned, and did not happen: {', '.join(plan.left)}"),
        (
            report.steps_recomputed_noticed == 0,
            f"{report.steps_recomputed_noticed} steps finished before a notice were computed again",
        ),
        (
            len(report.notice_to_commit_s) == report.noticed,
            f"{len(report.notice_to_commit_s)} of {report.noticed} notices led to a checkpoint",
        ),
        (report.weights_identical, "the weights of the two runs differ"),
        (hopped.state == "succeeded", f"the preempted job is {hopped.state}, not succeeded"),
        (report.processes_left == 0, f"{report.processes_left} processes were left behind"),
    ]
    return [text for kept, text in promises if not kept]


def table(report: Report) -> Table:
    """The closing table, at most 80 columns wide."""
    straight_s, on_demand = report.uninterrupted_wall_s, report.on_demand_usd
    return grid(
        "What the preemptions cost",
        [
            *preempted(
                report.preemptions,
                report.noticed,
                report.steps_recomputed_noticed,
                report.steps_recomputed_unnoticed,
            ),
            ("steps trained", f"{report.steps}"),
            *saves(report.saves),
            ("from notice to commit, median (range)", spread(report.notice_to_commit_s)),
            ("from kill to next step (< 0: ahead of it)", spread(report.kill_to_step_s)),
            ("wall time (uninterrupted run)", f"{report.wall_s:.0f} s ({straight_s:.0f} s)"),
            ("effective training time (share of wall)", f"{report.effective_training_time:.1%}"),
            ("cost (uninterrupted, on demand)", f"${report.cost_usd:.4f} (${on_demand:.4f})"),
            ("cost against the run on demand", saved(report.cost_usd, on_demand)),
            ("weights identical, bit for bit", "yes" if report.weights_identical else "NO"),
            ("  SHA-256", report.weights_sha256[0][:16] + "..."),
        ],
    )


def partial_table(
    hopped: JobDetail, straight: JobDetail, preemptions: list[Preemption], *, steps: int
) -> Table:
    """What is known of runs of so many `steps` that did not come to their ends, and is kept."""
    attempts = {attempt.number: attempt for attempt in hopped.attempts}
    noticed = [p for p in preemptions if p.kind is Kind.NOTICE]
    others = [p for p in preemptions if p.kind is not Kind.NOTICE]
    kept, kept_straight = (
        f"step {max(c.step for c in job.checkpoints)}" if job.checkpoints else "none yet"
        for job in (hopped, straight)
    )
    return grid(
        "What was seen until then",
        [
            *preempted(
                len(preemptions),
                len(noticed),
                sum(recomputed(p, attempts) for p in noticed),
                sum(recomputed(p, attempts) for p in others),
            ),
            ("steps trained (uninterrupted run)", f"{hopped.step or 0} ({straight.step or 0})"),
            ("  of", f"{steps}"),
            ("newest checkpoint kept (uninterrupted)", f"{kept} ({kept_straight})"),
            *saves({kind.value: hopped.saves.get(kind, 0) for kind in SaveKind}),
            (
                "cost so far (uninterrupted, on demand)",
                f"${hopped.cost:.4f} (${straight.cost:.4f})",
            ),
            ("weights identical, bit for bit", "not compared"),
        ],
    )


def preempted(count: int, noticed: int, lost_noticed: int, lost_others: int) -> list[Row]:
    return [
        ("preemptions", f"{count}"),
        ("  with a notice long enough for a save", f"{noticed}"),
        ("    steps recomputed", f"{lost_noticed}"),
        ("  with too short a notice, or none", f"{count - noticed}"),
        ("    steps recomputed, as far as known", f"{lost_others}"),
    ]


def saves(counts: dict[str, int]) -> list[Row]:
    why = {
        SaveKind.PERIODIC: "the script's own schedule",
        SaveKind.INSURANCE: "asked for by spothop",
        SaveKind.EMERGENCY: "at a preemption notice",
    }
    return [(f"{kind.value} saves ({why[kind]})", str(counts[kind.value])) for kind in SaveKind]


def grid(title: str, rows: list[Row]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=SIMPLE)
    table.add_column(min_width=42)
    table.add_column(justify="right")
    for name, value in rows:
        table.add_row(name, value)
    return table


def spread(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"
