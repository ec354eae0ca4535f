"""The catalogue of VM types: what a job asks for, which VM types have it, and the data file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.catalog import needs, table
from spothop.catalog.needs import Amount, GpuName, Needs, NotANeed, Shape
from support import catalog_file

A100_40 = Shape(cpus=96, memory_gib=1152, gpu="A100", gpus=8, gpu_memory_gib=40)
A100_80 = Shape(cpus=96, memory_gib=1152, gpu="A100", gpus=8, gpu_memory_gib=80)
A10G = Shape(cpus=4, memory_gib=16, gpu="A10G", gpus=1, gpu_memory_gib=24)
PLAIN = Shape(cpus=16, memory_gib=64)
ARM = Shape(cpus=16, memory_gib=64, arch="arm64")


@pytest.mark.parametrize(
    ("written", "key", "memory"),
    [
        ("A100", "a100", None),
        ("a100", "a100", None),
        ("A100-80GB", "a100", 80),
        ("a100_80g", "a100", 80),
        ("NVIDIA A100 80GB", "a100", 80),
        ("nvidia-a100-sxm4-40gb", "a100", 40),
        ("H100-PCIe", "h100", None),
        ("Tesla V100-32GB", "v100", 32),
        ("tesla-t4", "t4", None),
        ("T4g", "t4g", None),
        ("A10", "a10", None),
        ("a10g", "a10g", None),
        ("L40S", "l40s", None),
        ("RTX PRO 6000", "rtxpro6000", None),
        ("rtx-pro-6000", "rtxpro6000", None),
        ("GeForce RTX 4090", "rtx4090", None),
    ],
)
def test_a_gpu_is_found_however_people_write_it(written: str, key: str, memory: int | None) -> None:
    assert needs.gpu_name(written) == GpuName(key, memory)


@pytest.mark.parametrize("text", ["", " ", "80GB", "nvidia", "A100:0", "A100:x", "A100:8:1", ":8"])
def test_what_is_no_gpu_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(NotANeed) as caught:
        needs.parse_gpu(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("64", Amount(64)),
        ("64+", Amount(64, True)),
        ("64GB", Amount(64)),
        ("64 GiB +", Amount(64, True)),
        ("1TB+", Amount(1024, True)),
        ("7.5", Amount(7.5)),
    ],
)
def test_memory_is_in_gib_with_or_without_its_unit(text: str, amount: Amount) -> None:
    assert needs.parse_memory(text) == amount


@pytest.mark.parametrize("text", ["", "0", "-4", "4.5", "many", "4++", "4 cores"])
def test_what_is_no_number_of_cpus_is_refused(text: str) -> None:
    with pytest.raises(NotANeed):
        needs.parse_cpus(text)


AMOUNTS = st.builds(Amount, st.integers(1, 512).map(float), st.booleans())


@given(AMOUNTS)
def test_an_amount_reads_back_as_it_is_written(amount: Amount) -> None:
    assert needs.parse_cpus(str(amount)) == amount
    assert needs.parse_memory(str(amount)) == amount
    assert needs.parse_gpu(f"A100:{amount}").count == amount


@given(st.text(max_size=40))
def test_whatever_is_written_is_a_need_or_refused(text: str) -> None:
    for parse in (needs.parse_gpu, needs.parse_cpus, needs.parse_memory):
        with suppress(NotANeed):  # nothing else is raised
            parse(text)


@given(AMOUNTS, st.integers(1, 1024))
def test_or_more_admits_all_that_the_amount_itself_does(amount: Amount, have: int) -> None:
    if amount.admits(have):
        assert Amount(amount.value, or_more=True).admits(have)
    if Amount(amount.value, or_more=True).admits(have):
        assert have >= amount.value


@given(st.sampled_from(table.packaged().types), st.sampled_from(table.packaged().types))
def test_a_vm_type_is_found_by_what_it_has(one: table.VmType, other: table.VmType) -> None:
    shape = one.shape
    written = [f"{shape.gpu}-{shape.gpu_memory_gib:g}GB:{shape.gpus}"] if shape.gpus else []
    exact = Needs(
        gpus=tuple(needs.parse_gpu(text) for text in written),
        cpus=Amount(shape.cpus),
        memory=Amount(shape.memory_gib),
    )
    found = table.packaged().matching(exact)
    assert (one in found) == bool(shape.gpus or shape.arch == "x86_64")
    if other in found:
        assert (other.shape.cpus, other.shape.gpus) == (shape.cpus, shape.gpus)


@pytest.mark.parametrize(
    ("gpu", "shape", "admitted"),
    [
        ("A100:8", A100_40, True),
        ("A100:8", A100_80, True),
        ("A100-80GB:8", A100_40, False),
        ("A100-80GB:8", A100_80, True),
        ("A100", A100_40, False),
        ("A100:4+", A100_40, True),
        ("A10", A10G, False),
        ("A10G", A10G, True),
        ("A10G-24GB", A10G, True),
        ("A10G", PLAIN, False),
    ],
)
def test_a_gpu_matches_by_kind_memory_and_count(gpu: str, shape: Shape, admitted: bool) -> None:
    assert Needs(gpus=(needs.parse_gpu(gpu),)).admits(shape) is admitted


def test_who_asks_for_cpus_gets_neither_a_gpu_nor_another_architecture() -> None:
    asked = Needs(cpus=Amount(4, or_more=True))
    assert [asked.admits(s) for s in (PLAIN, A10G, ARM, None)] == [True, False, False, False]
    assert [Needs().admits(s) for s in (PLAIN, A10G, ARM, None)] == [True] * 4


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("A1000", "did you mean A100"),
        ("H10", "did you mean H100"),
        ("V100-64GB", "did you mean V100-16GB or V100-32GB?"),
        ("zzz", "known: A10, A100, A10G"),
    ],
)
def test_an_unknown_gpu_is_told_with_those_that_may_be_meant(written: str, hint: str) -> None:
    problem = table.unknown_gpu(table.packaged(), needs.parse_gpu(written))
    assert problem is not None
    assert hint in problem.hint


def test_a_known_gpu_is_no_problem() -> None:
    for kind in table.packaged().gpus():
        assert table.unknown_gpu(table.packaged(), needs.parse_gpu(kind)) is None


def test_the_packaged_catalogue_has_three_clouds_and_their_facts() -> None:
    found = table.packaged()
    assert {each.cloud for each in found.types} == {"aws", "azure", "gcp"}
    assert len({(each.cloud, each.vm) for each in found.types}) == len(found.types)
    p4d = found.get("aws", "p4d.24xlarge")
    assert p4d is not None
    assert p4d.shape == A100_40
    assert p4d.price("us-east-1") == pytest.approx(21.957642)
    assert p4d.price("mars-1") is None
    for each in found.types:
        assert each.shape.arch in {"x86_64", "arm64"}
        assert all(0 < price < 700 for price in each.prices.values()), each


def test_the_cheapest_comes_first_and_what_has_no_price_last() -> None:
    found = table.packaged().matching(Needs(gpus=(needs.parse_gpu("H200:8"),)))
    assert [each.vm for each in found] == ["p5en.48xlarge", "p5e.48xlarge"]
    assert found[1].price() is None
    prices = [each.price() for each in table.packaged().matching(cloud="gcp")]
    assert prices == sorted(price for price in prices if price is not None)


def test_a_file_corrects_prices_and_adds_vm_types(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text(
        "# ours\ncloud,vm,cpus,memory_gib,prices\n"
        "aws,m5.large,,,us-east-1=0.05\nlab,big,64,512,here=0.5\n"
    )
    found = table.read(file)
    m5, lab = found.get("aws", "m5.large"), found.get("lab", "big")
    assert m5 is not None
    assert lab is not None
    assert (m5.shape.cpus, m5.prices) == (2, {"us-east-1": 0.05})
    assert (lab.shape, lab.price()) == (Shape(cpus=64, memory_gib=512), 0.5)
    assert found.get("aws", "m5.xlarge") == table.packaged().get("aws", "m5.xlarge")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cloud,vm,colour\naws,x,red\n", "no column 'colour'"),
        ("vm\nx\n", "no columns cloud and vm"),
        ("cloud,vm\naws,new.type\n", "aws/new.type: a new VM type needs cpus and memory_gib"),
        ("cloud,vm,cpus\naws,m5.large,two\n", "aws/m5.large: cpus: 'two' is not a number"),
        ("cloud,vm,prices\naws,m5.large,us-east-1\n", "price in us-east-1"),
        ("cloud,vm\naws,m5.large,1\n", "m5.large: more values than columns"),
        ("cloud,vm,gpus\naws,m5.large,2\n", "gpu and gpus belong together"),
    ],
)
def test_a_bad_file_is_refused_by_name_and_line(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "own.csv"
    file.write_text(text)
    with pytest.raises(table.BadCatalogue, match=r"own\.csv") as caught:
        table.read(file)
    assert told in str(caught.value)


AWS = """InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region,AvailabilityZone
m5.large,,,0.5,0.1,us-east-1,use1-az1
m5.large,,,0.5,0.1,us-east-1,use1-az2
m5.large,,,,0.1,us-west-2,usw2-az1
nobody.knows,,,0.5,0.1,us-east-1,use1-az1
"""
GCP = """InstanceType,AcceleratorName,AcceleratorCount,Region,AvailabilityZone,Price,SpotPrice
a2-ultragpu-1g,,,us-central1,us-central1-a,1.0,0.5
a2-highgpu-1g,,,us-central1,us-central1-a,0.7,0.3
a2-highgpu-1g,,,us-east1,us-east1-b,0.7,0.3
,A100,1,us-central1,us-central1-a,3.0,1.0
,A100-80GB,1,us-central1,us-central1-a,4.0,1.0
,A100,1,us-east1,us-east1-b,700.0,700.0
,tpu-v6e-1,1,us-central1,us-central1-a,2.0,1.0
"""


def test_the_file_is_remade_from_the_public_csv_files() -> None:
    text = catalog_file.text_of(
        table.packaged(), "# head\n", {"aws": AWS, "gcp": GCP}, "0123abc of 2027-01-01"
    )
    assert text.startswith("# head\n# aws: prices of 0123abc of 2027-01-01\n# gcp: prices of")
    found = table.Catalogue(()).corrected(table.rows(text))
    m5, big = found.get("aws", "m5.large"), found.get("gcp", "a2-ultragpu-1g")
    small = found.get("gcp", "a2-highgpu-1g")
    assert m5 is not None
    assert big is not None
    assert small is not None
    assert m5.prices == {"us-east-1": 0.5}
    assert big.prices == {"us-central1": 5.0}
    assert small.prices == {"us-central1": 3.7, "us-east1": 3.673385}, "700 is no price"
    assert [(e.cloud, e.vm, e.shape) for e in found.types] == [
        (e.cloud, e.vm, e.shape) for e in table.packaged().types
    ]


def test_the_script_changes_nothing_without_a_source() -> None:
    text = catalog_file.FILE.read_text(encoding="utf-8")
    head = "".join(line + "\n" for line in text.splitlines() if line.startswith("#"))
    assert catalog_file.text_of(table.packaged(), head, {}, "") == text


def test_spot_prices_are_corrected_by_region_and_lie_below_those_on_demand() -> None:
    rows_ = table.rows("cloud,vm,spot\ngcp,g2-standard-4,europe-west4=0.389\n")
    g2 = table.packaged().corrected(rows_).get("gcp", "g2-standard-4")
    assert g2 is not None
    assert g2.spot_prices == {"us-central1": 0.424056, "europe-west4": 0.389}
    known = [each for each in table.packaged().types if each.cloud == "gcp"]
    assert all(each.spot_prices for each in known)
    for each in known:
        assert each.spot_prices["us-central1"] < each.prices["us-central1"], each
