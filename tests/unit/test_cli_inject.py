"""`spothop inject`, `pools` and `simulate` against a scripted master."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer

from spothop.cli import inject, run
from spothop.cli.session import Session
from spothop.cli.simulate import simulate
from spothop.sdk.errors import ClientError
from spothop.sdk.settings import ClientSettings
from spothop.wire import (
    InjectionView,
    InjectRequest,
    JobDetail,
    Pool,
    PoolView,
    Problem,
    StorageSpec,
)

NOW = datetime(2026, 5, 1, tzinfo=timezone.utc)
POOL = Pool(cloud="local", region="local", zone="zone-a", vm="small")


def view(request: InjectRequest, *, vm: str | None = None, **more: Any) -> InjectionView:
    return InjectionView(
        **{
            "job": "j-1", "vm": vm, "mttp_s": request.mttp_s, "lives": len(request.lives_s),
            "seed": request.seed, "no_notice": request.no_notice, "started_at": NOW, "done": 0,
            "ended_at": None, "reason": "", **more,
        }
    )  # fmt: skip


def pool_view(**more: Any) -> PoolView:
    return PoolView(
        **{
            "pool": POOL, "price": 0.21, "on_demand_price": 0.6, "grace_s": 4, "lives": 41,
            "region_lives": 50, "censored": 3, "alive": 1, "mttp_s": 10_920, "mttp_low_s": 8000,
            "mttp_high_s": 15_000, "mttp_assumed": False, "median_life_s": 7000,
            "allocation_s": 30, "preparation_s": 12, "restart_s": 42, "restart_assumed": False,
            "notices": 40, "notices_kept": 38, "notice_share": 0.93, "notice_low": 0.86,
            "notice_high": 0.98, **more,
        }
    )  # fmt: skip


@dataclass
class FakeMaster:
    """Knows job `j-1` and VM `vm-1`; `answer` replaces every answer."""

    asked: list[str] = field(default_factory=list)
    requests: list[InjectRequest] = field(default_factory=list)
    pools: list[PoolView] = field(default_factory=lambda: [pool_view()])
    answer: Callable[[], httpx.Response] | None = None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/api/v1")
        self.asked.append(f"{request.method} {path}")
        if self.answer is not None:
            return self.answer()
        if path == "/pools":
            return httpx.Response(200, json=[p.model_dump(mode="json") for p in self.pools])
        if path not in ("/jobs/j-1/injection", "/vms/vm-1/injection"):
            return problem(404, "no_such_job", "no such thing")
        vm = "vm-1" if path.startswith("/vms") else None
        if request.method == "DELETE":
            done = view(InjectRequest(mttp_s=[5]), vm=vm, done=3, ended_at=NOW, reason="you did")
            return httpx.Response(200, content=done.model_dump_json())
        self.requests.append(InjectRequest.model_validate_json(request.content))
        return httpx.Response(201, content=view(self.requests[-1], vm=vm).model_dump_json())


def problem(status: int, error: str, message: str) -> httpx.Response:
    body = Problem(error=error, message=message, hint="the way out").model_dump()
    return httpx.Response(status, json=body)


def session(master: FakeMaster, **more: Any) -> Session:
    settings = ClientSettings(url="http://master", token="t", home=Path("/nonexistent"))
    transport = httpx.MockTransport(master)
    return Session(settings=settings, transport=transport, terminal=False, can_ask=False, **more)


def cli(master: FakeMaster, *arguments: str, **more: Any) -> int:
    return run(list(arguments), session(master, **more))


# --- inject -------------------------------------------------------------------------------------


def test_mean_lives_in_seconds_and_durations(capsys: pytest.CaptureFixture[str]) -> None:
    master = FakeMaster()
    assert cli(master, "inject", "j-1", "--mttp", "600, 20m,1h30m", "--seed", "7") == 0
    (asked,) = master.requests
    assert (asked.mttp_s, asked.seed, asked.no_notice) == ([600, 1200, 5400], 7, 0)
    out = capsys.readouterr().out
    assert (
        "j-1: exponential lives, MTTP 10 min, 20 min, 1 h 30 min, seed 7; 0 preemptions so far"
        in out
    )


def test_a_seed_is_chosen_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    master = FakeMaster()
    cli(master, "inject", "j-1", "--mttp", "600", "--no-notice", "0.05", "--json")
    assert json.loads(capsys.readouterr().out)["seed"] == master.requests[0].seed
    assert master.requests[0].no_notice == 0.05


def test_the_target_may_be_a_vm(capsys: pytest.CaptureFixture[str]) -> None:
    master = FakeMaster()
    assert cli(master, "inject", "vm-1", "--mttp", "600") == 0
    assert master.asked == ["POST /jobs/vm-1/injection", "POST /vms/vm-1/injection"]
    assert "only VM vm-1" in capsys.readouterr().out
    assert cli(master, "inject", "nothing", "--mttp", "600") != 0
    assert "no job and no VM 'nothing'" in capsys.readouterr().err


def test_stop(capsys: pytest.CaptureFixture[str]) -> None:
    master = FakeMaster()
    assert cli(master, "inject", "j-1", "--stop") == 0
    assert master.asked == ["DELETE /jobs/j-1/injection"]
    assert "ended after 3: you did" in capsys.readouterr().out


def test_a_refusal_is_told_and_no_vm_is_tried(capsys: pytest.CaptureFixture[str]) -> None:
    master = FakeMaster(answer=lambda: problem(409, "on_demand", "'x' is on demand"))
    assert cli(master, "inject", "x", "--mttp", "600") != 0
    assert len(master.asked) == 1
    err = capsys.readouterr().err
    assert "'x' is on demand" in err
    assert "the way out" in err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--mttp", "600", "--trace", "lives.csv"],
        ["--mttp", "0"],
        ["--mttp", "-5"],
        ["--mttp", "600,"],
        ["--mttp", "soon"],
        ["--mttp", "nan"],
        ["--mttp", "inf"],
        ["--mttp", "600", "--zone", "a"],
        ["--mttp", "600", "--no-notice", "1.5"],
        ["--mttp", "600", "--no-notice", "nan"],
        ["--mttp", "600", "--seed", "-1"],
        ["--mttp", "600", "--seed", "9" * 23],
        ["--mttp", ",".join(["1"] * 1001)],
        ["--mttp", "600", "--stop"],
    ],
)
def test_nonsense_asks_nobody(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    master = FakeMaster()
    assert cli(master, "inject", "j-1", *arguments) == 2
    assert master.asked == []
    assert capsys.readouterr().err


def test_a_refused_option_is_named_with_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(FakeMaster(), "inject", "j-1", "--mttp", "600", "--seed", "9" * 23) == 2
    assert f"--seed: {'9' * 23}: should be less than" in capsys.readouterr().err


def test_show_tells_of_the_injection(capsys: pytest.CaptureFixture[str]) -> None:
    shown = JobDetail(
        id="j-1", name="j", owner="admin", state="running", wanted="running", reason="",
        submitted_at=NOW, ended_at=None, attempt=1, vm=None, pool=None, step=3, metrics={},
        preemptions=2, saves={}, cost=0, on_demand_cost=0, insurance=None, spec={}, attempts=[],
        storage=StorageSpec(url="file:///s"), vms=[], checkpoints=[], useful_s=1,
        recomputed_steps=0, lost_s=0, lost_cost=0, log_tail="",
        injection=view(InjectRequest(lives_s=[5, 6], no_notice=0.25), done=2),
    )  # fmt: skip
    master = FakeMaster(answer=lambda: httpx.Response(200, content=shown.model_dump_json()))
    assert cli(master, "show", "j-1") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "injection 2 lives of a trace, seed 0, 25% without notice; 2 preemptions so far" in out


# --- traces -------------------------------------------------------------------------------------


def zones(tmp_path: Path, **available: Any) -> Path:
    path = tmp_path / "zones.json"
    content = {"gap_seconds": 60, "zones": {k: {"available": v} for k, v in available.items()}}
    path.write_text(json.dumps(content))
    return path


def lives_csv(tmp_path: Path) -> Path:
    """Deaths at 10, 20, ... 100 s, in their order, and ten lives cut short at 200 s."""
    path = tmp_path / "lives.csv"
    rows = [f"{10 * n},preempted" for n in range(1, 11)] + ["200,stop"] * 10
    path.write_text("\n".join(["lifetime_s,end", *rows]))
    return path


def test_a_csv_of_lives_is_drawn_from_with_those_cut_short(tmp_path: Path) -> None:
    path = lives_csv(tmp_path)
    drawn = [inject.lives(path, None, seed=seed) for seed in range(200)]
    assert {len(lives) for lives in drawn} == {20}
    seen = [life for lives in drawn for life in lives]
    assert set(seen) == {*range(10, 101, 10), 200}
    # Efron's mean; those that ended in a preemption alone have one of 55 s
    assert statistics.mean(seen) == pytest.approx(0.5 * 55 + 0.5 * 200, rel=0.05)
    assert any(lives != sorted(lives) for lives in drawn)


def test_the_seed_draws_the_lives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, master = lives_csv(tmp_path), FakeMaster()
    for seed in ("7", "7", "8"):
        assert cli(master, "inject", "j-1", "--trace", str(path), "--seed", seed) == 0
    first, again, other = (request.lives_s for request in master.requests)
    assert first == again == inject.lives(path, None, seed=7)
    assert first != other
    assert "20 lives of a trace, seed 8" in capsys.readouterr().out


def test_node_events_are_lives(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text("0,add,a\n1000,add,b\n5000,remove,b\n9000,remove,a\n9000,add,c\n")
    assert set(inject.lives(path, None, seed=1)) <= {4, 9}


def test_help_says_what_becomes_of_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(FakeMaster(), "inject", "--help") == 0
    assert "drawn by the seed" in " ".join(capsys.readouterr().out.split())


def test_the_runs_of_a_zone_where_1_means_available(tmp_path: Path) -> None:
    path = zones(tmp_path, a=[[1, 2], [0, 5], [1, 3], [0, 1], [1, 9]], b=[[1, 20]])
    assert inject.lives(path, "a", seed=1) == [120, 180]  # the last run is cut off by the window
    with pytest.raises(typer.BadParameter, match="choose one: --zone a, b"):
        inject.lives(path, None, seed=1)
    with pytest.raises(ClientError, match="never taken away"):
        inject.lives(path, "b", seed=1)
    with pytest.raises(ClientError, match="no zone"):
        inject.lives(path, "c", seed=1)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "lifetime_s,end\n30,preempted\n",  # fewer than two
        "lifetime_s,end\n30,stop\n40,stop\n",  # no preemption
        "lifetime_s,end\n-1,preempted\n4,preempted\n",
        "lifetime_s,end\n0,preempted\n4,preempted\n",
        "0,add,a\n1,remove,b\n",
    ],
)
def test_a_trace_that_is_none(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lives.csv"
    path.write_text(content)
    master = FakeMaster()
    assert cli(master, "inject", "j-1", "--trace", str(path)) == 1
    assert master.asked == []
    assert "docs/checkpointing.md" in capsys.readouterr().err


def test_the_wrong_sign_and_gaps_are_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"gap_seconds": 60, "zones": {"a": {"unavailable": [[1, 2]]}}}))
    with pytest.raises(ClientError, match="1 = unavailable"):
        inject.lives(wrong, None, seed=1)
    with pytest.raises(ClientError, match="gaps"):
        inject.lives(zones(tmp_path, a=[[1, 2]], b=[[1, 3]]), None, seed=1)


# --- pools and simulate -------------------------------------------------------------------------


def test_pools(capsys: pytest.CaptureFixture[str]) -> None:
    master = FakeMaster(pools=[pool_view(), pool_view(mttp_assumed=True, lives=0)])
    assert cli(master, "pools") == 0
    out = capsys.readouterr().out
    for shown in (
        "zone-a/small",
        "3 h 2 min",
        "2h13min-4h10min",
        "41+3",
        "30s+12s",
        "38/40  93%",
        "* assumed",
    ):
        assert shown in out
    assert "KEPT: notices after which" in out
    cli(FakeMaster(pools=[pool_view(closed="aws: throttled, until 12:03:00 UTC")] * 2), "pools")
    assert capsys.readouterr().out.count("left alone: aws: throttled, until 12:03:00 UTC") == 1
    cli(FakeMaster(pools=[pool_view(notices=0, notices_kept=0, notice_share=2 / 3)]), "pools")
    assert "0/0  67%*" in capsys.readouterr().out
    assert cli(FakeMaster(pools=[]), "pools") == 0
    assert "no cloud offers" in capsys.readouterr().out
    assert cli(master, "pools", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["notices_kept"] == 38


def test_prices_of_a_cloud_that_is_away_are_shown_with_their_age(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli(FakeMaster(pools=[pool_view(offer_age_s=299.0)]), "pools") == 0
    assert "answered last" not in capsys.readouterr().out
    assert cli(FakeMaster(pools=[pool_view(offer_age_s=720.0)] * 2), "pools") == 0
    assert capsys.readouterr().out.count("answered last 12 min ago") == 1


def test_simulate_hands_its_arguments_on() -> None:
    became: list[list[str]] = []
    arguments = ["--preset", "thesis-117m", "--policy", "static-51", "--json"]
    assert cli(FakeMaster(), "simulate", *arguments, become=became.append) == 0
    assert became == [[sys.executable, "-m", "spothop.simulator", *arguments]]


def test_simulate_without_its_extra() -> None:
    with pytest.raises(ClientError, match="not_there") as caught:
        simulate(session(FakeMaster(), become=lambda _: None), [], needed=["json", "not_there"])
    assert "spothop[simulator]" in caught.value.hint
