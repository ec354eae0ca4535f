"""What the local cloud offers: a YAML file, or the built-in three zones. Every key may be left out;
without `pools` it offers the built-in ones.

directory: cloud            # relative to this file; default: a folder in the master's home
isolation: auto             # auto | users | namespaces | processes
pools:
  - {region: local-1, zone: local-1a, vm: small, dialect: aws, price: 0.23,
     on_demand_price: 0.62, grace_s: 120}
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from spothop.wire import Dialect
from spothop_master.clouds.configuration import Strict, read

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Price = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Delay(Strict):
    """A duration, drawn evenly between two bounds in seconds; written `[low, high]`."""

    low: Seconds
    high: Seconds

    @model_validator(mode="before")
    @classmethod
    def _from_pair(cls, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            if len(value) != 2:
                raise ValueError("expected [low, high] in seconds")
            return {"low": value[0], "high": value[1]}
        return value

    @model_validator(mode="after")
    def _ordered(self) -> Delay:
        if self.low > self.high:
            raise ValueError("low is greater than high")
        return self


class ScriptedPreemption(Strict):
    """The k-th launch of a pool's spot VMs is preempted."""

    launch: int = Field(ge=1)
    """Counted from 1 over the life of the directory; refused launches do not count."""
    after_s: Seconds
    """From the moment on at which the cloud says running."""
    notice_s: Seconds | None = None
    """None: the pool's grace period. Less: the kill comes earlier than promised. 0: no notice."""


class PoolConfig(Strict):
    """One zone and VM type; offered as spot and on demand."""

    region: str = Field(min_length=1)
    zone: str = Field(min_length=1)
    vm: str = Field(min_length=1)
    dialect: Dialect
    """Which cloud's metadata endpoint its VMs have."""
    price: Price
    """Spot, USD an hour."""
    on_demand_price: Price
    """USD an hour."""
    grace_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Promised time from the notice to the kill."""
    cpus: int | None = Field(default=None, ge=1)
    """Virtual CPUs that it is said to have; None: those of this machine. Nobody is held to it."""
    memory_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The same of its memory."""
    allocation_s: Delay = Delay(low=0.3, high=0.6)
    """From the request to running."""
    boot_s: Delay = Delay(low=0.3, high=0.6)
    """From running to the start of the agent."""
    capacity: int | None = Field(default=None, ge=0)
    """Spot VMs at the same time; None: no limit. On-demand VMs are never refused."""
    refuse: int = Field(default=0, ge=0)
    """So many first spot launches are refused for want of capacity."""
    fail: int = Field(default=0, ge=0)
    """So many of the spot launches after those are accepted, and refused for want of capacity after
    `allocation_s`, as GCP and Azure do."""
    keep_failed: bool = False
    """VMs of such launches stay listed until they are terminated, as on Azure."""
    preemptions: list[ScriptedPreemption] = Field(default_factory=list)

    @field_validator("preemptions")
    @classmethod
    def _one_per_launch(cls, value: list[ScriptedPreemption]) -> list[ScriptedPreemption]:
        launches = [item.launch for item in value]
        if len(set(launches)) != len(launches):
            raise ValueError("two preemptions of the same launch")
        return value


class LocalConfig(Strict):
    directory: Path
    """Holds the VMs; two masters may share it."""
    pools: list[PoolConfig] = Field(min_length=1)
    isolation: Literal["auto", "users", "namespaces", "processes"] = "auto"
    """`namespaces`: own PID, mount and network namespaces per VM (needs root), where a VM reaches
    the metadata endpoint, the master and the ports in `forward`, nothing else. `users`: these, and
    another user who does not see the master's files. `processes`: neither. `auto`: the first of
    users, namespaces and processes that can be had."""
    uid: int = Field(default=61_184, ge=1, lt=2**31)
    """User and group of VMs under `isolation: users`; of no account (the first of those that
    systemd keeps for services without one)."""
    forward: list[Annotated[int, Field(ge=1, le=65535)]] = Field(default_factory=list)
    """Ports on this machine's 127.0.0.1 that VMs in a network namespace reach as well, such as an
    object store's."""
    environment: list[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\*?$")]] = Field(
        default_factory=list
    )
    """Variables of the master's environment that VMs get beside the harmless ones, such as
    `HF_HOME`, or `AWS_*` for all that begin so. Every job can read them."""
    keep_s: Seconds = 3600.0
    """How long a VM that ended stays listed."""
    list_preempted: bool = True
    """False: a VM that was preempted is listed no more, as where the provider deletes it (Azure,
    GCP). Why it ended can still be asked for."""
    agent_command: list[str] = Field(
        default_factory=lambda: [sys.executable, "-m", "spothop_agent"], min_length=1
    )
    """Starts the agent on a VM; `--config FILE` is appended."""

    @field_validator("pools")
    @classmethod
    def _distinct(cls, value: list[PoolConfig]) -> list[PoolConfig]:
        seen = set()
        for pool in value:
            key = (pool.region, pool.zone, pool.vm)
            if key in seen:
                raise ValueError(f"two pools for {pool.zone}/{pool.vm}")
            seen.add(key)
        return value


def built_in(directory: Path) -> LocalConfig:
    """Three zones of one region, one per dialect, with the grace periods of the real clouds."""
    zones: list[tuple[str, Dialect, float]] = [
        ("local-1a", Dialect.AWS, 120.0),
        ("local-1b", Dialect.AZURE, 30.0),
        ("local-1c", Dialect.GCP, 30.0),
    ]
    pools = [
        PoolConfig(
            region="local-1",
            zone=zone,
            vm="small",
            dialect=dialect,
            price=0.23,
            on_demand_price=0.62,
            grace_s=grace_s,
        )
        for zone, dialect, grace_s in zones
    ]
    return LocalConfig(directory=directory, pools=pools)


def load(file: Path | None, *, default_directory: Path) -> LocalConfig:
    """Read the file, or take the built-in configuration when there is none.

    Raises ConfigError.
    """
    if file is None:
        return built_in(default_directory.absolute())
    defaults = built_in(default_directory).model_dump(include={"directory", "pools"})
    config = read(file, LocalConfig, what="local cloud configuration", defaults=defaults)
    return config.model_copy(update={"directory": (file.parent / config.directory).absolute()})
