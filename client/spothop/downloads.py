"""Fetches what a job left in storage: its newest intact checkpoint, and its outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from spothop.checkpoints import download_outputs, restore_from_job
from spothop.errors import ClientError
from spothop.storage import StorageError, open_store
from spothop.wire import StorageSpec

OUTPUTS = "outputs"


@dataclass(frozen=True, kw_only=True)
class Downloaded:
    """What came; all paths are below the target directory."""

    checkpoint: Path | None
    step: int
    """Completed steps in the checkpoint."""
    outputs: list[Path]
    rejected: list[str] = field(default_factory=list)
    """One message per newer checkpoint that was damaged."""


def fetch(storage: StorageSpec, job: str, to: Path) -> Downloaded:
    """Fetch into the directory `to`; raises `ClientError` when there is nothing or no access."""
    try:
        restored = restore_from_job(storage, job, to)
        outputs = download_outputs(open_store(storage, create=False), job, to / OUTPUTS)
    except StorageError as error:
        raise ClientError(
            error.message,
            error.cure or "storage is read from this machine: check its credentials and network",
        ) from None
    if restored.entry is None and not outputs:
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
