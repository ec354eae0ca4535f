"""Who may use the master: users and their API tokens. For admins."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from spothop.cli.commands.common import JsonOption, print_json
from spothop.cli.session import Session, aside, session_of

if TYPE_CHECKING:
    from spothop.sdk.client import Client
    from spothop.wire import NewToken
    from spothop.wire.access import RoleName

ROLES: tuple[RoleName, ...] = ("admin", "user", "viewer")

user = typer.Typer(
    name="user",
    help="Make, list and disable users (admins).",
    epilog="Example: spothop user add ann --role viewer",
    no_args_is_help=True,
    rich_markup_mode=None,
)
token = typer.Typer(
    name="token",
    help="Make, list and revoke API tokens (admins).",
    epilog="Example: spothop token create ann --name laptop --expires 90d",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

NameArgument = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]


def _role(text: str) -> RoleName:
    for role in ROLES:
        if text == role:
            return role
    raise typer.BadParameter(f"{text!r} is no role; use one of {', '.join(ROLES)}")


def _lasts_s(text: str) -> float:
    from spothop.durations import NotADuration, parse_duration

    try:
        return parse_duration(text).total_seconds()
    except NotADuration as error:
        raise typer.BadParameter(f"{text!r} {error}") from None


@user.command("add")
def add_user(
    context: typer.Context,
    name: NameArgument,
    role: Annotated[
        str,
        typer.Option(
            metavar="ROLE",
            help="admin: everything; user: their own jobs; viewer: only look at all jobs.",
        ),
    ] = "user",
    as_json: JsonOption = False,
) -> None:
    """Make a user, and print a first token for them.

    The token is shown this once: on the standard output, alone.

    Example: spothop user add ann --role viewer
    """
    session = session_of(context)
    with session.client() as client:
        made = client.add_user(name, role=_role(role))
    _show_once(session, made, as_json)


@user.command("list")
def list_users(context: typer.Context, as_json: JsonOption = False) -> None:
    """List users: roles, how many tokens count, who is disabled.

    Example: spothop user list
    """
    from spothop.cli import views

    session = session_of(context)
    with session.client() as client:
        found = client.users()
    if as_json:
        print_json([user.model_dump(mode="json") for user in found])
    else:
        views.users(session.console(), found, now=session.now())


@user.command("quota")
def set_quota(
    context: typer.Context,
    name: NameArgument,
    jobs: Annotated[str | None, typer.Option(metavar="N", help="Jobs that have not ended.")] = None,
    vms: Annotated[str | None, typer.Option(metavar="N", help="VMs at once.")] = None,
    bundles: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Code bundles, such as 2GB.")
    ] = None,
    logs: Annotated[str | None, typer.Option(metavar="SIZE", help="Logs, such as 500MB.")] = None,
    as_json: JsonOption = False,
) -> None:
    """What a user may take; `default` is what the master's settings say.

    Over it a submit or an upload is refused, a job that needs one more VM waits, and a log loses
    its oldest lines. Nothing that runs is ended. Without an option it shows what is taken.

    Example: spothop user quota ann --jobs 5 --vms 4 --logs 500MB
    """
    from spothop.cli import views
    from spothop.wire import QuotaRequest

    given = {
        "jobs": _limit(jobs, _count),
        "vms": _limit(vms, _count),
        "bundle_bytes": _limit(bundles, _bytes),
        "log_bytes": _limit(logs, _bytes),
    }
    named = dict(zip(given, (jobs, vms, bundles, logs), strict=True))
    request = QuotaRequest(**{k: v for k, v in given.items() if named[k] is not None})
    session = session_of(context)
    with session.client() as client:
        found = client.set_quota(name, request)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        views.users(session.console(), [found], now=session.now())


def _limit(text: str | None, read: Callable[[str], int]) -> int | None:
    return None if text in (None, "default") else read(text or "")


def _count(text: str) -> int:
    if not text.isdecimal() or not text.isascii():
        raise typer.BadParameter(f"{text!r} is no number; write one such as 5, or default")
    return int(text)


def _bytes(text: str) -> int:
    match = re.fullmatch("([0-9]{1,9})(KB|MB|GB|TB)", text)
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is no size; write a number with its unit, such as 500MB, or default"
        )
    return int(match[1]) * _UNITS[match[2]]


@user.command("disable")
def disable_user(context: typer.Context, name: NameArgument, as_json: JsonOption = False) -> None:
    """None of the user's tokens counts any more; running jobs train on.

    Example: spothop user disable ann
    """
    _set_disabled(context, name, as_json, disabled=True)


@user.command("enable")
def enable_user(context: typer.Context, name: NameArgument, as_json: JsonOption = False) -> None:
    """The tokens of a disabled user count again.

    Example: spothop user enable ann
    """
    _set_disabled(context, name, as_json, disabled=False)


def _set_disabled(context: typer.Context, name: str, as_json: bool, *, disabled: bool) -> None:
    session = session_of(context)
    with session.client() as client:
        found = client.set_disabled(name, disabled=disabled)
    if as_json:
        print_json(found.model_dump(mode="json"))
    elif disabled:
        session.say(
            f"{found.name} is disabled; jobs of theirs train on: `spothop jobs`, `spothop cancel`"
        )
    else:
        session.say(f"{found.name} is enabled, with {found.tokens} tokens that count")


@token.command("create")
def create_token(
    context: typer.Context,
    name: NameArgument,
    label: Annotated[
        str, typer.Option("--name", metavar="NAME", help="What the token is for.")
    ] = "",
    role: Annotated[
        str | None,
        typer.Option(
            metavar="ROLE",
            help="What the token may do at most: admin, user or viewer. Default: all that its "
            "user may.",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="It ends after this, such as 12h or 90d."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token for a user, and print it.

    It is shown this once: on the standard output, alone.

    Example: spothop token create ann --name laptop --expires 90d
    """
    session = session_of(context)
    at_most = _role(role) if role is not None else None
    lasts_s = _lasts_s(expires) if expires is not None else None
    with session.client() as client:
        made = client.create_token(name, name=label, role=at_most, expires_in_s=lasts_s)
    _show_once(session, made, as_json)


@token.command("list")
def list_tokens(
    context: typer.Context,
    all_: Annotated[
        bool, typer.Option("--all", "-a", help="Also those that were revoked or expired.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the tokens that count, newest first.

    Example: spothop token list
    """
    from spothop.cli import views

    session = session_of(context)
    with session.client() as client:
        found = client.tokens(all=all_)
    if as_json:
        print_json([token.model_dump(mode="json") for token in found])
    else:
        views.tokens(session.console(), found, now=session.now())


@token.command("revoke")
def revoke_token(
    context: typer.Context,
    token_id: Annotated[
        int, typer.Argument(metavar="ID", help="The number in `spothop token list`.")
    ],
    as_json: JsonOption = False,
) -> None:
    """A token counts no more, nor do browsers that logged in with it.

    To change the first start's token: make another one, then revoke that.

    Example: spothop token revoke 3
    """
    session = session_of(context)
    with session.client() as client:
        gone = client.revoke_token(token_id)
        was_ours = _is_refused(client)
    if as_json:
        print_json(gone.model_dump(mode="json"))
    else:
        named = f" ({gone.name})" if gone.name else ""
        session.say(f"token {gone.id}{named} of {gone.user} is revoked")
    if was_ours:
        aside("it was the one that this command used: set SPOTHOP_TOKEN to another one")


def _is_refused(client: Client) -> bool:
    from spothop.sdk.errors import ApiError

    try:
        client.me()
    except ApiError as error:
        return error.status == 401
    return False


def _show_once(session: Session, made: NewToken, as_json: bool) -> None:
    if as_json:
        print_json(made.model_dump(mode="json"))
        return
    typer.echo(made.token)
    view = made.view
    aside(f"token {view.id} of {view.user} ({view.role}); it is shown only now: keep it safe")
