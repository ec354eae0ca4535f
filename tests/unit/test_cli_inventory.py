"""`spothop vms --cloud`, and the end of everything, against a scripted master."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest
import typer

from fakes.cli_master import NOW, POOL, Cli, in_80_columns, reply
from spothop.wire import InventoryView, InventoryVm, ListedAs, RemainView


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return in_80_columns(capsys, monkeypatch)


def inventory(*found: InventoryVm, **more: Any) -> InventoryView:
    empty = {"cloud": "local", "remains": [], "jobs": 0, "errors": []}
    return InventoryView(**{**empty, "vms": list(found), **more})


def listed(name: str, how: ListedAs = ListedAs.KNOWN, *, note: str = "") -> InventoryVm:
    return InventoryVm(
        cloud_id=name, pool=POOL, state="running", listed_as=how, vm=None, note=note,
        requested_at=NOW - timedelta(hours=2), job=None, price=0.5,
    )  # fmt: skip


VOLUME = RemainView(kind="volume", id="vol-1", region="r", detail="8 GiB, unattached")


def test_what_the_clouds_list_is_shown_beside_what_the_master_knows(cli: Cli) -> None:
    found = inventory(
        listed("i-1"), listed("i-2", ListedAs.ORPHAN, note="the sweep ends it"),
        listed("i-3", ListedAs.UNLISTED), remains=[VOLUME],
    )  # fmt: skip
    cli.master.scripted["GET /inventory"] = reply([found])
    assert cli("vms", "--cloud") == 0
    for expected in (
        "known",
        "i-2: the sweep ends it",
        "2 VMs listed, 1.0000 USD/h, 1 orphan, 1 not listed, 1 left over",
        "left over: volume vol-1",
    ):
        assert expected in " ".join(cli.out.split()), cli.out
    assert cli("vms", "--cloud", "--json") == 0
    assert [vm["cloud_id"] for vm in json.loads(cli.out)[0]["vms"]] == ["i-1", "i-2", "i-3"]
    cli.master.scripted["GET /inventory"] = reply([inventory(errors=["r is away"])])
    assert cli("vms", "--cloud") == 1
    assert "error: r is away" in cli.out
    assert cli("vms", "--cloud", "local") == 0
    assert cli.master.params["cloud"] == "local"
    assert cli.master.asked[-1] == "GET /vms", "with a name it chooses among the master's rows"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--terminate-all"],
        ["--cloud", "--now"],
        ["--cloud", "--terminate-all", "--job", "x"],
        ["--cloud", "--strays"],
    ],
)
def test_the_end_of_everything_has_to_be_meant(cli: Cli, arguments: list[str]) -> None:
    assert cli("vms", *arguments, "--yes") == 2
    assert cli.master.asked == []


END = "POST /inventory/local/end"


def steps(*found: InventoryView) -> Callable[[httpx.Request], httpx.Response]:
    """One after the other; the last one stays."""
    left = [*found]
    return lambda request: reply(left.pop(0) if len(left) > 1 else left[0])


def test_everything_ends_and_is_waited_for(cli: Cli) -> None:
    cli.master.scripted["GET /inventory"] = reply([inventory(listed("i-1"), jobs=2)])
    cli.master.scripted[END] = steps(
        inventory(listed("i-1"), jobs=1), inventory(remains=[VOLUME]), inventory()
    )
    assert cli("vms", "--cloud", "--terminate-all") == 1, "nobody can be asked"
    assert "--yes" in cli.err
    assert END not in cli.master.asked
    assert cli("vms", "--cloud", "--terminate-all", "--yes") == 0
    assert cli.master.asked.count(END) == 3
    assert cli.master.params == {"now": "false"}
    assert "local: 1 VM listed, 0.5000 USD/h, 1 job" in cli.err
    assert "nothing of this installation is left in local" in cli.out
    assert cli("vms", "--cloud", "local", "--terminate-all", "--yes", "--now", "--json") == 0
    assert cli.master.params == {"now": "true"}
    assert json.loads(cli.out)[0]["vms"] == []


def test_the_question_names_jobs_and_vms(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(typer, "confirm", lambda text: bool(asked.append(text)))
    cli.can_ask = True
    cli.master.scripted["GET /inventory"] = reply([inventory(listed("i-1"), jobs=2)])
    assert cli("vms", "--cloud", "--terminate-all") == 1
    assert asked == ["Cancel 2 jobs after a save, and end 1 VM and all else in local?"]
    assert END not in cli.master.asked


def test_a_region_that_stays_away_is_told_in_the_end(cli: Cli) -> None:
    away = inventory(errors=["local r does not list its VMs: away"])
    cli.master.scripted["GET /inventory"] = reply([away])
    cli.master.scripted[END] = reply(away)
    assert cli("vms", "--cloud", "--terminate-all", "--yes") == 1
    assert cli.master.asked.count(END) == 6
    assert "does not list its VMs: away" in cli.out
    assert "something of this installation is left in local, or may be" in cli.out
