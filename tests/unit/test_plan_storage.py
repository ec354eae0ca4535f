"""What a plan says of storages: egress with its date, and which VMs cannot read one."""

from __future__ import annotations

import io
from datetime import date
from typing import Any

from rich.console import Console

from spothop.catalog.egress import egress, facts
from spothop.cli import plan_view
from spothop.jobfile import parse
from spothop.wire import PlanReply, Pool, StorePlan
from spothop_master.api.plan_storage import store_plans

KEY = {"service_account_key": '{"type": "service_account"}'}
POOLS = [
    Pool(cloud="aws", region="us-east-1", zone="us-east-1a", vm="p3"),
    Pool(cloud="aws", region="us-east-1", zone="us-east-1b", vm="p3"),
    Pool(cloud="aws", region="eu-central-1", zone="a", vm="p3"),
    Pool(cloud="gcp", region="europe-west4", zone="a", vm="a2"),
    Pool(cloud="local", region="local-1", zone="a", vm="small"),
]


def plans(*storage: object) -> list[StorePlan]:
    spec = parse({"name": "j", "run": "true", "checkpoint": {"storage": list(storage)}})
    assert spec.checkpoint.storage is not None
    return store_plans(spec.checkpoint.storage, POOLS)


def costs(plan: StorePlan) -> dict[str, float | None]:
    return {f"{read.cloud}/{read.region}": read.usd_per_gb for read in plan.reads}


def printed(stores: list[StorePlan]) -> str:
    out = Console(file=io.StringIO(), width=200)
    plan_view.storages(out, PlanReply(pools=[], storage=stores[0].url, stores=stores))
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_a_region_is_free_and_what_lies_elsewhere_costs_what_its_own_cloud_asks() -> None:
    first, second = plans(
        {"url": "s3://a/x", "region": "us-east-1"},
        {"url": "gs://b/x", "region": "europe-west4", "options": KEY},
    )
    assert costs(first) == {
        "aws/us-east-1": 0.0,
        "aws/eu-central-1": 0.02,
        "gcp/europe-west4": 0.09,
    }
    assert costs(second) == {
        "aws/us-east-1": 0.12,
        "aws/eu-central-1": 0.12,
        "gcp/europe-west4": 0.0,
    }
    assert [read.hindrance for read in second.reads] == ["", "", ""]
    assert [read.hindrance for read in first.reads] == [
        *("", "", "a VM of gcp has no identity in aws: put a key into the options")
    ]
    shown = printed([first, second])
    assert "the nearest of s3://a/x (the chain), gs://b/x" in shown
    assert "a restore in gcp/europe-west4 from s3://a/x: 0.09 USD a GB (list price of aws" in shown
    assert "s3://a/x: a VM of gcp has no identity in aws" in shown


def test_what_is_not_known_is_said() -> None:
    own: dict[str, Any] = {"url": "s3://a/x", "options": {"endpoint": "https://minio.example"}}
    (plan,) = plans(own)
    assert set(costs(plan).values()) == {None}
    assert "egress unknown (where the storage lies is not known)" in printed([plan])
    (plan,) = plans("s3://a/x")
    assert costs(plan)["aws/us-east-1"] is None
    assert costs(plan)["gcp/europe-west4"] == 0.09
    unknown = egress(cloud="r2", region="auto", to_cloud="aws", to_region="us-east-1")
    assert (unknown.usd_per_gb, unknown.why) == (None, "no figure for r2 to another cloud")


def test_a_folder_costs_nothing_and_says_nothing() -> None:
    (plan,) = plans("file:///mnt/shared")
    assert plan.reads == []
    assert printed([plan]).strip() == "checkpoints go to file:///mnt/shared"


def test_each_figure_has_its_source_and_date() -> None:
    assert {cloud for cloud, _ in facts()} == {"aws", "azure", "gcp"}
    for fact in facts().values():
        assert fact.source
        assert fact.read > date(2026, 1, 1)
        assert 0 < fact.usd_per_gb < 1
