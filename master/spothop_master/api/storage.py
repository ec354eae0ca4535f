"""Whether a job's storage can be used at all: what can be checked before a VM is paid for."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from urllib.parse import urlsplit

from spothop.jobspec import JobSpec
from spothop.wire import StorageSpec
from spothop_master.problems import ApiError

FIELD = "checkpoint.storage"

SCHEMES = frozenset(
    {"file", "s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "wasb", "wasbs", "https"}
)
"""Of obstore's, those whose stores outlive a VM and know the conditional create."""

INPUT_SCHEMES = SCHEMES | {"http"}
"""What is only read needs no more than a listing."""


def check_storage(spec: JobSpec, clouds: Collection[str]) -> None:
    """Refuse a URL that can never work; `clouds` are this master's. Raises ApiError.

    A folder for checkpoints is tried out where VMs see the same files as we do, that is, on the
    local cloud. A bucket is not asked: the VMs may have credentials for it that the master lacks.
    Inputs may be there later: of those only what the URL itself says counts.
    """
    for field, source in _inputs(spec):
        _check(field, source, INPUT_SCHEMES)
    storage = spec.checkpoint.storage
    if storage is None:
        return
    _check(FIELD, storage.url, SCHEMES)
    scheme = urlsplit(storage.url).scheme
    wanted = {choice.cloud for choice in spec.resources.any_of} or {None}
    if scheme != "file" or wanted <= {"local"} or set(clouds) == {"local"}:
        _try(storage.spec())


def _inputs(spec: JobSpec) -> Iterator[tuple[str, str]]:
    for folder, url in spec.data.items():
        yield f"data.{folder}", url
    source = spec.checkpoint.init_from
    if source is not None and not source.startswith("job:"):
        yield "checkpoint.init_from", source


def _check(field: str, url: str, schemes: Collection[str]) -> None:
    """What the URL alone says."""
    from spothop.storage import StorageBadUrl, check_url  # obstore takes its time to load

    if urlsplit(url).scheme not in schemes:
        raise _refusal(
            field,
            f"{url!r}: no kind of storage that spothop uses",
            "use s3://bucket/path, gs://bucket/path, az://account/container/path or file:///folder",
        )
    try:
        check_url(url)
    except StorageBadUrl as error:
        raise _refusal(field, error.message, error.hint) from None


def _try(spec: StorageSpec) -> None:
    from spothop.storage import StorageError, open_store, probe

    try:
        store = open_store(spec)
        if urlsplit(spec.url).scheme == "file":
            probe(store)
    except StorageError as error:
        if not error.retryable:
            raise _refusal(FIELD, error.message, error.hint) from None


def _refusal(field: str, fact: str, hint: str) -> ApiError:
    return ApiError(422, "bad_storage", f"{field}: {fact}", hint, field=field)
