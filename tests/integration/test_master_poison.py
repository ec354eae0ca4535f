"""What an agent may say that makes no sense: none of it stops what comes behind it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.http_master import HttpAgent, HttpMaster
from spothop.wire import MAX_METRICS, MAX_REPORTS, MAX_TEXT, SyncRequest
from spothop_master.agents import quarantine, reading, reports
from support.examples import examples

JOBS = "/api/v1/jobs"
COMMITTED = {
    "kind": "committed",
    "n": 2,
    "step": 5,
    "save": "periodic",
    "bytes": 9,
    "delta_s": 0.1,
    "beta_s": 0.1,
}
STEPS = {"kind": "steps", "step": 7, "count": 1, "step_s": 0.5, "load_s": 0.0}
ENDLESS = "stands for a number that Python does not write"


@pytest.fixture
def master(tmp_path: Path) -> Iterator[HttpMaster]:
    with HttpMaster(tmp_path) as master:
        yield master


@pytest.fixture
def agent(master: HttpMaster) -> HttpAgent:
    agent = master.joined()
    agent.train(5)
    return agent


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpAgent]:
    """One agent for all examples."""
    with HttpMaster(tmp_path_factory.mktemp("poison")) as master:
        agent = master.joined()
        agent.train(5)
        yield agent


def say(agent: HttpAgent, *envelopes: object) -> Any:
    """As other programs may write it: Python's JSON has NaN, infinity and lone surrogates."""
    body = {"protocol": 1, "vm": agent.vm, "attempt": 1, "reports": envelopes}
    content = json.dumps(body).replace(f'"{ENDLESS}"', "1" * 5_000)
    return agent.master.post("/agent/v1/sync", content=content, token=agent.session)


def warnings(agent: HttpAgent) -> list[dict[str, Any]]:
    events = agent.master.get(f"{JOBS}/{agent.job}/events").json()
    return [event for event in events if event["data"].get("level") == "warning"]


@pytest.mark.parametrize(
    ("report", "told"),
    [
        ({"kind": "metrics", "step": 2**63, "values": {}}, "metrics report .*step: 9223372036854"),
        ({**STEPS, "step": 2**63}, "steps report .*step: 9223372036854775808: .*left out"),
        ({**STEPS, "step": ENDLESS}, "steps report .*step: inf: "),
        ({**STEPS, "count": -1}, "steps report .*count: -1: .*greater than or equal to 0"),
        ({**STEPS, "step_s": False}, "steps report .*step_s: False: .*valid number"),
        ({**COMMITTED, "bytes": 2**70}, "committed report .*bytes: 1180591620717411303424: "),
        ({**COMMITTED, "beta_s": math.inf}, "committed report .*beta_s: inf: .*finite number"),
        ({"kind": "phase", "phase": "x", "duration_s": math.nan}, "duration_s: nan: .*finite"),
        ({"kind": "of the future", "x": 1}, "of the future report .*kind: "),
        ({"kind": ["x"]}, "a report of the agent: kind: "),
        (None, "a report of the agent: kind: "),
        ({"kind": "prepared", "fields": "of the future"}, "fields: .*the rest of it counts"),
    ],
    ids=str,
)
def test_a_bad_report_is_told_and_stops_no_later_one(
    living: HttpAgent, report: object, told: str
) -> None:
    living.master.clock.advance(3600)  # every hour a few are told
    bad = {**living.envelope(), "report": report}
    later = living.envelope(kind="message", text="later", level="warning")
    assert say(living, bad, later).json()["ack_seq"] == living.seq
    event, after = warnings(living)[-2:]
    assert re.search(told, event["text"]), event["text"]
    assert event["text"].endswith(quarantine.HINT)
    assert event["attempt"] == 1
    assert event["data"]["report"]
    assert after["text"] == "later"


def test_the_exit_behind_a_bad_report_ends_the_job(agent: HttpAgent) -> None:
    bad = agent.envelope(**{**STEPS, "step": 2**63})
    say(agent, bad, agent.envelope(kind="exited", code=0, done=True, step=6))
    agent.master.look()
    job = agent.master.get(f"{JOBS}/{agent.job}").json()
    assert (job["state"], job["step"]) == ("succeeded", 6)


def test_text_is_cut_and_mended_and_never_a_reason_to_refuse(agent: HttpAgent) -> None:
    for text in ("no file '\udcff'", "NUL \0 inside", "long " * 10_000):
        say(agent, agent.envelope(kind="message", text=text))
    events = agent.master.get(f"{JOBS}/{agent.job}/events").json()
    texts = [event["text"] for event in events if event["kind"] == "message"]
    assert texts[:2] == ["no file '?'", "NUL \ufffd inside"]
    assert len(texts[2]) == MAX_TEXT
    assert warnings(agent) == []


def test_what_makes_sense_of_a_bad_report_counts(agent: HttpAgent) -> None:
    metrics = {"loss": math.nan, "lr": 0.1, "n" * 65: 1.0, "a\0b": 1.0}
    say(agent, agent.envelope(kind="metrics", step=6, values=metrics))
    say(agent, agent.envelope(kind="notice", event="e", deadline_in_s=math.nan))
    job = agent.master.get(f"{JOBS}/{agent.job}").json()
    assert job["metrics"] == {"loss": 1.25, "lr": 0.1}
    assert job["attempts"][0]["notice_at"] is not None
    exited = agent.envelope(kind="exited", code=3, step=2**63)
    assert say(agent, exited).json()["ack_seq"] == agent.seq
    attempt = agent.master.get(f"{JOBS}/{agent.job}").json()["attempts"][0]
    assert attempt["places"][0]["exit_code"] == 3
    assert ["the rest of it counts" in event["text"] for event in warnings(agent)] == [True] * 3


def test_of_too_many_metrics_in_a_report_the_first_count(agent: HttpAgent) -> None:
    values = {f"m{number:05d}": 1.0 for number in range(10_000)}
    say(agent, agent.envelope(kind="metrics", step=6, values=values))
    job = agent.master.get(f"{JOBS}/{agent.job}").json()
    assert len(job["metrics"]) == MAX_METRICS + 1  # and the loss


def test_bad_reports_without_end_are_told_a_few_times_an_hour(agent: HttpAgent) -> None:
    for _ in range(30):
        assert say(agent, agent.envelope(kind="nonsense")).json()["ack_seq"] == agent.seq
    assert len(warnings(agent)) == quarantine.MOST
    agent.master.clock.advance(3600)
    say(agent, agent.envelope(kind="nonsense"))
    told = warnings(agent)
    assert len(told) == quarantine.MOST + 1
    assert f"({30 - quarantine.MOST} more before it)" in told[-1]["text"]


def test_a_bad_heartbeat_and_a_bad_age_stop_no_report(agent: HttpAgent) -> None:
    said = {**agent.envelope(kind="message", text="old"), "age_s": "x"}
    told = agent.sync(said, heartbeat={"step": 2**63})
    assert told.json()["ack_seq"] == agent.seq
    texts = [event["text"] for event in agent.master.get(f"{JOBS}/{agent.job}/events").json()]
    assert "old" in texts


def test_more_reports_than_one_sync_may_have_come_again(agent: HttpAgent) -> None:
    before = agent.seq
    many = [agent.envelope(kind="message", text="x") for _ in range(MAX_REPORTS + 5)]
    assert say(agent, *many).json()["ack_seq"] == before + MAX_REPORTS
    assert say(agent, *many[MAX_REPORTS:]).json()["ack_seq"] == agent.seq


def test_a_report_that_meets_a_fault_of_ours_stops_no_later_one(
    agent: HttpAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(context: object, report: object) -> None:
        raise RuntimeError("a bug")

    known = {**reports._APPLY}
    phase = next(kind for kind in known if kind.__name__ == "PhaseReport")
    monkeypatch.setattr(reports, "_APPLY", {**known, phase: fail})
    say(
        agent,
        agent.envelope(kind="phase", phase="setup", duration_s=1.0),
        agent.envelope(kind="exited", code=0, done=True, step=6),
    )
    agent.master.look()
    assert agent.master.get(f"{JOBS}/{agent.job}").json()["state"] == "succeeded"
    assert "phase report" in warnings(agent)[0]["text"]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([2**63, -(2**70), "\0", "\ud800", "loss", "x" * 70, 1e300])
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
KINDS = sorted(kind.model_fields["kind"].default for kind in reports._APPLY)
FIELDS = sorted({field for kind in reports._APPLY for field in kind.model_fields})
BAD_REPORTS = JSON | st.builds(
    lambda kind, fields: {**fields, "kind": kind},
    st.sampled_from([kind for kind in KINDS if kind not in ("exited", "fenced")]),
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=8),
)
BODIES = st.binary(max_size=50) | JSON.map(lambda value: json.dumps(value).encode())


@examples(50)
@given(bad=st.lists(BAD_REPORTS, max_size=3), around=st.dictionaries(st.text(max_size=3), JSON))
def test_whatever_a_report_holds_the_next_one_counts(
    living: HttpAgent, bad: list[Any], around: dict[str, Any]
) -> None:
    envelopes = [{**around, **living.envelope(), "report": report} for report in bad]
    answer = say(living, *envelopes, living.envelope(**STEPS))
    assert answer.status_code == 200, answer.text
    assert answer.json()["ack_seq"] == living.seq


@examples(50)
@given(body=BODIES, path=st.sampled_from(["sync", "join", "logs?attempt=1&offset=0"]))
def test_whatever_comes_is_answered(living: HttpAgent, body: bytes, path: str) -> None:
    answer = living.master.post(f"/agent/v1/{path}", content=body, token=living.session)
    assert answer.status_code < 500, answer.text


def test_the_master_takes_the_largest_body_that_an_agent_of_any_release_sends(
    agent: HttpAgent,
) -> None:
    """One that is refused comes again for ever, with the VM's notice and its exit behind it."""
    text = "x" * MAX_TEXT
    first = agent.seq + 1
    reports = [
        {"seq": first + i, "age_s": 0, "attempt": 1, "report": {"kind": "message", "text": text}}
        for i in range(430)
    ]
    assert len(json.dumps(reports)) > 4 << 20
    answer = say(agent, *reports)
    assert answer.status_code == 200, answer.text
    assert answer.json()["ack_seq"] == first + 429


@pytest.mark.parametrize(
    "report",
    [
        {"kind": "metrics", "step": 1, "values": {f"m{n}": "x" for n in range(90_000)}},
        {**STEPS, **{f"k{n}": 1 for n in range(90_000)}},
    ],
    ids=["values", "keys"],
)
def test_a_long_body_of_nothing_but_faults_is_not_read_to_its_end(
    agent: HttpAgent, report: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault takes time, and in the event loop all other agents would wait for that."""
    monkeypatch.setattr(SyncRequest, "model_validate_json", None)
    seen: list[int] = []
    without = reading._without

    def counted(said: Any, errors: Any) -> Any:
        seen.append(len(errors))
        return without(said, errors)

    monkeypatch.setattr(reading, "_without", counted)
    answer = say(agent, agent.envelope(**report), agent.envelope(**STEPS))
    assert answer.json()["ack_seq"] == agent.seq
    assert 0 < sum(seen) <= 3 * reading.KEYS
