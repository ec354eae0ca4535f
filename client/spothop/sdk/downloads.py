"""Fetches what a job left in storage: its newest intact checkpoint, and its outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spothop.checkpoints import download_outputs, restore_from_job
from spothop.sdk.errors import ClientError
from spothop.storage import StorageError, open_store
from spothop.wire import StorageSpec

OUTPUTS = "outputs"
MARKER = ".spothop-download"
"""Holds the job's id: what else is in the directory may be replaced by a later download of it."""


@dataclass(frozen=True, kw_only=True)
class Downloaded:
    """What was fetched; all paths are below the target directory."""

    checkpoint: Path | None
    step: int
    """Completed steps in the checkpoint."""
    outputs: list[Path]
    rejected: list[str] = field(default_factory=list)
    """One message per newer checkpoint that was damaged."""


def fetch(
    storage: StorageSpec, job: str, to: Path, *, others: Sequence[StorageSpec] = ()
) -> Downloaded:
    """Fetch into the directory `to`: a new or empty one, or that of an earlier download.

    `storage` holds the chain and the outputs, `others` may hold the data of checkpoints.

    Raises `ClientError` for any other, when there is nothing, and when there is no access.
    """
    try:
        _claim(to, job)
    except OSError as error:
        raise ClientError(
            f"cannot download into {str(to)!r}: {error.strerror}", "give --to another directory"
        ) from None
    try:
        restored = restore_from_job(storage, job, to, others=others)
        outputs = download_outputs(open_store(storage, create=False), job, to / OUTPUTS)
    except StorageError as error:
        _disclaim(to)
        raise ClientError(
            error.message,
            error.hint or "storage is read from this machine: check its credentials and network",
        ) from None
    if restored.entry is None and not outputs:
        _disclaim(to)
        told = f" ({'; '.join(restored.rejected)})" if restored.rejected else ""
        raise ClientError(
            f"job {job!r} has neither an intact checkpoint nor outputs in {storage.url}{told}",
            f"`spothop events {job}` tells what was committed",
        )
    return Downloaded(
        checkpoint=restored.path,
        step=restored.step,
        outputs=[to / OUTPUTS / name for name in outputs],
        rejected=restored.rejected,
    )


def _claim(to: Path, job: str) -> None:
    """Refuse a directory with other files in it: a checkpoint replaces what is there."""
    marker = to / MARKER
    ours = marker.is_file() and marker.read_text(encoding="utf-8") == job
    if not ours and to.exists() and any(to.iterdir()):
        raise ClientError(
            f"{str(to)!r} is not empty, and no earlier download of job {job!r}",
            "give --to a new or an empty directory",
        )
    to.mkdir(parents=True, exist_ok=True)
    marker.write_text(job, encoding="utf-8")


def _disclaim(to: Path) -> None:
    (to / MARKER).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        to.rmdir()  # only when it is empty
