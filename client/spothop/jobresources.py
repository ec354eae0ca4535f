"""`resources` of the job file: which VMs a job may run on, by name or by what they have.

What stands in `resources` itself holds for every entry of `any_of` that does not say otherwise.
What is asked for is turned into VM types where the offers of the clouds are known, by the master;
here only how it is written is checked (`spothop.catalog.needs`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from spothop.catalog.needs import (
    Amount,
    GpuNeed,
    Needs,
    NotANeed,
    parse_cpus,
    parse_gpu,
    parse_memory,
)
from spothop.jobfields import Section, Text, refuse

MAX_DISK_GB = 65_536

_DISK = re.compile(r"([0-9]{1,6}) ?(GB|TB)?", re.ASCII | re.IGNORECASE)


def _gpu(text: str) -> str:
    try:
        parse_gpu(text)
    except NotANeed as error:
        raise refuse(error.fact, error.hint) from None
    return text.strip()


def _gpus(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _amount(parse: Callable[[str], Amount]) -> Callable[[object], str]:
    def check(value: object) -> str:
        try:
            return str(parse("" if isinstance(value, bool) else str(value)))
        except NotANeed as error:
            raise refuse(error.fact, error.hint) from None

    return check


def _disk(value: object) -> int:
    found = _DISK.fullmatch("" if isinstance(value, bool) else str(value))
    size = int(found[1]) * (1000 if (found[2] or "").upper() == "TB" else 1) if found else 0
    if not 1 <= size <= MAX_DISK_GB:
        raise refuse("is not the size of a disk", f"write 200GB or 1TB, {MAX_DISK_GB:,} GB at most")
    return size


_NUMBER_OR_TEXT = WithJsonSchema({"type": ["integer", "number", "string"]})
Gpus = Annotated[
    tuple[Annotated[Text, AfterValidator(_gpu)], ...],
    BeforeValidator(_gpus),
    Field(min_length=1),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
Cpus = Annotated[str, BeforeValidator(_amount(parse_cpus)), _NUMBER_OR_TEXT]
Memory = Annotated[str, BeforeValidator(_amount(parse_memory)), _NUMBER_OR_TEXT]
Disk = Annotated[
    int, BeforeValidator(_disk), WithJsonSchema({"type": ["integer", "string"], "minimum": 1})
]


class PoolChoice(Section):
    """What a pool must match; a key that is not given matches all."""

    cloud: Text | None = Field(None, min_length=1, examples=["local"])
    region: Text | None = Field(None, min_length=1, examples=["us-east-1"])
    zone: Text | None = Field(None, min_length=1, examples=["us-east-1a"])
    vm: Text | None = Field(
        None, min_length=1, description="the VM type's name", examples=["p3.2xlarge"]
    )
    gpu: Gpus | None = Field(
        None,
        description="GPU and how many of it in one VM, or a list of those that will do",
        examples=["A100:8"],
    )
    cpus: Cpus | None = Field(
        None, description="virtual CPUs, 16, or 16+ where more will do", examples=["16+"]
    )
    memory: Memory | None = Field(
        None, description="GiB, 64, or 64+ where more will do", examples=["64+"]
    )

    def gpus(self) -> tuple[GpuNeed, ...]:
        return tuple(parse_gpu(each) for each in self.gpu or ())

    def needs(self) -> Needs:
        return Needs(
            gpus=self.gpus(),
            cpus=parse_cpus(self.cpus) if self.cpus is not None else None,
            memory=parse_memory(self.memory) if self.memory is not None else None,
        )


class ResourcesSpec(PoolChoice):
    """Which VMs a job may run on."""

    any_of: tuple[PoolChoice, ...] = Field(
        (), description="pools in order of preference; empty: any, the cheapest first"
    )
    spot: bool = Field(True, strict=True, description="false: on-demand VMs")
    max_price: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="USD an hour and VM", examples=[1.5]
    )
    disk: Disk | None = Field(
        None,
        description="of the disk that the VM boots from; default: the cloud's",
        examples=["200GB"],
    )

    def choices(self) -> tuple[PoolChoice, ...]:
        """The entries of `any_of`, each with what stands in `resources` itself and not in it; one
        entry where there are none; empty where any pool will do."""
        shared = {name: getattr(self, name) for name in PoolChoice.model_fields}
        if not self.any_of:
            return (PoolChoice(**shared),) if any(v is not None for v in shared.values()) else ()
        return tuple(
            PoolChoice(
                **{
                    name: own if (own := getattr(each, name)) is not None else shared[name]
                    for name in PoolChoice.model_fields
                }
            )
            for each in self.any_of
        )
