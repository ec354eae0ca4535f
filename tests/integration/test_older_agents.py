"""Agents of the release before go on with this master.

What such an agent sends is pinned in `tests/data/protocol_1/messages.jsonl`, one message a line,
and what it can read in `replies.json`: the JSON schemas of its own models. Both were written by
release 0.1.0; a change of the wire that this test does not take would strand VMs that train.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.http_master import HttpAgent, HttpMaster
from spothop.wire import PROTOCOL, SPEAKS, SPOKEN, UnspokenProtocol, agree, speaks
from spothop_master.store.schema import Checkpoint, Event, VmRow

pytestmark = pytest.mark.databases

DATA = Path(__file__).parents[1] / "data" / "protocol_1"
MESSAGES = [json.loads(line) for line in (DATA / "messages.jsonl").read_text().splitlines()]
REPLIES = json.loads((DATA / "replies.json").read_text())


@pytest.fixture
def master(tmp_path: Path) -> Iterator[HttpMaster]:
    with HttpMaster(tmp_path) as master:
        yield master


def launched(master: HttpMaster, **spec: Any) -> HttpAgent:
    """Its VM has booted, and nobody has joined."""
    master.submit(**spec)
    for _ in range(4):
        master.look(1.0)
    return HttpAgent(master, master.cloud.launches[-1].user_data.token)


def unreadable(value: Any, schema: Any, whole: Any, where: str = "") -> list[str]:
    """What an agent with this schema refuses of a reply."""
    if "$ref" in schema:
        return unreadable(value, whole["$defs"][schema["$ref"].rpartition("/")[2]], whole, where)
    if options := schema.get("anyOf") or schema.get("oneOf"):
        found = [unreadable(value, option, whole, where) for option in options]
        return [] if [] in found else [f"{where}: {value!r}", *min(found, key=len)]
    if "const" in schema or "enum" in schema:
        allowed = schema.get("enum", [schema.get("const")])
        return [] if value in allowed else [f"{where}: {value!r} is none of {allowed}"]
    if schema.get("type") == "array":
        items = schema.get("items", {})
        each = [unreadable(item, items, whole, f"{where}[{i}]") for i, item in enumerate(value)]
        return [text for texts in each for text in texts]
    if schema.get("type") != "object" or not isinstance(value, dict):
        return [] if is_of(value, schema.get("type")) else [f"{where}: {value!r}"]
    known = schema.get("properties", {})
    wrong = [f"{where}: no {name}" for name in schema.get("required", ()) if name not in value]
    for name, inner in value.items():
        if name in known:
            wrong += unreadable(inner, known[name], whole, f"{where}.{name}")
        elif schema.get("additionalProperties") is False:
            wrong.append(f"{where}.{name} is unknown to it")
    return wrong


def is_of(value: Any, kind: str | None) -> bool:
    types: dict[str, tuple[type, ...]] = {
        "string": (str,),
        "integer": (int,),
        "number": (int, float),
        "boolean": (bool,),
        "null": (type(None),),
        "object": (dict,),
    }
    return kind is None or isinstance(value, types[kind])


def check(reply: Any, kind: str) -> None:
    assert unreadable(reply, REPLIES[kind], REPLIES[kind]) == []


def test_an_agent_of_the_release_before_trains_saves_and_ends(master: HttpMaster) -> None:
    agent = launched(master, max_duration="1h", hang_after="10m", logs={"max": "5MB"})
    join, *syncs = MESSAGES
    answer = master.post(join["path"], json={**join["body"], "token": agent.join_token}, token="")
    assert answer.status_code == 200, answer.text
    check(answer.json(), "join")
    session, vm = answer.json()["session"], answer.json()["vm"]
    newest = 0
    for message in syncs:
        answer = master.post(message["path"], json={**message["body"], "vm": vm}, token=session)
        assert answer.status_code == 200, answer.text
        check(answer.json(), "sync")
        newest = max([newest, *(report["seq"] for report in message["body"]["reports"])])
        assert answer.json()["ack_seq"] == newest
        master.look(1.0)
    with master.services.db.read() as session_:
        row = session_.get_one(VmRow, vm)
        saves = [(each.n, each.step) for each in session_.query(Checkpoint).order_by(Checkpoint.n)]
        told = [each.text for each in session_.query(Event).where(Event.kind == "message")]
    assert (row.protocol, saves) == (1, [(2, 8), (3, 10), (4, 12)])
    assert told == ["the disk is nearly full"]


def test_every_report_of_that_release_is_among_the_messages() -> None:
    sent = {e["report"]["kind"] for m in MESSAGES[1:] for e in m["body"]["reports"]}
    rest = {"fenced", "preparation_failed"}  # which end the attempt in other ways
    assert sent | rest >= {
        *("phase", "prepared", "fenced_in", "restored", "started", "steps", "metrics"),
        *("save_requested", "committed", "notice", "acknowledged", "exited", "message"),
        "protection",
    }


def test_what_a_newer_agent_can_read_is_agreed_on_at_the_join(
    master: HttpMaster, tmp_path: Path
) -> None:
    home = (tmp_path / "home" / "storage").as_uri()
    storages = [home, {"url": f"{home}/near", "region": "west", "cloud": "here"}]
    agent = launched(master, max_duration="1h", checkpoint={"storage": storages})
    body = {"token": agent.join_token, "agent_version": "9"}
    left, stores = {}, {}
    for said, spoken in ((None, "1"), (f"1-{PROTOCOL + 5}", str(PROTOCOL)), (speaks(), "2")):
        headers = {} if said is None else {SPEAKS: said}
        answer = master.call("POST", "/agent/v1/join", json=body, token="", headers=headers)
        assert answer.headers[SPOKEN] == spoken
        assignment = answer.json()["assignment"]
        left[spoken] = "ends_in_s" in assignment
        assert assignment["storage"]["url"] == home
        stores[spoken] = [each["region"] for each in assignment.get("stores", ())]
        assert ("cloud" in assignment) == ("region" in assignment) == (spoken == "2")
    assert left == {"1": False, "2": True}
    assert stores == {"1": [], "2": ["", "west"]}


@pytest.mark.parametrize(
    ("said", "hint"),
    [("3-4", "upgrade the master"), ("0-0", "pause its job and resume it"), ("x", "such as '1-2'")],
)
def test_a_version_that_is_not_spoken_is_refused_with_what_to_do(
    master: HttpMaster, said: str, hint: str
) -> None:
    with pytest.raises(UnspokenProtocol, match=hint):
        agree(said)
    body = {"token": "t", "agent_version": "9"}
    headers = {SPEAKS: said}
    answer = master.call("POST", "/agent/v1/join", json=body, token="", headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (400, "wrong_protocol")
