"""What you want of a job, or of many: pause, resume, cancel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from spothop.cli.commands.common import JsonOption, print_json
from spothop.cli.session import Session, session_of
from spothop.sdk.errors import ClientError

if TYPE_CHECKING:
    from spothop.sdk.client import Client
    from spothop.wire import JobPage, JobView

JobOrAll = Annotated[str | None, typer.Argument(metavar="[JOB]", help="The id or name of a job.")]
AllOption = Annotated[bool, typer.Option("--all", "-a", help="Every job that has not ended.")]
StateOption = Annotated[
    str | None, typer.Option(metavar="STATE", help="With --all: only those in this state.")
]
NameOption = Annotated[
    str, typer.Option(metavar="PREFIX", help="With --all: only those whose name begins so.")
]
OwnerOption = Annotated[
    str | None, typer.Option(metavar="USER", help="With --all: only those of this user.")
]
WhyOption = Annotated[
    str, typer.Option(metavar="TEXT", help="Why, for people; `spothop show` tells it.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")]


@dataclass(frozen=True, kw_only=True)
class _Which:
    """The jobs that a command is about."""

    job: str | None
    every: bool
    state: str | None
    name: str
    owner: str | None
    yes: bool
    as_json: bool

    def check(self, verb: str) -> None:
        """Raises ClientError."""
        if (self.job is None) != self.every or (
            self.job is not None and (self.state or self.name or self.owner)
        ):
            raise ClientError(
                f"give the JOB to {verb}, or --all with --state, --name or --owner",
                f"spothop {verb} mnist-small; spothop {verb} --all --state queued",
            )


@dataclass(frozen=True, kw_only=True)
class _Verb:
    """The words of one command, which is what its past is called in JSON, too."""

    word: str
    doing: str
    done: str
    then: str
    """What `spothop show` says in the end."""
    leaves: frozenset[str]
    """States of jobs that have nothing to do for it."""


_CANCEL = _Verb(
    word="cancel", doing="cancelling", done="cancelled", then="when it is over", leaves=frozenset()
)
_PAUSE = _Verb(
    word="pause",
    doing="pausing",
    done="paused",
    then="when its VM is gone",
    leaves=frozenset({"paused"}),
)
_RESUME = _Verb(
    word="resume", doing="resuming", done="resumed", then="where it goes on", leaves=frozenset()
)


def cancel(
    context: typer.Context,
    job: JobOrAll = None,
    all_: AllOption = False,
    state: StateOption = None,
    name: NameOption = "",
    owner: OwnerOption = None,
    now: Annotated[
        bool,
        typer.Option("--now", help="Without a last save; also where a cancel waits for one."),
    ] = False,
    why: WhyOption = "",
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Cancel a job, or many; their committed checkpoints stay.

    A job that trains saves its newest state first, in a limited time, and its log is kept to the
    end; --now leaves the save out.

    Example: spothop cancel mnist-small

    Example: spothop cancel --all --state queued
    """
    which = _Which(
        job=job, every=all_, state=state, name=name, owner=owner, yes=yes, as_json=as_json
    )
    _do(
        session_of(context),
        _CANCEL,
        which,
        one=lambda client, one: client.cancel(one, now=now, why=why),
        many=lambda client: client.cancel_all(
            state=state, name=name, owner=owner, now=now, why=why
        ),
    )


def pause(
    context: typer.Context,
    job: JobOrAll = None,
    all_: AllOption = False,
    state: StateOption = None,
    name: NameOption = "",
    owner: OwnerOption = None,
    why: WhyOption = "",
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Pause a job, or many: save, and hold no VM.

    It stays so until `spothop resume`. A paused job costs nothing but its storage; its time does
    not count against max_duration.

    Example: spothop pause mnist-small --why "prices"

    Example: spothop pause --all --name sweep-
    """
    which = _Which(
        job=job, every=all_, state=state, name=name, owner=owner, yes=yes, as_json=as_json
    )
    _do(
        session_of(context),
        _PAUSE,
        which,
        one=lambda client, one: client.pause(one, why=why),
        many=lambda client: client.pause_all(state=state, name=name, owner=owner, why=why),
    )


def resume(
    context: typer.Context,
    job: JobOrAll = None,
    all_: AllOption = False,
    state: StateOption = None,
    name: NameOption = "",
    owner: OwnerOption = None,
    why: WhyOption = "",
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let a paused job, or many, go on from the newest checkpoint.

    Example: spothop resume mnist-small

    Example: spothop resume --all
    """
    which = _Which(
        job=job,
        every=all_,
        state=state or ("paused" if all_ else None),
        name=name,
        owner=owner,
        yes=yes,
        as_json=as_json,
    )
    _do(
        session_of(context),
        _RESUME,
        which,
        one=lambda client, one: client.resume(one, why=why),
        many=lambda client: client.resume_all(state=which.state, name=name, owner=owner, why=why),
    )


def _do(
    session: Session,
    verb: _Verb,
    which: _Which,
    *,
    one: Callable[[Client, str], JobView],
    many: Callable[[Client], int],
) -> None:
    which.check(verb.word)
    if which.job is None:
        _do_many(session, verb, which, many)
        return
    with session.client() as client:
        found = one(client, which.job)
    if which.as_json:
        print_json(found.model_dump(mode="json"))
        return
    session.say(f"{found.id}: {verb.doing} (now {found.state}); `spothop show` says {verb.then}")


def _do_many(session: Session, verb: _Verb, which: _Which, many: Callable[[Client], int]) -> None:
    with session.client() as client:
        page = client.job_page(state=which.state, name=which.name, owner=which.owner, limit=1)
        counts = _counts(page, which, verb)
        found = sum(count for _, count in counts)
        if found and not which.yes:
            if not session.can_ask:
                raise ClientError(f"{found:,} jobs would be {verb.done}", "add --yes to do so")
            told = ", ".join(f"{count:,} {of_state}" for of_state, count in counts)
            typer.confirm(f"{verb.word.capitalize()} {found:,} jobs ({told})?", abort=True)
        count = many(client) if found else 0
    if which.as_json:
        print_json({verb.done: count})
    else:
        session.say(f"{count:,} jobs: {verb.doing}; `spothop jobs` says when they are {verb.done}")


def _counts(page: JobPage, which: _Which, verb: _Verb) -> list[tuple[str, int]]:
    """By state, of the jobs that this is about."""
    from spothop.wire import JOB_ENDED

    return [
        (each.value, count)
        for each, count in page.counts.items()
        if each not in JOB_ENDED
        and each.value not in verb.leaves
        and which.state in (None, each.value)
    ]
