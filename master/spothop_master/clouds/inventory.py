"""What a cloud itself says of one installation, region by region, and the end of all of it.

Made for a person who wants to know what still costs money, so it asks the provider at once, in
place of the watcher's last answer, and does what it can: where one region does not answer, the
others are still told and ended, and the answer says what is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from spothop_master.clouds.base import (
    Cloud,
    CloudError,
    CloudVmState,
    ListsByRegion,
    Remain,
    TellsRemains,
    Vm,
)
from spothop_master.clouds.watcher import ADAPTER_FAULT

log = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 8
"""Requests to one cloud side by side."""
ENDS_AT_ONCE = 100
"""VMs that one call of `end` asks for: so that whoever waits for it hears something."""


@dataclass(frozen=True, kw_only=True)
class Inventory:
    vms: Sequence[Vm]
    """That are not over."""
    remains: Sequence[Remain]
    errors: Sequence[str]
    silent: frozenset[str | None]
    """Regions that did not list their VMs; None: the whole cloud did not."""

    def answered(self, region: str) -> bool:
        return not {None, region} & self.silent


def read(cloud: Cloud, owner: str) -> Inventory:
    """Raises nothing of the cloud's: `errors` has it."""
    by_region = isinstance(cloud, ListsByRegion)
    regions: Sequence[str | None] = cloud.regions() if by_region else [None]  # type: ignore[attr-defined]

    def listed(region: str | None) -> Sequence[Vm]:
        if region is not None and isinstance(cloud, ListsByRegion):
            return cloud.list_region(region, owner)
        return cloud.list(owner)

    def left(region: str | None) -> Sequence[Remain]:
        return cloud.remains(owner, region=region) if isinstance(cloud, TellsRemains) else ()

    vms: list[Vm] = []
    remains: list[Remain] = []
    errors: list[str] = []
    silent: set[str | None] = set()
    for region, found, error in _each(regions, listed):
        if error:
            errors.append(f"{_place(cloud, region)} does not list its VMs: {error}")
            silent.add(region)
        vms += [vm for vm in found or () if vm.state is not CloudVmState.TERMINATED]
    for region, rest, error in _each(regions, left):
        if error:
            errors.append(f"{_place(cloud, region)} does not tell what is left over: {error}")
        remains += rest or ()
    return Inventory(vms=vms, remains=remains, errors=errors, silent=frozenset(silent))


def end(cloud: Cloud, vms: Iterable[Vm]) -> tuple[list[Vm], list[str]]:
    """Ask for the end of these, `ENDS_AT_ONCE` at most, those that still run first; whom the cloud
    accepted, and what it answered of the others."""
    first = sorted(vms, key=lambda vm: vm.state is CloudVmState.STOPPING)[:ENDS_AT_ONCE]
    ended, errors = [], []
    for vm, _, error in _each(first, lambda vm: cloud.terminate(vm.id)):
        if error:
            errors.append(f"{cloud.name} does not end VM {vm.id}: {error}")
        else:
            ended.append(vm)
    return ended, errors


def remove(cloud: Cloud, remains: Iterable[Remain]) -> tuple[list[Remain], list[str]]:
    """What is left over, and is deleted now; and what the cloud answered of the others."""
    if not isinstance(cloud, TellsRemains):
        return [], []
    removed, errors = [], []
    for remain, _, error in _each([*remains], cloud.remove):
        if error:
            errors.append(f"{cloud.name} does not delete {remain.kind} {remain.id}: {error}")
        else:
            removed.append(remain)
    return removed, errors


def _each(things: Sequence[T], act: Callable[[T], R]) -> Iterable[tuple[T, R | None, str]]:
    """Side by side: each with its answer, or with why there is none."""

    def one(thing: T) -> tuple[T, R | None, str]:
        try:
            return thing, act(thing), ""
        except CloudError as error:
            return thing, None, str(error) or type(error).__name__
        except Exception:  # a fault of the adapter: the others are done all the same
            log.exception("cloud inventory: %s", thing)
            return thing, None, ADAPTER_FAULT

    if len(things) < 2:
        return [one(thing) for thing in things]
    with ThreadPoolExecutor(min(AT_ONCE, len(things))) as threads:
        return [*threads.map(one, things)]


def _place(cloud: Cloud, region: str | None) -> str:
    return cloud.name if region is None else f"{cloud.name} {region}"
