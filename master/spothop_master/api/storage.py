"""Whether a job's storage can be used at all: what can be checked before a VM is paid for."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from spothop import storageoptions
from spothop.jobspec import JobSpec
from spothop.wire import StorageSpec
from spothop_master.api import places
from spothop_master.probes import Probes, ProbeTimeout
from spothop_master.problems import ApiError

FIELD = "checkpoint.storage"
_AGAIN = "if the storage is only away, submit again when it is back"

SCHEMES = frozenset(
    {"file", "s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "wasb", "wasbs", "https"}
)
"""Of obstore's, those whose stores outlive a VM and know the conditional create."""

INPUT_SCHEMES = SCHEMES | {"http"}
"""What is only read needs no more than a listing."""


def check_storage(
    spec: JobSpec,
    clouds: Collection[str],
    probes: Probes,
    *,
    default_url: str,
    try_out: bool = True,
) -> None:
    """Refuse what no checkpoint can be written to; `clouds` are this master's. Raises ApiError.

    The storage is tried out from here. Where the VMs see what we see (the local cloud), and where
    the job file itself holds the credentials, whatever is found counts. Elsewhere the VMs may have
    rights and a network that we lack: there it counts only what no VM could mend, such as a bucket
    that does not exist. Inputs may be there later: of those only what the URL itself says counts.
    To try one out makes its folder: without `try_out` nothing is sent or made.
    """
    for field, source in places.inputs(spec):
        _check(field, source, INPUT_SCHEMES)
    given = spec.checkpoint.storage
    named = list(places.storages(spec)) or [(FIELD, StorageSpec(url=default_url))]
    for field, storage in named:
        _check(field, storage.url, SCHEMES)
    if not try_out or (given is None and urlsplit(default_url).scheme == "file"):
        return  # tried out when the master started
    wanted = {choice.cloud for choice in spec.resources.choices()} or {None}
    same_sight = wanted <= {"local"} or set(clouds) == {"local"}
    for field, storage in named:
        if same_sight or urlsplit(storage.url).scheme != "file":
            ours = same_sight or bool(storageoptions.CREDENTIALS & storage.options.keys())
            _try(field, storage, probes, certain=ours)


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


def _try(field: str, spec: StorageSpec, probes: Probes, *, certain: bool) -> None:
    """`certain`: a VM would find the same."""
    from spothop.storage import StorageBadUrl, StorageError, StorageUnsupported

    try:
        probes.run(spec)
    except ProbeTimeout as error:
        if certain:
            fact = f"{spec.url!r} cannot be used: {error}"
            raise _refusal(field, fact, f"check the address, and {_AGAIN}") from None
    except StorageError as error:
        if certain or isinstance(error, (StorageBadUrl, StorageUnsupported)):
            hint = f"{error.hint}; {_AGAIN}" if error.retryable else error.hint
            raise _refusal(field, error.message, hint) from None


def _refusal(field: str, fact: str, hint: str) -> ApiError:
    shown = storageoptions.without_password(fact)
    return ApiError(422, "bad_storage", f"{field}: {shown}", hint, field=field)
