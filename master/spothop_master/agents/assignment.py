"""What a VM is to do: one attempt of a job, as its agent gets it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial

from sqlalchemy import select
from sqlalchemy.orm import Session

from spothop import storageoptions
from spothop.jobspec import JobSpec
from spothop.jobstorage import StorageSection
from spothop.wire import OLDEST_PROTOCOL, Assignment, InitFrom, SetupCache, spec_at
from spothop_master.agents import insurance
from spothop_master.store import attempts
from spothop_master.store.jobs import spec_of, whole_spec_of
from spothop_master.store.schema import Attempt, Job, VmRow
from spothop_master.store.statistics import Statistics
from spothop_master.store.vms import pool_of


def build(
    session: Session, vm: VmRow, attempt: Attempt, statistics: Statistics, *, now: datetime
) -> Assignment:
    """The agent fences at once only when no older attempt can still commit. Raises
    `sealing.Unreadable`."""
    job = session.get_one(Job, attempt.job_id)
    spec = whole_spec_of(session, job)
    storage, pool = spec.checkpoint.storage, pool_of(vm)
    if storage is None:
        raise ValueError(f"job {job.id!r} was submitted without storage; submit it again")
    return Assignment(
        job=job.id,
        name=job.name,
        attempt=attempt.number,
        bundle=job.bundle,
        setup=spec.setup,
        setup_cache=_setup_cache(spec),
        run=spec.run,
        env=dict(spec.env),
        data=dict(spec.data),
        storage=storage.spec(),
        stores=[each.placed() for each in storage.all()] if storage.others else None,
        cloud=pool.cloud if storage.others else "",
        region=pool.region if storage.others else "",
        init_from=_init_from(spec.checkpoint.init_from, storage, partial(_whole_storage, session)),
        keep=spec.checkpoint.keep,
        log_max=spec.logs.max,
        hang_after_s=_hang_after_s(spec),
        hangs=attempts.hangs(session, job.id),
        unprotected_after_s=spec.checkpoint.unprotected_after.total_seconds(),
        ends_in_s=_ends_in_s(spec, job, now),
        wants_use=True,
        fence_now=attempt.may_fence,
        resumes=_has_chain(session, job),
        policy=insurance.first_params(session, vm, job, statistics, now=now),
    ).spoken(vm.protocol or OLDEST_PROTOCOL)


def folders(session: Session, job: Job) -> tuple[list[str], list[str]]:
    """Of the master's machine: those that the job reads, and those in which it keeps what is its
    own. Nothing where its storages are none of `file://`."""
    spec = spec_of(job)
    storage = spec.checkpoint.storage
    if storage is None:
        return [], []
    began = _init_from(spec.checkpoint.init_from, storage, partial(_shown_storage, session))
    reads = [storageoptions.folder_of(url) for url in spec.data.values()]
    if began is not None:
        sources = [began.storage, *(began.others or ())]
        reads += [_below(source.url, began.job) for source in sources]
    own = [_below(each.url, job.id) for each in storage.all()]
    return [path for path in reads if path], [path for path in own if path]


def _below(url: str, job: str | None) -> str | None:
    """The job's folder in a storage, or the whole of it."""
    folder = storageoptions.folder_of(url)
    return f"{folder}/jobs/{job}" if folder is not None and job is not None else folder


def _setup_cache(spec: JobSpec) -> SetupCache | None:
    cache = spec.setup_cache
    if cache is None:
        return None
    return SetupCache(folders=cache.folders, max_bytes=cache.max, image=spec.image or "")


def _hang_after_s(spec: JobSpec) -> float | None:
    if spec.hang_after is None:
        return None
    return 0.0 if spec.hang_after == "off" else spec.hang_after.total_seconds()


def _ends_in_s(spec: JobSpec, job: Job, now: datetime) -> float | None:
    if spec.max_duration is None:
        return None
    return (job.submitted_at + spec.max_duration - now).total_seconds() + job.paused_s


def _has_chain(session: Session, job: Job) -> bool:
    fenced = select(Attempt.id).where(Attempt.job_id == job.id, Attempt.fenced_at.is_not(None))
    return session.scalar(fenced.limit(1)) is not None


def _whole_storage(session: Session, job_id: str) -> StorageSection | None:
    job = session.get(Job, job_id)
    return whole_spec_of(session, job).checkpoint.storage if job is not None else None


def _shown_storage(session: Session, job_id: str) -> StorageSection | None:
    job = session.get(Job, job_id)
    return spec_of(job).checkpoint.storage if job is not None else None


def _init_from(
    source: str | None, own: StorageSection, storage_of: Callable[[str], StorageSection | None]
) -> InitFrom | None:
    """`job:<id>` is the newest checkpoint in that job's own storage; anything else is a URL, read
    with the options of the job's `own` storage, of several that of its provider."""
    if source is None:
        return None
    if not source.startswith("job:"):
        return InitFrom(storage=spec_at([each.spec() for each in own.all()], source))
    other = source.removeprefix("job:")
    storage = storage_of(other)
    if storage is None:
        raise ValueError(
            f"checkpoint.init_from: no job {source!r}; `spothop jobs --all` lists them"
        )
    others = [each.spec() for each in storage.others] or None
    return InitFrom(storage=storage.spec(), job=other, others=others)
