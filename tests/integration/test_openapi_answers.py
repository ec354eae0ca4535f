"""Requests that /openapi.json allows and requests that it does not are sent to every route; each
answer has to be one that it describes. In the gate a few, always the same ones; with `--all` many.

Schemathesis makes the requests and judges the answers. They go through `HttpMaster`, whose lifespan
begins once, and not through its own transport, which begins one for each request. Who may ask what
is told by `test_route_table`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import FailedHealthCheck, Unsatisfiable

from fakes.http_master import BUNDLE_SHA256, HttpAgent, HttpMaster
from spothop.wire import Problem
from spothop_master.security import Role
from support import openapi_file
from support.require import need_module

URL = "http://master"
FEW, MANY = 1, 40
"""Requests of each kind to a route."""

WHO = ("VM", "viewer", "user", "admin")
"""In this order each sends every request: who may most comes last."""

CHECKED = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
)

LAST = ("/cancel", "/cancellations", "/pause", "/pauses", "/preempt", "/disable")
"""What ends the job, so that the routes before see it train."""


def there(agent: HttpAgent) -> dict[str, str]:
    """Parameters of paths, by name."""
    return {
        "ref": agent.job,
        "vm_id": agent.vm,
        "sha256": BUNDLE_SHA256,
        "name": "spare",
        "token_id": "4",
        "cloud": "no-such-cloud",
    }


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[HttpAgent]:
    with HttpMaster(tmp_path) as master:
        master.user("user", Role.USER)
        master.user("viewer", Role.VIEWER)
        agent = master.joined(token="token-of-user")
        agent.train(3)
        agent.post_log(b"hello\n", offset=0)
        master.user("spare", Role.USER)
        master.services.stopping.set()  # long polls do not wait
        yield agent


def token_of(agent: HttpAgent, who: str) -> str:
    return {"admin": agent.master.admin, "VM": agent.session}.get(who, f"token-of-{who}")


@pytest.mark.timeout(3600)  # with `--all`
def test_answers_are_as_described(agent: HttpAgent, request: pytest.FixtureRequest) -> None:
    need_module("schemathesis", hint="pip install 'spothop[dev]' on Python 3.11 or newer")
    run = how(thorough=request.config.getoption("--all"))
    found = [
        f"{operation.label}\n{error}"
        for operation in operations_of(agent.master)
        for strategy in requests_of(operation, agent)
        if (error := first_wrong_answer(strategy, agent, run))
    ]
    assert not found, "\n\n".join(found)


def how(*, thorough: bool) -> settings:
    return settings(
        max_examples=MANY if thorough else FEW,
        derandomize=not thorough,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink] if thorough else [Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def operations_of(master: HttpMaster) -> list[Any]:
    """Without their tokens: `send` gives the one of who asks."""
    import schemathesis

    for media_type in ("application/gzip", "application/octet-stream"):
        schemathesis.serializer(media_type)(lambda ctx, value: {"data": value})
    described = dict(master.app.openapi())
    described["components"] = {"schemas": described["components"]["schemas"]}
    described["paths"] = {
        path: {
            method: {name: value for name, value in route.items() if name != "security"}
            for method, route in routes.items()
        }
        for path, routes in described["paths"].items()
    }
    schema = schemathesis.openapi.from_dict(described)
    found = [operation.ok() for operation in schema.get_all_operations()]
    return sorted(found, key=lambda operation: operation.path.endswith(LAST))


def requests_of(operation: Any, agent: HttpAgent) -> Iterator[st.SearchStrategy[Any]]:
    """As described and about what there is; then not as described."""
    from schemathesis import GenerationMode

    names = {parameter.name for parameter in operation.path_parameters}
    known = {name: value for name, value in there(agent).items() if name in names}
    right = operation.as_strategy(generation_mode=GenerationMode.POSITIVE, path_parameters=known)
    yield right.map(lambda case: about_what_is_there(case, agent))
    yield operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)


def about_what_is_there(case: Any, agent: HttpAgent) -> Any:
    """Random names lead nowhere: a sync is of the VM and its reports are the next ones, and what is
    submitted has its code and a job file that can be read."""
    body = case.body
    if not isinstance(body, dict):
        return case
    if "vm" in body:
        reports = [
            {**envelope, "seq": seq, "attempt": 1}
            for seq, envelope in enumerate(body.get("reports", []), start=agent.seq + 1)
        ]
        agent.seq += len(reports)
        body = {**body, "vm": agent.vm, "attempt": 1, "protocol": 1, "reports": reports}
    if "spec" in body:
        body = {**body, "spec": {"name": "x", "run": "true"}}
    if "bundle" in body:
        body = {**body, "bundle": BUNDLE_SHA256}
    case.body = body
    return case


def first_wrong_answer(strategy: st.SearchStrategy[Any], agent: HttpAgent, run: settings) -> str:
    """Empty where all are right."""

    @seed(11)
    @run
    @given(case=strategy)
    def ask(case: Any) -> None:
        for who in WHO:
            answer = send(agent.master, case, token_of(agent, who))
            check(case, answer, who)

    try:
        ask()
    except (Unsatisfiable, FailedHealthCheck):  # it takes nothing that could be wrong
        return ""
    except AssertionError as error:
        return str(error)
    return ""


def check(case: Any, answer: httpx.Response, who: str) -> None:
    from schemathesis.checks import CHECKS, load_all_checks
    from schemathesis.core.failures import FailureGroup

    load_all_checks()
    try:
        case.validate_response(answer, checks=[CHECKS.get_one(name) for name in CHECKED])
    except FailureGroup as error:
        raise AssertionError(f"to {who}: {error}") from None
    if answer.status_code >= 400 and answer.content:
        Problem.model_validate(answer.json())


def send(master: HttpMaster, case: Any, token: str) -> httpx.Response:
    import requests

    takes = inspect.signature(requests.Request).parameters
    made = case.as_transport_kwargs(base_url=URL)
    asked = requests.Request(**{k: v for k, v in made.items() if k in takes}).prepare()
    assert asked.method is not None
    assert asked.url is not None
    headers = {k: v for k, v in asked.headers.items() if k.lower() != "authorization"}
    path = asked.url.removeprefix(URL)
    return master.call(asked.method, path, token=token, headers=headers, content=asked.body)


def test_a_method_that_a_route_does_not_take_is_405_with_those_it_takes(agent: HttpAgent) -> None:
    for path, routes in agent.master.app.openapi()["paths"].items():
        takes = {method.upper() for method in routes}
        for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "TRACE", "OPTIONS"} - takes:
            answer = agent.master.call(method, path.format(**there(agent)))
            assert (answer.status_code, Problem.model_validate(answer.json()).error) == (
                405,
                "wrong_method",
            ), f"{method} {path}"
            assert set(answer.headers["allow"].split(", ")) == takes, f"{method} {path}"


BAD_BODIES = (b"", b"{", b"\xff\xfe", b"[" * 60_000, b"[]", b"null", b'"x"')


def test_a_body_that_is_no_message_is_422(agent: HttpAgent) -> None:
    for path, routes in agent.master.app.openapi()["paths"].items():
        for method, route in routes.items():
            described = route.get("requestBody", {})
            if "application/json" not in described.get("content", {}):
                continue
            for body in BAD_BODIES:
                answer = agent.master.call(
                    method.upper(),
                    path.format(**there(agent)),
                    token=agent.session if path.startswith("/agent") else None,
                    content=body,
                    headers={"Content-Type": "application/json"},
                )
                asked = f"{method} {path} {body[:9]!r}: {answer.text}"
                if not body and not described.get("required"):
                    assert answer.status_code < 422, asked
                    continue
                assert answer.status_code == 422, asked
                assert Problem.model_validate(answer.json()).error == "invalid_request"


def test_the_file_says_what_the_routes_say(tmp_path: Path) -> None:
    hint = "`make openapi` writes docs/openapi.json anew; commit it with the change"
    assert openapi_file.FILE.read_text() == openapi_file.text(tmp_path), hint
