"""What a job asks of its VMs, compared with what this master's clouds offer: what is wrong with it,
and what would do."""

from __future__ import annotations

from collections.abc import Iterator

from spothop.catalog.needs import is_gpu
from spothop.catalog.table import Catalogue, unknown_gpu
from spothop.jobresources import PoolChoice
from spothop.jobspec import JobSpec
from spothop_master.clouds.watcher import CloudWatcher
from spothop_master.problems import ApiError

NAMED = 3
"""VM types in a hint."""


def check_gpus(watcher: CloudWatcher, spec: JobSpec) -> None:
    """Refuse a GPU that neither the catalogue nor any offer knows. Raises ApiError."""
    for field, choice in _entries(spec):
        for need in choice.gpus():
            problem = unknown_gpu(watcher.catalogue, need)
            shapes = (info.shape for info in (watcher.offers() or {}).values())
            if problem is not None and not any(s and is_gpu(s, need.name) for s in shapes):
                text = f"{field}.gpu: {need.written!r}: {problem.fact}"
                raise ApiError(422, "bad_job_file", text, problem.hint, field=f"{field}.gpu")


def no_pool(watcher: CloudWatcher, spec: JobSpec) -> ApiError:
    """For a job that no offer of these clouds matches."""
    kind = "spot" if spec.resources.spot else "on-demand"
    fits = _fitting(watcher.catalogue, spec)
    if fits:
        hint = f"of the catalogue {_listed(fits)} would do; `spothop pools` lists what is offered"
    else:
        hint = (
            "leave out cloud, region, zone, vm, gpu, cpus, memory or max_price; "
            "`spothop pools` lists what there is"
        )
    return ApiError(
        422,
        "no_pool",
        f"no {kind} pool of this master's clouds matches the job's `resources`",
        hint,
        field="resources",
    )


def _entries(spec: JobSpec) -> Iterator[tuple[str, PoolChoice]]:
    """As they stand in the file."""
    yield "resources", spec.resources
    for i, choice in enumerate(spec.resources.any_of):
        yield f"resources.any_of[{i}]", choice


def _fitting(catalogue: Catalogue, spec: JobSpec) -> list[str]:
    """VM types that have what is asked for, the cheapest first; none where only names are."""
    found: dict[str, None] = {}
    for choice in spec.resources.choices():
        needs = choice.needs()
        if needs:
            matching = catalogue.matching(needs, cloud=choice.cloud, vm=choice.vm)
            found.update({f"{each.cloud}/{each.vm}": None for each in matching})
    return list(found)


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
