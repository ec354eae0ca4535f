"""`resources` of the job file: what a job asks of its VMs, and what the master makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from spothop import jobfile
from spothop.catalog import table
from spothop.catalog.needs import Amount, Needs, Shape, parse_gpu
from spothop.jobfile import FieldProblem, JobFileError, JobSpec
from spothop.wire import Pool
from spothop_master.core.facts import Match
from spothop_master.core.placement import order
from spothop_master.store.jobs import requirements_of
from support.core_facts import NOW


def spec(resources: object) -> JobSpec:
    return jobfile.parse({"name": "a", "run": "x", "resources": resources})


def problem(resources: object) -> FieldProblem:
    with pytest.raises(JobFileError) as caught:
        spec(resources)
    (found,) = caught.value.problems
    return found


@pytest.mark.parametrize(
    ("written", "needs"),
    [
        ("gpu: A100:8", Needs(gpus=(parse_gpu("A100:8"),))),
        ("gpu: a100", Needs(gpus=(parse_gpu("a100"),))),
        ("gpu: [A100:8, H100:8]", Needs(gpus=(parse_gpu("A100:8"), parse_gpu("H100:8")))),
        ("cpus: 16", Needs(cpus=Amount(16))),
        ("cpus: 16+", Needs(cpus=Amount(16, or_more=True))),
        ("memory: 64+", Needs(memory=Amount(64, or_more=True))),
        ("memory: 7.5", Needs(memory=Amount(7.5))),
        ("{cpus: 4+, memory: 16GB+}", Needs(cpus=Amount(4, True), memory=Amount(16, True))),
        ("vm: p4d.24xlarge", Needs()),
    ],
)
def test_what_yaml_says_is_asked_of_the_vm(written: str, needs: Needs) -> None:
    found = spec(yaml.safe_load(written))
    (choice,) = found.resources.choices()
    assert choice.needs() == needs
    assert jobfile.parse(json.loads(json.dumps(found.as_mapping()))) == found
    assert jobfile.parse(json.loads(json.dumps(found.as_written()))) == found


@pytest.mark.parametrize(
    ("resources", "field", "hint"),
    [
        ({"gpu": "A100:0"}, "resources.gpu[0]", "leave gpu out"),
        ({"gpu": ["A100", "80GB"]}, "resources.gpu[1]", "A100:8"),
        ({"gpu": []}, "resources.gpu", "for example gpu: A100:8"),
        ({"cpus": "many"}, "resources.cpus", "write 16, or 16+"),
        ({"cpus": True}, "resources.cpus", "write 16, or 16+"),
        ({"memory": "64MB"}, "resources.memory", "in GiB"),
        ({"disk": "big"}, "resources.disk", "200GB or 1TB"),
        ({"disk": 0}, "resources.disk", "200GB or 1TB"),
        ({"any_of": [{"cloud": "aws"}, {"gpus": "T4"}]}, "resources.any_of[1].gpus", "mean gpu?"),
    ],
)
def test_what_asks_for_nothing_is_refused_with_a_hint(
    resources: object, field: str, hint: str
) -> None:
    found = problem(resources)
    assert found.field == field
    assert hint in found.hint


@pytest.mark.parametrize(
    ("written", "size"), [(200, 200), ("200GB", 200), ("200 gb", 200), ("2TB", 2000)]
)
def test_a_disk_is_told_in_gb(written: object, size: int) -> None:
    assert requirements_of(spec({"disk": written})).disk_gb == size


def test_an_image_goes_to_the_cloud_as_it_is_written() -> None:
    found = jobfile.parse({"name": "a", "run": "x", "image": "ami-1"})
    assert requirements_of(found).image == "ami-1"
    assert requirements_of(spec({})).image is None


def test_what_stands_beside_any_of_holds_for_each_entry_that_says_nothing_else() -> None:
    asked = {"gpu": "A100:8", "region": "us-east-1", "any_of": [{"cloud": "aws"}, {"gpu": "H100"}]}
    found = requirements_of(spec(asked))
    assert found.any_of == (
        Match(cloud="aws", region="us-east-1", needs=Needs(gpus=(parse_gpu("A100:8"),))),
        Match(region="us-east-1", needs=Needs(gpus=(parse_gpu("H100"),))),
    )
    assert requirements_of(spec({})).any_of == ()
    assert requirements_of(spec({"zone": "b"})).any_of == (Match(zone="b"),)


VM_TYPES = table.packaged().types
OFFERS = {
    Pool(cloud=each.cloud, region="r", zone="r-a", vm=each.vm): each.price() or 999.0
    for each in VM_TYPES
}
SHAPES = {pool: table.packaged().shape(pool.cloud, pool.vm) for pool in OFFERS}


def placed(resources: dict[str, Any]) -> list[str]:
    """The VM types that a job would be placed on, of all that the catalogue has."""
    known = {pool: shape for pool, shape in SHAPES.items() if shape is not None}
    asked = requirements_of(spec(resources))
    choices = order(OFFERS, asked, shapes=known, avoid_s=120, now=NOW)
    return [f"{choice.pool.cloud}/{choice.pool.vm}" for choice in choices]


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    "file", sorted(EXAMPLES.glob("*/*.yaml")), ids=lambda file: file.parent.name
)
def test_the_job_files_of_the_examples_are_taken(file: Path) -> None:
    for choice in jobfile.load(file).resources.choices():
        needs = choice.needs()
        assert not needs or table.packaged().matching(needs, cloud=choice.cloud)


def test_a_job_is_placed_on_the_cheapest_vm_type_that_has_what_it_asks_for() -> None:
    assert placed({"gpu": "A100:8"})[:2] == ["aws/p4d.24xlarge", "azure/Standard_ND96asr_v4"]
    assert placed({"gpu": ["A100-80GB:8", "H100:8"]})[0] == "aws/p4de.24xlarge"
    assert placed({"gpu": "T4", "cloud": "azure"})[0] == "azure/Standard_NC4as_T4_v3"
    assert placed({"vm": "p4d.24xlarge"}) == ["aws/p4d.24xlarge"]
    assert placed({"gpu": "H100:8", "any_of": [{"cloud": "gcp"}, {"vm": "p5.48xlarge"}]}) == [
        "gcp/a3-highgpu-8g",
        "aws/p5.48xlarge",
    ]
    assert len(placed({})) == len(OFFERS)


@given(
    st.integers(1, 100),
    st.integers(1, 800),
    st.sampled_from([None, "T4", "A100", "L4:4+", "H100:8"]),
)
def test_whatever_is_asked_for_each_placement_has_it(
    cpus: int, memory: int, gpu: str | None
) -> None:
    asked: dict[str, Any] = {"cpus": f"{cpus}+", "memory": f"{memory}+"}
    if gpu is not None:
        asked["gpu"] = gpu
    prices = []
    for name in placed(asked):
        cloud, _, vm = name.partition("/")
        shape = table.packaged().shape(cloud, vm)
        assert shape is not None
        assert shape.cpus >= cpus
        assert shape.memory_gib >= memory
        assert bool(shape.gpus) == (gpu is not None)
        prices.append(OFFERS[Pool(cloud=cloud, region="r", zone="r-a", vm=vm)])
    assert prices == sorted(prices)


def test_a_vm_type_of_which_nobody_knows_what_it_has_is_taken_by_name_only() -> None:
    strange = Pool(cloud="x", region="r", zone="r-a", vm="new.type")
    for resources, count in (({"cpus": "1+"}, 0), ({"vm": "new.type"}, 1), ({}, 1)):
        found = order({strange: 1.0}, requirements_of(spec(resources)), avoid_s=120, now=NOW)
        assert len(found) == count


def test_what_the_provider_tells_of_a_vm_type_decides() -> None:
    pool = Pool(cloud="aws", region="r", zone="r-a", vm="m5.large")
    asked = requirements_of(spec({"cpus": 4}))
    (choice,) = order(
        {pool: 1.0}, asked, shapes={pool: Shape(cpus=4, memory_gib=8)}, avoid_s=1, now=NOW
    )
    assert choice.pool == pool
