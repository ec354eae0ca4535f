"""Trace files: the three formats, and every way in which one can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spothop.policy.estimators import Life
from spothop.simulator.traces import (
    TraceError,
    Zone,
    read_lives,
    read_zones,
    zone_lives,
)


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def zones(folder: Path, **changes: Any) -> Path:
    data = {
        "gap_seconds": 60,
        "zones": {
            "a": {"available": [[1, 3], [0, 2]], "price": [[0.9, 5]]},
            "b": {"available": [[0, 1], [1, 4]], "price": [[1.1, 2], [1.2, 3]]},
        },
    }
    return write(folder, json.dumps({**data, **changes}), "zones.json")


def test_lifetimes_that_we_cut_short_are_censored(tmp_path: Path) -> None:
    path = write(tmp_path, "name,lifetime_s,end\na,100.5,preempted\nb,200,stop\n")
    assert read_lives(path) == [
        Life(duration_s=100.5, preempted=True),
        Life(duration_s=200, preempted=False),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "lifetime_s, end\n100.5, preempted\n200, stop\n",
        "Lifetime_S,END\n100.5,PREEMPTED\n200,Stop\n",
        '"lifetime_s", "end"\n"100.5","preempted"\n"200", "censored"\n',
        "\ufefflifetime_s,end\n100.5,preempted\n200,stop\n",
        "end,lifetime_s\n\npreempted,100.5\n\nstop,200\n",
        'name,lifetime_s,end\n"a, b",100.5,preempted\n"c\nd",200,stop\n',
    ],
)
def test_a_header_is_read_as_other_programs_write_it(tmp_path: Path, text: str) -> None:
    assert read_lives(write(tmp_path, text)) == [
        Life(duration_s=100.5, preempted=True),
        Life(duration_s=200, preempted=False),
    ]


def test_a_censored_life_of_0_s_says_nothing_and_is_dropped(tmp_path: Path) -> None:
    events = "0,add,n1\n0,ADD,n2\n5000,remove,n1\n6000,Remove, n2\n6000,add,n3\n"
    assert [life.duration_s for life in read_lives(write(tmp_path, events))] == [5, 6]
    lives = "lifetime_s,end\n5,preempted\n0,stop\n6,stop\n"
    assert [life.duration_s for life in read_lives(write(tmp_path, lives))] == [5, 6]


def test_node_events_become_lives_and_who_is_left_is_censored(tmp_path: Path) -> None:
    path = write(tmp_path, "0,add,n1\n0,add,n2\n5000,remove,n1\n6000,add,n1\n9000,remove,n2\n")
    assert read_lives(path) == [
        Life(duration_s=5, preempted=True),
        Life(duration_s=9, preempted=True),
        Life(duration_s=3, preempted=False),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "0 lives"),
        ("lifetime_s,end\n5,preempted\n", "give at least two lives"),
        ("lifetime_s,end\n5,stop\n6,stop\n", "one preemption"),
        ("lifetime_s,end\n-5,preempted\n", ":2: '-5' is no time"),
        ("lifetime_s,end\nnan,preempted\n", ":2: 'nan' is no time"),
        ("lifetime_s,end\n1e16,preempted\n", ":2: '1e16' is no time"),
        ("lifetime_s,end\n0,preempted\n5,preempted\n", ":2: a life of 0 s .* leave it out"),
        ("5,add,n1\n5,remove,n1\n", ":2: a life of 0 s"),
        ("lifetime_s\n5\n6\n", ":1: no column `end`, only lifetime_s; add one .* `preempted`"),
        (
            "lifetime_s,end\n5,preempted\n6,lost\n",
            ":3: end is 'lost'; it is `preempted`, or `stop`",
        ),
        ("lifetime_s,end\n5,preempted\n6,\n", ":3: end is ''"),
        ("lifetime_s,end\n5,preempted\n6\n", ":3: 1 cells where the header has 2"),
        ("lifetime_s,end\n5,preempted\n6," + 200_000 * "x", ":3: field larger than"),
        ("lifetime,end\n5,preempted\n", ":1: 'lifetime,end' is neither .* lifetime_s and end"),
        ("0,add,n1\n0,add,n1\n", ":2: add of n1"),
        ("0,remove,n1\n", ":1: remove of n1"),
        ("5,add,n1\n4,remove,n1\n", ":2: time runs backwards"),
        ("hello\n", ":1: 'hello' is neither"),
    ],
)
def test_bad_lives_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_lives(write(tmp_path, text))


def test_zones_are_unpacked_tick_by_tick(tmp_path: Path) -> None:
    trace = read_zones(zones(tmp_path))
    assert trace.tick_s == 60
    assert trace.zones[0] == Zone(
        name="a", available=(True, True, True, False, False), price=(0.9,) * 5
    )
    assert read_zones(zones(tmp_path, zones={"a": {"available": [[1, 5]]}})).zones[0].price is None
    assert [zone.name for zone in read_zones(zones(tmp_path), names=["b"]).zones] == ["b"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"zones": {}}, "no `zones`"),
        ({"gap_seconds": 0}, "gap_seconds is 0; it is the length of a tick, 0.001 to"),
        ({"gap_seconds": True}, "gap_seconds is True"),
        ({"gap_seconds": 10**400}, "gap_seconds is 1000"),
        ({"zones": {"a": {"available": [[1, 10**7], [0, 1]]}}}, r"\[0, 1\] is no .* 10,000,000"),
        ({"zones": {"a": {"available": [[1, 5]], "price": [[1e7, 5]]}}}, "between 0 and 1e.06"),
        ({"zones": {"a": {"available": [[1, 5]], "price": [[10**400, 5]]}}}, "a.price: .1000"),
        ({"zones": {"a": {"unavailable": [[1, 5]]}}}, "1 = unavailable must be inverted"),
        ({"zones": {"a": {"available": [[2, 5]]}}}, "values other than 0 and 1"),
        ({"zones": {"a": {"available": [[1, 0]]}}}, r"no \[value, ticks\]"),
        ({"zones": {"a": {"available": [[1, 2]], "price": [[1, 3]]}}}, "there is a gap"),
        ({"zones": {"a": {"available": [[0, 2]]}}}, "no zone is ever available"),
        (
            {"zones": {"a": {"available": [[1, 2]]}, "b": {"available": [[1, 3]]}}},
            "lengths differ",
        ),
    ],
)
def test_bad_zones_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_zones(zones(tmp_path, **changes))


def test_a_bare_list_may_have_the_wrong_sign_and_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="1 = unavailable"):
        read_zones(write(tmp_path, "[0, 1, 1]", "zones.json"))
    with pytest.raises(TraceError, match="not JSON"):
        read_zones(write(tmp_path, "{", "zones.json"))
    for text in ('{"gap_seconds": ' + 5_000 * "9" + "}", 100_000 * "["):
        with pytest.raises(TraceError, match="not JSON"):
            read_zones(write(tmp_path, text, "zones.json"))
    with pytest.raises(TraceError, match="null"):
        read_zones(tmp_path / "no\0thing.json")
    with pytest.raises(TraceError, match="no zone"):
        read_zones(zones(tmp_path), names=["z"])
    with pytest.raises(TraceError, match="No such file"):
        read_zones(tmp_path / "nowhere.json")


def test_runs_of_a_zone_are_lives_and_the_last_is_cut_by_the_window() -> None:
    zone = Zone(name="a", available=(True, False, True, True), price=(1.0,) * 4)
    assert zone_lives(zone, 60) == [
        Life(duration_s=60, preempted=True),
        Life(duration_s=120, preempted=False),
    ]
