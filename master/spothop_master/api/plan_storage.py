"""What a plan says of a job's storages: what a restore from each costs, and who cannot read it."""

from __future__ import annotations

from collections.abc import Iterable

from spothop import storageoptions
from spothop.catalog.egress import egress
from spothop.jobstorage import StorageSection
from spothop.wire import Pool, ReadPlan, StorePlan

IDENTITIES = frozenset({"aws", "azure", "gcp"})
"""Clouds whose VMs have an identity of their own, and none of another cloud."""


def store_plans(storage: StorageSection, pools: Iterable[Pool]) -> list[StorePlan]:
    """Of each storage, for each cloud and region of the pools, in their order. Folders and VMs of
    the local cloud cost nothing and need no key."""
    places = dict.fromkeys((pool.cloud, pool.region) for pool in pools)
    real = [place for place in places if place[0] in IDENTITIES]
    return [_plan(each, real) for each in storage.all()]


def _plan(storage: StorageSection, places: Iterable[tuple[str, str]]) -> StorePlan:
    placed, provider = storage.placed(), storageoptions.provider_of(storage.url)
    reads = [_read(storage, cloud, region) for cloud, region in places] if provider else []
    return StorePlan(
        url=storageoptions.without_password(storage.url),
        cloud=placed.cloud,
        region=placed.region,
        reads=reads,
    )


def _read(storage: StorageSection, cloud: str, region: str) -> ReadPlan:
    placed = storage.placed()
    cost = egress(cloud=placed.cloud, region=placed.region, to_cloud=cloud, to_region=region)
    return ReadPlan(
        cloud=cloud,
        region=region,
        usd_per_gb=cost.usd_per_gb,
        why=cost.why,
        hindrance=_hindrance(storage, cloud),
    )


def _hindrance(storage: StorageSection, cloud: str) -> str:
    """Why a VM of this cloud will be refused, in words; empty where nothing says that it will."""
    store_cloud = StorageSection.of_setting(storage.url).placed().cloud
    given = storageoptions.CREDENTIALS & storage.options.keys()
    public = storage.options.get("skip_signature", "").lower() == "true"
    if not store_cloud or store_cloud == cloud or given or public:
        return ""
    return f"a VM of {cloud} has no identity in {store_cloud}: put a key into the options"
