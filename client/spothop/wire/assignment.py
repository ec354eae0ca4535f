"""One attempt of a job, as the master describes it to its VM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from spothop.wire.common import StorageSpec, Strict


class PolicyParams(Strict):
    """What the agent's own decisions need, from the pool and the job."""

    policy: str = "thesis"
    grace_s: float
    """The grace period that the pool promises."""
    margin_s: float = 0.5
    """Kept free before a deadline."""
    save_s: float | None = None
    """Delta of earlier attempts; None when none was measured."""
    backup_s: float | None = None
    step_s: float | None = None
    first_tau_s: float = 60.0
    """Interval until the first insurance directive arrives."""
    release_before_s: float = 2.0
    """After a notice: so long before the deadline the cloud may be told, where it takes such a
    word, that it may take the VM."""

    @model_serializer(mode="wrap")
    def _for_older_agents(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_silent(self, handler(self), ("release_before_s",))


class InitFrom(Strict):
    """An input checkpoint: the newest one of another job, or plain files at a URL."""

    storage: StorageSpec
    job: str | None = None


class Assignment(Strict):
    """One attempt of one job, for one VM.

    An agent of version 0.1.0, on a VM that was started before its master was replaced, refuses keys
    that it does not know. So what is newer is left out where it says nothing.
    """

    job: str
    name: str
    attempt: int
    bundle: str
    """SHA-256 of the code bundle (a tar.gz), fetched from `/agent/v1/bundles/<sha256>`."""
    setup: str = ""
    """A shell script; its failure is the user's."""
    run: str
    env: dict[str, str] = Field(default_factory=dict)
    data: dict[str, str] = Field(default_factory=dict)
    """Folder below `data/` of the job's directory -> storage URL."""
    storage: StorageSpec
    init_from: InitFrom | None = None
    keep: int = 2
    """Periodic checkpoints that stay."""
    log_max: int = Field(100_000_000, ge=1)
    """Bytes of the attempt's log that stay on the VM's disk, the newest."""
    fence_now: bool = False
    """No earlier attempt can still commit: fence without waiting for the directive."""
    resumes: bool = False
    """An earlier attempt wrote its fence: a storage without its folder is not mounted, not new."""
    policy: PolicyParams

    @model_serializer(mode="wrap")
    def _for_older_agents(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_silent(self, handler(self), ("log_max",))


def _without_silent(model: Strict, found: dict[str, Any], newer: Sequence[str]) -> dict[str, Any]:
    """Without what is newer than version 0.1.0 and says nothing."""
    fields = type(model).model_fields
    silent = {name for name in newer if found.get(name) == fields[name].default}
    return {name: value for name, value in found.items() if name not in silent}
