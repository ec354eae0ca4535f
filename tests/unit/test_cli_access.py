"""`spothop user` and `spothop token` against a scripted master."""

from __future__ import annotations

import json
from datetime import timedelta

import httpx
import pytest
from pydantic import BaseModel

from fakes.cli_master import NOW, Cli, in_80_columns, reply
from spothop.cli.commands import access
from spothop.wire import NewToken, QuotaView, TokenView, Used, UserView

SECRET = "spothop_" + "x" * 43
GROUPS = {"user": access.user, "token": access.token}
ORDERS = [
    (group, str(command.name))
    for group, app in GROUPS.items()
    for command in app.registered_commands
]


def token(id_: int, **more: object) -> TokenView:
    plain = {
        "id": id_,
        "user": "a-user-of-a-long-name",
        "name": "the laptop that stands in the corner of the lab, by the window",
        "role": "viewer",
        "created_at": NOW - timedelta(days=400),
        "expires_at": None,
        "revoked_at": None,
    }
    return TokenView.model_validate({**plain, **more})


QUOTA = QuotaView(
    jobs=Used(used=3, limit=5),
    vms=Used(used=2, limit=None),
    bundle_bytes=Used(used=1_500_000, limit=2_000_000_000),
    log_bytes=Used(used=0, limit=None),
)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    cli = in_80_columns(capsys, monkeypatch)
    made = NewToken(token=SECRET, view=token(7))
    user = UserView(name="ann", role="user", created_at=NOW, disabled_at=NOW, tokens=2)
    answers: dict[str, BaseModel | list[BaseModel]] = {
        "GET /users": [user, user.model_copy(update={"disabled_at": None, "name": "b" * 64})],
        "POST /users": made,
        "POST /users/ann/disable": user,
        "PATCH /users/ann/quota": user.model_copy(update={"quota": QUOTA}),
        "POST /users/ann/enable": user,
        "GET /tokens": [
            token(1),
            token(20, expires_at=NOW + timedelta(days=3)),
            token(300, expires_at=NOW - timedelta(days=3)),
            token(4000, revoked_at=NOW),
        ],
        "POST /tokens": made,
        "DELETE /tokens/7": token(7, revoked_at=NOW),
    }
    cli.master.scripted.update({route: reply(answer) for route, answer in answers.items()})
    cli.master.scripted["GET /me"] = httpx.Response(200, json={"name": "ann", "role": "admin"})
    return cli


@pytest.mark.parametrize(("group", "order"), ORDERS)
def test_each_order_has_help_with_an_example(cli: Cli, group: str, order: str) -> None:
    assert cli(group, order, "--help") == 0
    assert f"Example: spothop {group} {order}" in cli.out
    assert max(map(len, cli.out.splitlines())) <= 80


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("group", GROUPS)
def test_lists_fit(cli: Cli, monkeypatch: pytest.MonkeyPatch, group: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    cli.terminal = True
    assert cli(group, "list") == 0, cli.err
    assert cli.out
    for line in cli.out.splitlines():
        assert (len(line) <= width or "b" * 64 in line, line) == (True, line.rstrip())


def test_a_list_says_when_tokens_end(cli: Cli) -> None:
    assert cli("token", "list", "--all") == 0
    for words in ("never", "in 3 d", "expired", "revoked"):
        assert words in cli.out


@pytest.mark.parametrize("line", ["user add ann", "token create ann --name lab --expires 90d"])
def test_a_new_token_stands_alone_on_the_standard_output(cli: Cli, line: str) -> None:
    assert cli(*line.split()) == 0
    assert cli.out == f"{SECRET}\n"
    assert "it is shown only now" in cli.err
    assert cli(*line.split(), "--json") == 0
    assert json.loads(cli.out)["token"] == SECRET


def test_what_is_asked_for_is_what_was_typed(cli: Cli) -> None:
    asked: list[bytes] = []
    told = cli.master.scripted["POST /tokens"]

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.content)
        assert isinstance(told, httpx.Response)
        return told

    cli.master.scripted["POST /tokens"] = handle
    assert (
        cli("token", "create", "ann", "--name", "lab", "--role", "viewer", "--expires", "1d") == 0
    )
    body = {"user": "ann", "name": "lab", "role": "viewer", "expires_in_s": 86400.0}
    assert json.loads(asked[0]) == body


def test_whoever_revokes_the_token_in_use_is_told(cli: Cli) -> None:
    assert cli("token", "revoke", "7") == 0
    assert "is revoked" in cli.out
    assert cli.err == ""
    problem = {"error": "bad_token", "message": "no user has this token", "hint": ""}
    cli.master.scripted["GET /me"] = httpx.Response(401, json=problem)
    assert cli("token", "revoke", "7") == 0
    assert "set SPOTHOP_TOKEN to another one" in cli.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("user add ann --role boss", "admin, user, viewer"),
        ("token create ann --expires soon", "a number with its unit"),
        ("token revoke first", "a valid integer"),
    ],
)
def test_what_cannot_be_meant_is_refused(cli: Cli, line: str, words: str) -> None:
    assert cli(*line.split()) == 2
    assert words in cli.err


def test_of_a_quota_only_what_was_typed_is_sent(cli: Cli) -> None:
    asked: list[bytes] = []
    told = cli.master.scripted["PATCH /users/ann/quota"]

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.content)
        assert isinstance(told, httpx.Response)
        return told

    cli.master.scripted["PATCH /users/ann/quota"] = handle
    words = ["--jobs", "5", "--vms", "default", "--bundles", "2GB"]
    assert cli("user", "quota", "ann", *words) == 0
    assert json.loads(asked[0]) == {"jobs": 5, "vms": None, "bundle_bytes": 2_000_000_000}
    shown = " ".join(cli.out.split())
    assert "3 of 5 2 1.5 MB of 2 GB 0 B" in shown, shown


@pytest.mark.parametrize("word", ["--jobs -1", "--vms x", "--logs 5", "--bundles 5mb"])
def test_what_is_no_quota_is_refused_before_anything_is_sent(cli: Cli, word: str) -> None:
    assert cli("user", "quota", "ann", *word.split()) == 2
    assert "or default" in cli.err
