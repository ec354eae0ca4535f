"""The three metadata dialects, without sockets: what vendors document, and refusals above all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop_master.clouds.local.metadata import (
    Announcement,
    Dialect,
    Hold,
    Machine,
    Request,
    Response,
    dialect,
)
from support.examples import examples

NOW = 1_500_000_000.0
"""2017-07-14 02:40:00 UTC."""
VM = Machine(id="lvm-1", name="vm-1", region="local-1", zone="local-1a", vm="small", spot=True)
DOOMED = replace(VM, announcement=Announcement("preempt-1", NOW + 30.7))


def ask(
    endpoint: Dialect,
    path: str,
    *,
    machine: Machine = VM,
    method: str = "GET",
    now: float = NOW,
    body: bytes = b"",
    extra: Mapping[str, str] | None = None,
    **headers: str,
) -> Response:
    """Headers are written with underscores; `extra` ones are added."""
    path, _, query = path.partition("?")
    request = Request(
        method=method,
        path=path,
        query=dict(pair.split("=") for pair in query.split("&") if pair),
        headers={
            name.replace("_", "-"): value for name, value in {**headers, **(extra or {})}.items()
        },
        body=body,
    )
    answer = endpoint.respond(request, machine, now=now, waited=False)
    assert isinstance(answer, Response)
    return answer


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(ValueError, match="'ibm' is not one of aws, azure, gcp"):
        dialect("ibm", token="t")


# --- AWS ----------------------------------------------------------------------------------------

TOKEN = "/latest/api/token"
ACTION = "/latest/meta-data/spot/instance-action"


@pytest.fixture
def aws() -> Dialect:
    return dialect("aws", token="t")


def aws_token(aws: Dialect, *, ttl: str = "60", now: float = NOW) -> str:
    answer = ask(aws, TOKEN, method="PUT", now=now, x_aws_ec2_metadata_token_ttl_seconds=ttl)
    assert answer.status == 200
    assert answer.headers["x-aws-ec2-metadata-token-ttl-seconds"] == ttl
    return answer.body.decode()


@pytest.mark.parametrize("ttl", ["", "0", "21601", "-1", "1.5", "ten", "\u0661"])
def test_aws_refuses_a_bad_ttl(aws: Dialect, ttl: str) -> None:
    answer = ask(aws, TOKEN, method="PUT", x_aws_ec2_metadata_token_ttl_seconds=ttl)
    assert answer.status == 400


def test_aws_refuses_a_token_request_through_a_proxy_or_without_put(aws: Dialect) -> None:
    ttl = {"x_aws_ec2_metadata_token_ttl_seconds": "60"}
    assert ask(aws, TOKEN, method="PUT", x_forwarded_for="1.2.3.4", extra=ttl).status == 403
    assert ask(aws, TOKEN, extra=ttl).status == 405


def test_aws_answers_401_without_with_a_wrong_and_with_an_expired_token(aws: Dialect) -> None:
    token = aws_token(aws, ttl="60")
    assert ask(aws, ACTION).status == 401
    assert ask(aws, ACTION, x_aws_ec2_metadata_token="wrong").status == 401
    assert ask(aws, ACTION, x_aws_ec2_metadata_token=token, now=NOW + 59).status == 404
    assert ask(aws, ACTION, x_aws_ec2_metadata_token=token, now=NOW + 60).status == 401


def test_aws_tokens_differ_and_stay_valid_side_by_side(aws: Dialect) -> None:
    first, second = aws_token(aws), aws_token(aws)
    assert first != second
    for token in (first, second):
        assert ask(aws, ACTION, x_aws_ec2_metadata_token=token).status == 404


def test_aws_names_the_action_with_the_second_before_the_deadline(aws: Dialect) -> None:
    answer = ask(aws, ACTION, machine=DOOMED, x_aws_ec2_metadata_token=aws_token(aws))
    assert answer.status == 200
    assert json.loads(answer.body) == {"action": "terminate", "time": "2017-07-14T02:40:30Z"}


def test_aws_recommends_no_rebalance_and_knows_its_identity(aws: Dialect) -> None:
    token = aws_token(aws)
    rebalance = "/latest/meta-data/events/recommendations/rebalance"
    for machine in (VM, DOOMED):
        answer = ask(aws, rebalance, machine=machine, x_aws_ec2_metadata_token=token)
        assert answer.status == 404
    path = "/latest/dynamic/instance-identity/document"
    identity = json.loads(ask(aws, path, x_aws_ec2_metadata_token=token).body)
    assert identity["instanceId"] == "lvm-1"
    assert identity["availabilityZone"] == "local-1a"
    zone = "/latest/meta-data/placement/availability-zone"
    assert ask(aws, zone, x_aws_ec2_metadata_token=token).body == b"local-1a"


# --- Azure --------------------------------------------------------------------------------------

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
INSTANCE = "/metadata/instance?api-version=2021-02-01"
START = b'{"StartRequests": [{"EventId": "preempt-1"}]}'


@pytest.fixture
def azure() -> Dialect:
    return dialect("azure", token="t")


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (EVENTS, {}),
        (EVENTS, {"metadata": "false"}),
        (EVENTS, {"metadata": "true", "x_forwarded_for": "1.2.3.4"}),
        ("/metadata/scheduledevents", {"metadata": "true"}),
        ("/metadata/scheduledevents?api-version=1999-01-01", {"metadata": "true"}),
        ("/metadata/instance?api-version=2020-07-01", {"metadata": "true"}),
    ],
)
def test_azure_refuses_without_header_or_version(
    azure: Dialect, path: str, headers: dict[str, str]
) -> None:
    assert ask(azure, path, extra=headers).status == 400


def events(azure: Dialect, machine: Machine, *, now: float = NOW) -> tuple[int, list[object]]:
    answer = ask(azure, EVENTS, machine=machine, now=now, metadata="true")
    assert answer.status == 200
    content = json.loads(answer.body)
    return content["DocumentIncarnation"], content["Events"]


def test_azure_shows_the_event_until_it_starts_and_counts_incarnations(azure: Dialect) -> None:
    assert events(azure, VM) == (1, [])
    incarnation, [event] = events(azure, DOOMED)
    assert incarnation == 2
    assert event == {
        "EventId": "preempt-1",
        "EventStatus": "Scheduled",
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": ["vm-1"],
        "NotBefore": "Fri, 14 Jul 2017 02:40:30 GMT",
        "Description": "The Azure Spot Virtual Machine is being deleted.",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }
    assert events(azure, DOOMED, now=NOW + 2)[0] == 2
    incarnation, [event] = events(azure, DOOMED, now=NOW + 31)
    assert incarnation == 3
    assert isinstance(event, dict)
    assert (event["EventStatus"], event["NotBefore"]) == ("Started", "")


def test_azure_lets_a_known_event_start_once(azure: Dialect) -> None:
    def start(machine: Machine, body: bytes = START) -> Response:
        return ask(azure, EVENTS, machine=machine, method="POST", body=body, metadata="true")

    assert start(VM).status == 400
    answer = start(DOOMED)
    assert (answer.status, answer.acknowledged) == (200, "preempt-1")
    _, [event] = events(azure, DOOMED)
    assert isinstance(event, dict)
    assert event["EventStatus"] == "Started"
    again = start(DOOMED)
    assert (again.status, again.acknowledged) == (400, None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"StartRequests": []}',
        b'{"StartRequests": [{"EventId": 7}]}',
        b'{"StartRequests": [{}]}',
        b'{"StartRequests": [{"EventId": "other"}]}',
    ],
)
def test_azure_refuses_malformed_acknowledgements(azure: Dialect, body: bytes) -> None:
    answer = ask(azure, EVENTS, machine=DOOMED, method="POST", body=body, metadata="true")
    assert (answer.status, answer.acknowledged) == (400, None)


def test_azure_answers_429_above_five_calls_a_second(azure: Dialect) -> None:
    statuses = [ask(azure, EVENTS, now=NOW + n / 10, metadata="true").status for n in range(6)]
    assert statuses == [200] * 5 + [429]
    assert ask(azure, EVENTS, now=NOW + 1.0, metadata="true").status == 200


def test_azure_names_the_vm_in_strings_only(azure: Dialect) -> None:
    compute = json.loads(ask(azure, INSTANCE, metadata="true").body)["compute"]
    assert compute["name"] == "vm-1"
    assert compute["evictionPolicy"] == "Delete"
    assert all(isinstance(value, str) for value in compute.values())


# --- GCP ----------------------------------------------------------------------------------------

PREEMPTED = "/computeMetadata/v1/instance/preempted"


@pytest.fixture
def gcp() -> Dialect:
    return dialect("gcp", token="t")


def poll(
    gcp: Dialect, machine: Machine, query: dict[str, str], *, waited: bool = False
) -> Response | Hold:
    request = Request("GET", PREEMPTED, query, {"metadata-flavor": "Google"})
    return gcp.respond(request, machine, now=NOW, waited=waited)


def test_gcp_refuses_without_its_header_and_through_a_proxy(gcp: Dialect) -> None:
    assert ask(gcp, PREEMPTED).status == 403
    assert ask(gcp, PREEMPTED, metadata_flavor="google").status == 403
    refused = ask(gcp, PREEMPTED, metadata_flavor="Google", x_forwarded_for="1.2.3.4")
    assert refused.status == 403


def test_gcp_tells_whether_it_is_preempted_with_an_etag(gcp: Dialect) -> None:
    before = ask(gcp, PREEMPTED, metadata_flavor="Google")
    after = ask(gcp, PREEMPTED, machine=DOOMED, metadata_flavor="Google")
    assert (before.body, after.body) == (b"FALSE", b"TRUE")
    assert before.headers["etag"] != after.headers["etag"]
    assert before.headers["metadata-flavor"] == "Google"


def test_gcp_holds_while_the_etag_is_current_and_answers_when_it_is_not(gcp: Dialect) -> None:
    etag = ask(gcp, PREEMPTED, metadata_flavor="Google").headers["etag"]
    query = {"wait_for_change": "true", "timeout_sec": "60", "last_etag": etag}
    assert poll(gcp, VM, query) == Hold(60.0)
    answer = poll(gcp, DOOMED, query)
    assert isinstance(answer, Response)
    assert answer.body == b"TRUE"
    timed_out = poll(gcp, VM, query, waited=True)
    assert isinstance(timed_out, Response)
    assert timed_out.body == b"FALSE"


def test_gcp_does_not_see_a_flip_before_a_poll_without_etag(gcp: Dialect) -> None:
    assert poll(gcp, DOOMED, {"wait_for_change": "true"}) == Hold(None)
    assert isinstance(poll(gcp, DOOMED, {"last_etag": "0"}), Response)


def test_gcp_refuses_a_bad_timeout_and_other_methods(gcp: Dialect) -> None:
    bad = poll(gcp, VM, {"wait_for_change": "true", "timeout_sec": "soon"})
    assert isinstance(bad, Response)
    assert bad.status == 400
    assert ask(gcp, PREEMPTED, method="PUT", metadata_flavor="Google").status == 405
    assert ask(gcp, "/computeMetadata/v1/other", metadata_flavor="Google").status == 404


# --- all ----------------------------------------------------------------------------------------


@examples(100)
@given(
    name=st.sampled_from(["aws", "azure", "gcp"]),
    method=st.sampled_from(["GET", "PUT", "POST", "DELETE"]),
    path=st.sampled_from([TOKEN, ACTION, PREEMPTED, "/metadata/scheduledevents", "/", "//x"]),
    headers=st.dictionaries(
        st.sampled_from(["metadata", "metadata-flavor", "x-aws-ec2-metadata-token-ttl-seconds"]),
        st.sampled_from(["true", "Google", "60", ""]),
    ),
    query=st.dictionaries(
        st.sampled_from(["api-version", "wait_for_change", "timeout_sec", "last_etag"]),
        st.sampled_from(["2020-07-01", "true", "5", "x"]),
    ),
    body=st.binary(max_size=40),
    machine=st.sampled_from([VM, DOOMED]),
)
def test_no_request_breaks_a_dialect(
    name: str,
    method: str,
    path: str,
    headers: dict[str, str],
    query: dict[str, str],
    body: bytes,
    machine: Machine,
) -> None:
    request = Request(method, path, query, headers, body)
    answer = dialect(name, token="t").respond(request, machine, now=NOW, waited=False)
    if isinstance(answer, Response):
        assert answer.status in {200, 400, 401, 403, 404, 405}
    else:
        assert name == "gcp"
