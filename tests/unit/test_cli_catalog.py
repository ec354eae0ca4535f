"""`spothop catalog`: VM types without a master."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.cli_master import Cli, in_80_columns, pool_view, reply
from spothop.catalog import table
from spothop.wire import Pool, PoolView


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return in_80_columns(capsys, monkeypatch)


def vm_types(cli: Cli) -> list[str]:
    return [line.split()[0] for line in cli.out.splitlines() if line.startswith(CLOUDS)]


CLOUDS = ("aws/", "azure/", "gcp/")


def test_it_asks_no_master(cli: Cli) -> None:
    assert cli("catalog") == 0
    assert cli.master.asked == []


def test_without_a_filter_it_tells_the_kinds_of_gpu(cli: Cli) -> None:
    assert cli("catalog") == 0
    for kind in table.packaged().gpus():
        assert f"\n{kind} " in cli.out
    plain = sum(not each.shape.gpus for each in table.packaged().types)
    assert f"and {plain} VM types without a GPU" in cli.out


def test_a_gpu_without_a_number_shows_every_number_the_cheapest_first(cli: Cli) -> None:
    assert cli("catalog", "--gpu", "a100-80gb", "--cloud", "gcp") == 0
    assert vm_types(cli) == [f"gcp/a2-ultragpu-{n}g" for n in (1, 2, 4, 8)]
    assert cli("catalog", "--gpu", "A100:8", "--gpu", "H100:8", "--cloud", "aws") == 0
    assert vm_types(cli) == ["aws/p4d.24xlarge", "aws/p4de.24xlarge", "aws/p5.48xlarge"]


def test_filters_hold_together_and_a_region_shows_its_price(cli: Cli) -> None:
    asked = ["--cpus", "8+", "--memory", "64", "--cloud", "aws", "--region", "us-east-1"]
    assert cli("catalog", *asked) == 0
    assert vm_types(cli)[0] == "aws/r5.2xlarge"
    assert " 0.504 " in cli.out
    assert "GPU" not in cli.out, "a column that says nothing"
    assert cli("catalog", *asked[:-1], "mars-1") == 0
    assert cli.out == "the catalogue has no such VM type with a known price in mars-1\n"


def test_a_long_list_says_how_many_there_are_more(cli: Cli) -> None:
    assert cli("catalog", "--cloud", "aws") == 0
    count = sum(each.cloud == "aws" for each in table.packaged().types)
    assert len(vm_types(cli)) == 50
    assert f"{count - 50} more; --all shows them" in cli.out
    assert cli("catalog", "--cloud", "aws", "--all") == 0
    assert len(vm_types(cli)) == count


def test_live_shows_what_the_master_offers_in_its_cheapest_zone(cli: Cli) -> None:
    def offer(vm: str, zone: str, price: float, *, spot: bool = True) -> PoolView:
        pool = Pool(cloud="aws", region=zone[:-1], zone=zone, vm=vm, spot=spot)
        return pool_view().model_copy(update={"pool": pool, "price": price})

    told = [
        offer("g5.xlarge", "us-east-1a", 0.5),
        offer("g5.xlarge", "us-east-1b", 0.4),
        offer("g5.xlarge", "us-west-2a", 0.6),
        offer("g5.xlarge", "us-east-1c", 0.1, spot=False),
        offer("g5.2xlarge", "us-west-2a", 0.3),
        offer("m5.large", "us-east-1a", 0.05),
    ]
    cli.master.scripted["GET /pools"] = reply(told)
    assert cli("catalog", "--gpu", "A10G", "--live") == 0
    assert [line.split() for line in cli.out.splitlines()[1:3]] == [
        ["aws/g5.2xlarge", "1", "A10G", "24GB", "8", "32", "0.3", "0.4", "us-west-2a"],
        ["aws/g5.xlarge", "1", "A10G", "24GB", "4", "16", "0.4", "0.4", "us-east-1b"],
    ]
    assert cli("catalog", "--gpu", "A10G", "--live", "--region", "us-west-2", "--json") == 0
    found = json.loads(cli.out)
    assert [(each["vm"], each["offer"]["price"]) for each in found] == [
        ("g5.2xlarge", 0.3),
        ("g5.xlarge", 0.6),
    ]
    assert cli("catalog", "--gpu", "H100", "--live") == 0
    assert cli.out == "the master's clouds offer no such VM type as spot now\n"


def test_json_has_all_facts(cli: Cli) -> None:
    assert cli("catalog", "--gpu", "H200", "--json") == 0
    found = {each["vm"]: each for each in json.loads(cli.out)}
    assert found["p5en.48xlarge"].pop("prices")["us-east-1"] == 63.296
    assert found["p5en.48xlarge"] == {
        "cloud": "aws",
        "vm": "p5en.48xlarge",
        "gpu": "H200",
        "gpus": 8,
        "gpu_memory_gib": 141,
        "cpus": 192,
        "memory_gib": 2048,
        "arch": "x86_64",
    }
    assert found["p5e.48xlarge"]["prices"] == {}
    assert cli("catalog", "--json") == 0
    assert len(json.loads(cli.out)) == len(table.packaged().types)


def test_a_file_of_ones_own_is_laid_over_it(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("cloud,vm,cpus,memory_gib,prices\nlab,big,64,512,here=0.5\n")
    assert cli("catalog", "--file", str(file), "--cloud", "lab") == 0
    assert cli.out.splitlines()[1].split() == ["lab/big", "64", "512", "0.5", "here"]
    file.write_text("nonsense\n")
    assert cli("catalog", "--file", str(file)) == 2
    assert "own.csv: no column 'nonsense'" in cli.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--gpu", "A1000"], "--gpu: 'A1000': no GPU of this name is known; did you mean A100"),
        (["--gpu", "A100:0"], "--gpu: 'A100:0': asks for no GPU"),
        (["--cpus", "few"], "--cpus: 'few' is not a number of virtual CPUs"),
        (["--memory", "few"], "--memory: 'few' is not an amount of memory"),
        (["--cloud", "aw"], "--cloud: 'aw' is not in the catalogue, which has aws, azure, gcp"),
    ],
)
def test_wrong_filters_name_option_value_and_what_would_do(
    cli: Cli, arguments: list[str], told: str
) -> None:
    assert cli("catalog", *arguments) == 2
    assert told in cli.err
