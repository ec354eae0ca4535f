"""Whether a failure is tried again: the budgets, and failures that would only repeat themselves.

What it must guarantee: a typing error costs one VM and a minute, and nothing that may pass ends a
job. Three rules, and none of them looks at more than the newest two attempts:

1. What fails while the code, `setup:` or `data:` are put in place is final as long as that has
   never worked in this job. Once it has, a package index that is away may be the reason.
2. A script that fails before its first step, in the very words in which the attempt before failed
   before its first step, is final: nothing was computed in between that could change the outcome.
   Not in a job that has trained: the same script could begin before, so something else is away.
3. All else counts against the budget of its kind in `retries`; a new checkpoint resets the count.

Rules 1 and 2 concern failures of the user only: a VM or a storage that is away is never final.
"""

from __future__ import annotations

from spothop.wire import EndReason, JobState
from spothop_master.core import replace
from spothop_master.core.actions import Action
from spothop_master.core.facts import AttemptFacts, Snapshot

SELF_MADE = frozenset({EndReason.USER_FAILURE, EndReason.OUT_OF_MEMORY})
"""Ends that the job's own code or settings bring about."""


def budgets(snapshot: Snapshot) -> list[Action]:
    """End the job where the newest failure is final, or one too many."""
    newest = snapshot.newest
    if newest is None or newest.reason is None:
        return []
    why = final(snapshot, newest) or _spent(snapshot, newest.reason)
    return replace.finish(snapshot, JobState.FAILED, f"{newest.detail} ({why})") if why else []


def final(snapshot: Snapshot, newest: AttemptFacts) -> str | None:
    """Why trying again cannot help; None where it may."""
    if newest.reason not in SELF_MADE or newest.trained:
        return None
    if newest.prepared_at is None and not snapshot.job.was_prepared:
        return "it has never worked in this job: not tried again"
    before = snapshot.before
    if (
        snapshot.job.was_trained
        or before is None
        or before.trained
        or before.reason is not newest.reason
    ):
        return None
    if before.detail != newest.detail:
        return None
    return "the same before the first step of two attempts in a row: not tried again"


def _spent(snapshot: Snapshot, reason: EndReason) -> str | None:
    """Failures in a row, against what the job allows."""
    job, budgets = snapshot.job, snapshot.job.requirements
    if reason is EndReason.HANG:
        count, what, of = job.hangs, "hang", ""
        key, budget = "hang", budgets.hang_retries
    elif reason in SELF_MADE:
        count, what, of = job.user_failures, "failure", " of the script"
        key, budget = "user", budgets.user_retries
    elif reason is EndReason.INFRASTRUCTURE:
        count, what, of = job.infrastructure_failures, "failure", " of the infrastructure"
        key, budget = "infrastructure", budgets.infrastructure_retries
    else:
        return None
    if count <= budget:
        return None
    many = f"1 {what}{of}" if count == 1 else f"{count} {what}s{of} in a row"
    return f"{many}; `retries.{key}` is {budget}"
