"""`checkpoint.storage` as a list: the first holds the chain, and nothing of the others is lost."""

from __future__ import annotations

from typing import Any

import pytest

from spothop import storageoptions
from spothop.jobfile import JobFileError, json_schema, parse
from spothop.jobspec import JobSpec
from spothop.jobstorage import StorageSection

SECRET = "wJalrXUtnFEMI/K7MDENG"
LIST = [
    "s3://first/runs",
    {"url": "gs://second/runs", "region": "europe-west4"},
    {
        "url": "s3://third/runs",
        "options": {"region": "eu-central-1", "access_key_id": "AKIA12345678",
                    "secret_access_key": SECRET},
    },
    {"url": "file:///mnt/near", "cloud": "local", "region": "west"},
]  # fmt: skip


def minimal(storage: object) -> dict[str, Any]:
    return {"name": "j", "run": "true", "checkpoint": {"storage": storage}}


def storage(spec: JobSpec) -> StorageSection:
    assert spec.checkpoint.storage is not None
    return spec.checkpoint.storage


def test_the_first_is_the_storage_and_has_the_others() -> None:
    found = storage(parse(minimal(LIST)))
    assert found.url == "s3://first/runs"
    assert [each.url for each in found.all()] == [
        *("s3://first/runs", "gs://second/runs", "s3://third/runs", "file:///mnt/near")
    ]
    assert [(p.cloud, p.region) for p in (each.placed() for each in found.all())] == [
        *(("aws", ""), ("gcp", "europe-west4"), ("aws", "eu-central-1"), ("local", "west"))
    ]


def test_a_list_survives_the_way_to_the_master_and_into_its_row() -> None:
    spec = parse(minimal(LIST))
    for written in (spec.as_written(), spec.model_dump(mode="json")):
        assert written["checkpoint"]["storage"] == LIST
        again = JobSpec.of_accepted(written)
        assert storage(again).all() == storage(spec).all()
        assert again == spec
    assert parse(minimal("s3://first/runs")) != spec


def test_a_list_of_one_is_one() -> None:
    found = storage(parse(minimal(["s3://a/b"])))
    assert found == storage(parse(minimal("s3://a/b")))
    assert parse(minimal(["s3://a/b"])).as_written()["checkpoint"] == {"storage": "s3://a/b"}


@pytest.mark.parametrize(
    ("given", "field", "fact"),
    [
        ([], "checkpoint.storage", "holds 0 storages"),
        (["s3://a/b"] * 9, "checkpoint.storage", "holds 9 storages"),
        (["s3://a/b", "s3://a/b"], "checkpoint.storage[1]", "is there twice"),
        (["s3://a/b", "/tmp/x"], "checkpoint.storage[1]", "is not a storage URL"),
        (["s3://a/b", 3], "checkpoint.storage[1]", "should be"),
        (["s3://a/b", None], "checkpoint.storage[1]", "should be"),
        (["s3://a/b", ["s3://c/d"]], "checkpoint.storage[1]", "should be"),
        (["s3://a/b", {"options": {}}], "checkpoint.storage[1].url", "is missing"),
        (["s3://a/b", {"url": "s3://u:pw@c/d"}], "checkpoint.storage[1].url", "holds a password"),
        (["s3://a/b", {"url": "s3://c/d", "ulr": 1}], "checkpoint.storage[1].ulr", "unknown key"),
        (
            ["s3://a/b", {"url": "s3://c/d", "options": {"secret_acess_key": SECRET}}],
            "checkpoint.storage[1].options.secret_acess_key",
            "unknown option",
        ),
        (["s3://a/b", {"url": "s3://c/d", "options": SECRET}], "checkpoint.storage[1].options", ""),
    ],
)
def test_what_is_wrong_with_one_is_told_with_its_number(
    given: object, field: str, fact: str
) -> None:
    with pytest.raises(JobFileError) as caught:
        parse(minimal(given))
    (problem,) = caught.value.problems
    assert problem.field == field
    assert fact in problem.fact
    assert SECRET not in f"{problem} {problem.hint} {caught.value}"
    assert "pw" not in str(problem).replace("'s3://***@c/d'", "")


def test_the_secrets_of_each_are_masked() -> None:
    spec = parse(minimal(LIST))
    masked = storageoptions.masked_spec(spec.model_dump(mode="json"))
    assert SECRET not in str(masked)
    assert SECRET not in repr(spec)
    assert masked["checkpoint"]["storage"][2]["options"]["region"] == "eu-central-1"
    assert masked["checkpoint"]["storage"][1] == LIST[1]


def test_a_store_of_ones_own_that_speaks_s3_is_not_amazons() -> None:
    own = {"url": "s3://a/b", "options": {"endpoint": "http://minio:9000"}}
    assert storage(parse(minimal(own))).placed().cloud == ""
    assert storage(parse(minimal({**own, "cloud": "gcp"}))).placed().cloud == "gcp"


def test_the_schema_takes_a_list() -> None:
    schema = json_schema()["$defs"]["CheckpointSpec"]["properties"]["storage"]
    assert '"maxItems": 8' in str(schema).replace("'", '"')
