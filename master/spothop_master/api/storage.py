"""Whether a job's storage can be used at all: what can be told before a VM is paid for."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from spothop.jobspec import JobSpec
from spothop.wire import StorageSpec
from spothop_master.problems import ApiError

SCHEMES = frozenset(
    {"file", "s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "wasb", "wasbs", "https"}
)
"""Of obstore's, those whose stores outlive a VM and know the conditional create."""


def check_storage(spec: JobSpec, clouds: Collection[str]) -> None:
    """Refuse a URL that can never work; `clouds` are this master's. Raises ApiError.

    A folder is tried out where VMs see the same files as we do, that is, on the local cloud. A
    bucket is not asked: the VMs may have credentials for it that the master lacks.
    """
    url = spec.checkpoint.storage
    if url is None:
        return
    scheme = urlsplit(url).scheme
    if scheme not in SCHEMES:
        raise _refusal(
            f"checkpoint.storage: {url!r}: no kind of storage that spothop uses",
            "use s3://bucket/path, gs://bucket/path, az://account/container/path or file:///folder",
        )
    wanted = {choice.cloud for choice in spec.resources.any_of} or {None}
    if scheme != "file" or wanted <= {"local"} or set(clouds) == {"local"}:
        _try(url)


def _try(url: str) -> None:
    from spothop.storage import StorageError, open_store, probe  # obstore takes its time to load

    try:
        store = open_store(StorageSpec(url=url))
        if urlsplit(url).scheme == "file":
            probe(store)
    except StorageError as error:
        if not error.retryable:
            raise _refusal(f"checkpoint.storage: {error.message}", error.cure) from None


def _refusal(fact: str, cure: str) -> ApiError:
    return ApiError(422, "bad_storage", fact, cure, field="checkpoint.storage")
