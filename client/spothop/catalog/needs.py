"""What a job asks of a VM, and whether a VM type has it. Pure.

GPU names are compared by what tells them apart: case, separators, the vendor and the form of the
card (SXM, PCIe) do not, so that `a100`, `A100_80GB` and `nvidia-a100-sxm4-80gb` are found. A10,
A10G and A100 are three GPUs all the same: no name is ever taken for the beginning of another one.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

_WORD = re.compile(r"[a-z0-9]+", re.ASCII)
_VENDOR = frozenset({"nvidia", "tesla", "geforce", "quadro", "amd", "radeon", "instinct", "gpu"})
_FORM = re.compile(r"sxm\d?|pcie|nvl|nvlink|hbm\d?e?", re.ASCII)
_CARD_MEMORY = re.compile(r"(\d{1,4})(?:g|gb|gib)", re.ASCII)
_GPU = re.compile(r"([^:]{1,60}?)\s*(?::\s*(\d{1,4})(\+?))?", re.ASCII)
_CPUS = re.compile(r"(\d{1,5})\s*(\+?)", re.ASCII)
_MEMORY = re.compile(
    r"(\d{1,6}(?:\.\d{1,3})?)\s*(?:(g|t)(?:i?b)?)?\s*(\+?)", re.ASCII | re.IGNORECASE
)

SAME_CARD = 0.1
"""Makers and clouds count the memory of one card differently (24 GB, 22.4 GiB) by less than this
share; two cards of one name differ by more (H100: 80 and 94)."""
_GIB = 0.01


class NotANeed(ValueError):
    """Text that asks for nothing we know; `fact` says why, `hint` how to write it."""

    def __init__(self, fact: str, hint: str) -> None:
        super().__init__(fact)
        self.fact, self.hint = fact, hint


@dataclass(frozen=True)
class Amount:
    """`16`, or with `or_more` `16+`."""

    value: float
    or_more: bool = False

    def admits(self, have: float) -> bool:
        if self.or_more:
            return have >= self.value - _GIB
        return abs(have - self.value) <= _GIB

    def __str__(self) -> str:
        return f"{self.value:g}{'+' * self.or_more}"


@dataclass(frozen=True)
class GpuName:
    """A kind of GPU: what its name comes down to, and its memory where the name says that."""

    key: str
    memory_gib: int | None = None


@dataclass(frozen=True)
class GpuNeed:
    name: GpuName
    count: Amount = Amount(1)
    written: str = ""
    """As somebody wrote it, for messages."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a VM type has."""

    cpus: float
    """Virtual CPUs."""
    memory_gib: float
    gpu: str = ""
    """The kind; empty: it has none."""
    gpus: int = 0
    gpu_memory_gib: float = 0.0
    """Of one GPU, as its maker counts it."""
    arch: str = "x86_64"

    @property
    def gpu_text(self) -> str:
        """`8 A100 80GB`; empty without a GPU."""
        return f"{self.gpus} {self.gpu} {self.gpu_memory_gib:g}GB" if self.gpus else ""


@functools.lru_cache(maxsize=1024)
def gpu_name(text: str) -> GpuName:
    """Raises NotANeed where nothing is left of it."""
    words = [word for word in _WORD.findall(text.lower()) if word not in _VENDOR]
    memory = [int(found[1]) for word in words if (found := _CARD_MEMORY.fullmatch(word))]
    kept = [w for w in words if not (_FORM.fullmatch(w) or _CARD_MEMORY.fullmatch(w))]
    if not kept or len(memory) > 1:
        raise NotANeed("is not a GPU", _GPU_HINT)
    return GpuName("".join(kept), memory[0] if memory else None)


def parse_gpu(text: str) -> GpuNeed:
    """`A100`, `A100:8`, `A100-80GB:4+`. Raises NotANeed."""
    found = _GPU.fullmatch(text.strip())
    if found is None:
        raise NotANeed("is not a GPU and how many of it", _GPU_HINT)
    count = int(found[2] or 1)
    if count < 1:
        raise NotANeed("asks for no GPU", "leave gpu out, and say cpus or memory instead")
    return GpuNeed(gpu_name(found[1]), Amount(count, bool(found[3])), text.strip())


def parse_cpus(text: str) -> Amount:
    """`16` or `16+`. Raises NotANeed."""
    found = _CPUS.fullmatch(text.strip())
    if found is None or int(found[1]) < 1:
        raise NotANeed(
            "is not a number of virtual CPUs", "write 16, or 16+ where more will do as well"
        )
    return Amount(int(found[1]), bool(found[2]))


def parse_memory(text: str) -> Amount:
    """GiB: `64`, `64+`, `64GB`, `1TB+`. Raises NotANeed."""
    found = _MEMORY.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise NotANeed(
            "is not an amount of memory", "write it in GiB: 64, or 64+ where more will do as well"
        )
    unit = 1024 if (found[2] or "").lower() == "t" else 1
    return Amount(float(found[1]) * unit, bool(found[3]))


_GPU_HINT = "write the GPU's name, and a colon and how many: A100, A100:8, A100-80GB:4"


@dataclass(frozen=True, kw_only=True)
class Needs:
    """All of it at once. Who asks for CPUs or memory and for no GPU gets none, as a GPU is most of
    what such a VM costs, and no ARM, for which programs are built apart."""

    gpus: tuple[GpuNeed, ...] = ()
    """One of these; empty: not asked for."""
    cpus: Amount | None = None
    memory: Amount | None = None

    def __bool__(self) -> bool:
        return bool(self.gpus) or self.cpus is not None or self.memory is not None

    def admits(self, shape: Shape | None) -> bool:
        """Whether a VM type will do; of one whose `shape` nobody knows only without needs."""
        if not self:
            return True
        if shape is None:
            return False
        if self.gpus and not any(has_gpu(shape, need) for need in self.gpus):
            return False
        if not self.gpus and (shape.gpus or shape.arch != "x86_64"):
            return False
        return (self.cpus is None or self.cpus.admits(shape.cpus)) and (
            self.memory is None or self.memory.admits(shape.memory_gib)
        )


ANYTHING = Needs()


def has_gpu(shape: Shape, need: GpuNeed) -> bool:
    return is_gpu(shape, need.name) and need.count.admits(shape.gpus)


def is_gpu(shape: Shape, wanted: GpuName) -> bool:
    """The kind, whatever the count."""
    if not shape.gpus or gpu_name(shape.gpu).key != wanted.key:
        return False
    size = wanted.memory_gib
    return size is None or abs(shape.gpu_memory_gib - size) <= SAME_CARD * size
