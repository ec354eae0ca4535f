"""How jobs, VMs and pools look in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from rich.console import Console
from rich.text import Text

from spothop.cli.inject import words as injection_words
from spothop.cli.notes import missing, notes
from spothop.cli.text import age, print_facts, print_table, print_text
from spothop.durations import NOTHING, duration
from spothop.figures import (
    AT_LEAST,
    ON_DEMAND,
    alarm_words,
    exits_text,
    lost_is_least,
    money,
    number,
    saved,
    shown_state,
    size,
    state_text,
)
from spothop.wire import (
    AttemptView,
    DiskView,
    EventView,
    JobDetail,
    JobPage,
    JobView,
    Pool,
    PoolPlan,
    PoolView,
    QuotaView,
    TokenView,
    Used,
    UserView,
    VmPage,
    VmView,
    Wanted,
)

CHECKPOINTS_SHOWN = 5
REFUSALS_SHOWN = 10

ASSUMED = "too little was seen, or too long ago; the stated default speaks"

OLD_OFFER_S = 300.0
"""From this age on, the master's newest answer of a cloud is shown with its age."""


def place(pool: Pool | None) -> str:
    """The one spelling of a pool, `aws/us-east-1a/p3.2xlarge/spot`; as in the master's settings."""
    return str(pool) if pool is not None else NOTHING


def status(console: Console, me: Mapping[str, str], disk: DiskView) -> None:
    total = disk.database + disk.logs + disk.bundles
    free = f" ({size(disk.database_free)} of it free)" if disk.database_free else ""
    facts = [
        ("you", f"{me['name']} ({me['role']})"),
        ("disk", f"{size(total)} in all"),
        ("database", f"{size(disk.database)}{free}"),
        ("logs", size(disk.logs)),
        ("bundles", size(disk.bundles)),
    ]
    facts += [("largest log", f"{each.job} {size(each.log_bytes)}") for each in disk.largest]
    print_facts(console, facts)


def pools(console: Console, list_: Sequence[PoolView]) -> None:
    if not list_:
        console.print("no cloud offers a pool now")
        return
    rows = [
        (
            place(row.pool),
            f"{row.price:.3g}",
            duration(row.mttp_s) + ("*" if row.mttp_assumed else ""),
            _dense(f"{duration(row.mttp_low_s)}-{duration(row.mttp_high_s)}"),
            f"{row.lives}+{row.censored}",
            _restart(row),
            f"{row.notices_kept}/{row.notices}",
            f"{row.notice_share:.0%}" + "*" * _q_assumed(row),
        )
        for row in list_
    ]
    columns = ("POOL", "USD/H", "MTTP", "90 %", "LIVES", "RESTART", "KEPT", "Q")
    print_table(console, columns, rows, right=columns[1:])
    print_text(
        console,
        "MTTP and its 90 % interval: other zones and old lives count, too, but less.\n"
        "LIVES: preempted + ended otherwise, in this zone. RESTART: allocation + preparation.\n"
        "KEPT: notices after which the emergency save became durable. "
        "Q: the share of preemptions for which that is expected, unannounced ones included.",
    )
    if any(row.mttp_assumed or row.restart_assumed or _q_assumed(row) for row in list_):
        print_text(console, f"* assumed: {ASSUMED}")
    left_alone(console, list_)
    old_offers(console, list_)


def left_alone(console: Console, rows: Sequence[PoolPlan] | Sequence[PoolView]) -> None:
    """One line for each zone, region or account that refused lately."""
    for told in sorted({row.closed for row in rows if row.closed}):
        print_text(console, f"left alone: {told}")


def old_offers(console: Console, rows: Sequence[PoolPlan] | Sequence[PoolView]) -> None:
    """One line for each cloud that has not answered lately."""
    ages = {row.pool.cloud: row.offer_age_s for row in rows}
    for cloud, age_s in sorted(ages.items()):
        if age_s >= OLD_OFFER_S:
            print_text(console, f"{cloud} answered last {duration(age_s)} ago: prices may differ")


def _q_assumed(row: PoolView) -> bool:
    return not row.notices and not row.unannounced


def _restart(row: PoolView) -> str:
    """Both parts where both were seen."""
    if row.restart_assumed or row.allocation_s is None or row.preparation_s is None:
        return duration(row.restart_s) + "*" * row.restart_assumed
    return _dense(f"{duration(row.allocation_s)}+{duration(row.preparation_s)}")


def _dense(text: str) -> str:
    return text.replace(" ", "")


def jobs(console: Console, list_: Sequence[JobView], *, now: datetime) -> None:
    if not list_:
        print_text(
            console, "no jobs; `spothop submit FILE` starts one, `spothop jobs --all` shows old"
        )
        return
    rows = [
        (
            job.id,
            state_text(job),
            number(job.step),
            place(job.pool),
            f"{job.preemptions}x",
            money(job.cost),
            age(job.submitted_at, now=now),
        )
        for job in list_
    ]
    columns = ("JOB", "STATE", "STEP", "POOL", "PREEMPTED", "COST", "AGE")
    print_table(console, columns, rows, right=("STEP", *columns[4:]), under=("POOL",))
    for note in notes(list_):
        print_text(console, note, indent="    ")


def more_jobs(page: JobPage, *, limit: int) -> str:
    """What follows this page; empty for the last one."""
    if page.next is None:
        return ""
    return (
        f"{number(len(page.jobs))} of {number(page.total)} jobs; `--all` shows every one, "
        f"`--next {page.next}` the next {number(limit)}"
    )


def more_vms(page: VmPage, *, limit: int) -> str:
    if page.next is None:
        return ""
    return (
        f"{number(len(page.vms))} VMs, and there are more; `--all` shows every one, "
        f"`--next {page.next}` the next {number(limit)}"
    )


def vms(console: Console, list_: Sequence[VmView], *, now: datetime, of_jobs: bool = False) -> None:
    """`of_jobs`: of several jobs, so that each has its own beside it."""
    if not list_:
        console.print("no VMs, or none that are asked for")
        return
    rows = [
        (
            vm.id,
            *([vm.job or NOTHING] if of_jobs else []),
            place(vm.pool),
            vm.state + (f": {vm.reason}" if vm.reason else ""),
            str(vm.attempt),
            duration(_billed_s(vm, now)),
            f"{vm.price:.4g}",
            money(vm.cost),
        )
        for vm in list_
    ]
    right = ("ATTEMPT", "RAN", "USD/H", "COST")
    jobs = ["JOB"] if of_jobs else []
    columns = ("VM", *jobs, "POOL", "STATE", *right)
    print_table(console, columns, rows, right=right, under=("POOL", *jobs))
    for vm in list_:
        if vm.hint:
            print_text(console, f"{vm.id}: {vm.hint}")


def cost(job: JobView) -> str:
    """What a job costs, and how it compares with on demand."""
    less = saved(job.cost, job.on_demand_cost, ended=job.ended_at is not None)
    if job.on_demand_cost is None or not less:
        return money(job.cost)
    return f"{money(job.cost)}, {less} than {money(job.on_demand_cost)}: {ON_DEMAND}"


def _state_and_reason(job: JobDetail) -> str:
    """A reason that begins with the state says both."""
    state = state_text(job)
    if job.reason.startswith(f"{state} "):
        return job.reason
    return f"{state}: {job.reason}" if job.reason else state


def lost(job: JobDetail) -> str:
    """Steps that were computed again, and what they took."""
    least = lost_is_least(job.attempts)
    if not job.recomputed_steps:
        return f"no steps, as far as known: {AT_LEAST}" if least else "no steps"
    steps = "1 step" if job.recomputed_steps == 1 else f"{number(job.recomputed_steps)} steps"
    text = f"{steps}, {duration(job.lost_s)}, {money(job.lost_cost)}"
    return f"at least {text}: {AT_LEAST}" if least else text


def _billed_s(vm: VmView, now: datetime) -> float | None:
    if vm.running_at is None:
        return None
    return max(((vm.ended_at or now) - vm.running_at).total_seconds(), 0.0)


def job(console: Console, job: JobDetail, *, now: datetime) -> None:
    """Everything about one job."""
    console.print(Text(job.id, style="bold"))
    print_facts(console, _fact_rows(job, now))
    for lacking in missing(job.unprotected) if job.unprotected else ():
        print_text(console, lacking)
    if job.attempts:
        console.print("\nattempts", style="bold")
        _attempts(console, job)
    if job.vms:
        console.print("\nVMs", style="bold")
        vms(console, job.vms, now=now)
    if job.refusals:
        console.print("\nrefused", style="bold")
        _refusals(console, job, now=now)
    if job.checkpoints:
        newest = sorted(job.checkpoints, key=lambda point: -point.n)[:CHECKPOINTS_SHOWN]
        console.print(
            f"\ncheckpoints (newest {len(newest)} of {len(job.checkpoints)})", style="bold"
        )
        rows = [
            (
                str(point.n),
                number(point.step),
                point.kind.value,
                str(point.attempt),
                size(point.bytes),
                duration(point.delta_s or None),
                duration(point.beta_s),
                age(point.committed_at, now=now),
            )
            for point in newest
        ]
        columns = ("N", "STEP", "KIND", "ATTEMPT", "SIZE", "SAVE", "BACKUP", "AGE")
        print_table(console, columns, rows, right=[c for c in columns if c != "KIND"])
    if job.log_tail.strip():
        console.print("\nlog (last lines)", style="bold")
        for line in job.log_tail.rstrip("\n").splitlines():
            print_text(console, log_line(line))


def _refusals(console: Console, job: JobDetail, *, now: datetime) -> None:
    rows = [
        (
            place(row.pool),
            number(row.count),
            age(row.last_at, now=now),
            _in(row.until, now) if job.ended_at is None else NOTHING,
            f"{row.error} ({row.code})" if row.code else row.error,
        )
        for row in job.refusals[:REFUSALS_SHOWN]
    ]
    columns = ("POOL", "TIMES", "AGE", "ASKED IN", "ANSWER")
    print_table(console, columns, rows, right=columns[1:4], under=("POOL", "ANSWER"))
    if job.refusals[0].detail:
        print_text(console, f"last answer: {job.refusals[0].detail}")
    if len(job.refusals) > REFUSALS_SHOWN:
        print_text(console, f"the newest {REFUSALS_SHOWN} of {len(job.refusals)} pools")


def _in(moment: datetime | None, now: datetime) -> str:
    """How long until then."""
    left_s = (moment - now).total_seconds() if moment is not None else 0.0
    return duration(left_s) if left_s > 0 else NOTHING


def _fact_rows(job: JobDetail, now: datetime) -> list[tuple[str, str]]:
    figures = ", ".join(f"{name} {value:.4g}" for name, value in sorted(job.metrics.items()))
    rows = [
        ("name", f"{job.name} (owner {job.owner})"),
        ("state", _state_and_reason(job)),
        ("step", number(job.step) + (f" ({figures})" if figures else "")),
        ("pool", place(job.pool) + (f" (VM {job.vm})" if job.vm else "")),
        ("attempt", f"{job.attempt}, preempted {job.preemptions}x"),
        ("saves", ", ".join(f"{n} {kind.value}" for kind, n in job.saves.items()) or "none yet"),
        ("useful", f"{duration(job.useful_s)} in steps that count"),
        ("lost", lost(job)),
        ("cost", cost(job)),
        ("storage", ", ".join(each.url for each in (job.storage, *job.other_storages))),
        ("logs", f"{size(job.log_bytes)} kept"),
        ("submitted", f"{age(job.submitted_at, now=now)} ago"),
    ]
    for alarm in reversed(job.alarms):
        since = f"since {age(alarm.since, now=now)}"
        rows.insert(2, ("alarm", f"{alarm_words(alarm.kind)} ({since}): {alarm.reason}"))
    if job.unprotected is not None:
        rows.insert(2, ("unprotected", job.unprotected.reason))
    if job.wanted is Wanted.CANCELLED and job.ended_at is None:
        rows.insert(2, ("wanted", "cancelled"))
    if job.paused_at is not None and job.ended_at is None:
        rows.insert(2, ("paused", f"{age(job.paused_at, now=now)} ago; `spothop resume {job.id}`"))
    if job.insurance is not None:
        due = f"at step {job.insurance.at_step:,}, then every {duration(job.insurance.tau_s)}"
        rows.insert(6, ("next save", f"{due}: {job.insurance.reason}"))
    if job.injection is not None:
        rows.insert(-1, ("injection", injection_words(job.injection)))
    if job.ends_at is not None and job.ended_at is None:
        left = _in(job.ends_at, now)
        rows.append(("time left", f"{left}; then it saves and fails: max_duration"))
    if job.ended_at is not None:
        rows.append(("ended", f"{age(job.ended_at, now=now)} ago"))
    return rows


def _attempts(console: Console, job: JobDetail) -> None:
    rows = [
        (
            str(attempt.number),
            attempt.vm,
            _attempt_state(attempt),
            number(attempt.restored_step),
            number(attempt.last_step),
            "yes" if attempt.notice_at else NOTHING,
            attempt.detail or NOTHING,
        )
        for attempt in job.attempts
    ]
    columns = ("#", "VM", "STATE", "FROM", "TO", "NOTICE", "DETAIL")
    print_table(console, columns, rows, right=("FROM", "TO"), under=("DETAIL", "VM"))


def _attempt_state(attempt: AttemptView) -> str:
    """`ended: user_failure (signal SIGKILL)`"""
    reason = f": {attempt.reason}" if attempt.reason else ""
    exits = exits_text(attempt.places)
    return f"{shown_state(attempt)}{reason}" + (f" ({exits})" if exits else "")


def event(console: Console, event: EventView, *, wrap: bool) -> None:
    """One event, in local time; in one line, however long, where it is not to be wrapped."""
    at = f"{event.at.astimezone():%H:%M:%S} "
    attempt = f"[{event.attempt}] " if event.attempt is not None else ""
    first = Text.assemble((at, "dim"), attempt)
    if wrap:
        print_text(console, event.text or event.kind, first=first, indent=" " * len(at))
    else:
        console.print(first.append(event.text or event.kind), soft_wrap=True)


def log_line(line: str) -> Text:
    """A line of a job's own output: its colours stay, cursor movements are removed."""
    text = Text.from_ansi(line.rstrip("\r").rsplit("\r", 1)[-1])
    text.plain = "".join(c for c in text.plain if c.isprintable() or c == "\t")
    return text


def users(console: Console, list_: Sequence[UserView], *, now: datetime) -> None:
    rows = [
        (
            *(user.name, user.role, str(user.tokens), *_quota(user.quota)),
            *(age(user.created_at, now=now), _since(user, now)),
        )
        for user in list_
    ]
    numbers = ("TOKENS", "JOBS", "VMS", "BUNDLES", "LOGS", "AGE")
    print_table(console, ("USER", "ROLE", *numbers, "STATE"), rows, right=numbers)


def _quota(quota: QuotaView | None) -> tuple[str, ...]:
    """Of each what is taken, and the limit where there is one."""
    if quota is None:
        return (NOTHING,) * 4
    counts = (_used(each, str) for each in (quota.jobs, quota.vms))
    sizes = (_used(each, size) for each in (quota.bundle_bytes, quota.log_bytes))
    return (*counts, *sizes)


def _used(each: Used, text: Callable[[int], str]) -> str:
    return text(each.used) if each.limit is None else f"{text(each.used)} of {text(each.limit)}"


def _since(user: UserView, now: datetime) -> str:
    return f"disabled {age(user.disabled_at, now=now)} ago" if user.disabled_at else "active"


def tokens(console: Console, list_: Sequence[TokenView], *, now: datetime) -> None:
    if not list_:
        console.print("no token counts")
        return
    rows = [
        (str(t.id), t.user, t.role, t.name or NOTHING, age(t.created_at, now=now), _ends(t, now))
        for t in list_
    ]
    columns = ("ID", "USER", "ROLE", "NAME", "AGE", "ENDS")
    print_table(console, columns, rows, right=("AGE",), under=("NAME",))


def _ends(token: TokenView, now: datetime) -> str:
    if token.revoked_at is not None:
        return "revoked"
    if token.expires_at is None:
        return "never"
    left_s = (token.expires_at - now).total_seconds()
    return f"in {duration(left_s)}" if left_s > 0 else "expired"
