"""The catalogue of VM types: `vms.csv` in the package, and files that correct it. Pure but for
`packaged` and `read`.

One line is one VM type. `prices` are pairs `region=USD an hour` on demand, with blanks between; a
region that is not among them has no known price, which is not a low one. `spot` are the same on the
spot market, for clouds that tell it by no call (GCP). In a file that corrects
the package's, a line takes the place of the one with the same cloud and VM type, field by field:
what is empty in it stays as it was, and a price of a region replaces that region's only.
"""

from __future__ import annotations

import csv
import difflib
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from spothop.catalog.needs import (
    ANYTHING,
    GpuName,
    GpuNeed,
    Needs,
    NotANeed,
    Shape,
    gpu_name,
    is_gpu,
)

COLUMNS = (
    *("cloud", "vm", "gpu", "gpus", "gpu_memory_gib", "cpus", "memory_gib", "arch"),
    *("prices", "spot"),
)


class BadCatalogue(ValueError):
    """A file that is no catalogue; the message names the line."""


@dataclass(frozen=True, kw_only=True)
class VmType:
    cloud: str
    vm: str
    shape: Shape
    prices: Mapping[str, float] = field(default_factory=dict)
    """Region -> USD an hour on demand, where a source tells it."""
    spot_prices: Mapping[str, float] = field(default_factory=dict)
    """Region -> USD an hour as spot, where a source tells it and the cloud does not."""

    def price(self, region: str | None = None) -> float | None:
        """In that region, or in the cheapest one; None: not known."""
        if region is not None:
            return self.prices.get(region)
        return min(self.prices.values(), default=None)

    @property
    def cheapest(self) -> str | None:
        """The region whose price is the lowest of those known."""
        return min(self.prices, key=lambda region: (self.prices[region], region), default=None)


@dataclass(frozen=True)
class Catalogue:
    types: tuple[VmType, ...]

    @functools.cached_property
    def _by_name(self) -> dict[tuple[str, str], VmType]:
        return {(each.cloud, each.vm): each for each in self.types}

    @functools.cached_property
    def _gpus(self) -> dict[str, str]:
        """What a name comes down to -> how it is written."""
        return {gpu_name(t.shape.gpu).key: t.shape.gpu for t in self.types if t.shape.gpus}

    def get(self, cloud: str, vm: str) -> VmType | None:
        return self._by_name.get((cloud, vm))

    def shape(self, cloud: str, vm: str) -> Shape | None:
        found = self.get(cloud, vm)
        return found.shape if found is not None else None

    def gpus(self) -> Sequence[str]:
        """Every kind, by name."""
        return sorted(self._gpus.values())

    def knows_gpu(self, name: GpuName) -> bool:
        return any(is_gpu(each.shape, name) for each in self.types)

    def near(self, name: GpuName) -> Sequence[str]:
        """GPUs that may have been meant, the likeliest first: of a known kind the sizes there are,
        else kinds that are written alike."""
        if name.key in self._gpus:
            kind = self._gpus[name.key]
            sizes = {t.shape.gpu_memory_gib for t in self.types if t.shape.gpu == kind}
            return [f"{kind}-{size:g}GB" for size in sorted(sizes)]
        close = difflib.get_close_matches(name.key, self._gpus, n=3, cutoff=0.5)
        return [self._gpus[key] for key in close]

    def matching(
        self,
        needs: Needs = ANYTHING,
        *,
        cloud: str | None = None,
        region: str | None = None,
        vm: str | None = None,
    ) -> list[VmType]:
        """By price (in `region`, else in the cheapest one), those without a known price last."""
        found = [
            each
            for each in self.types
            if (cloud is None or each.cloud == cloud)
            and (region is None or region in each.prices)
            and (vm is None or each.vm == vm)
            and needs.admits(each.shape)
        ]
        return sorted(found, key=lambda each: _by_price(each, region))

    def corrected(self, by: Iterable[Mapping[str, str]]) -> Catalogue:
        """With the rows of another file on top. Raises BadCatalogue."""
        known = dict(self._by_name)
        for row in by:
            key = (row["cloud"], row["vm"])
            known[key] = _type(row, known.get(key))
        return Catalogue(tuple(known.values()))


def unknown_gpu(catalogue: Catalogue, need: GpuNeed) -> NotANeed | None:
    """The problem with a GPU that no VM type has; None where one does."""
    if catalogue.knows_gpu(need.name):
        return None
    near = catalogue.near(need.name)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(catalogue.gpus())}"
    return NotANeed("no GPU of this name is known", hint)


@functools.cache
def packaged() -> Catalogue:
    """What this version of spothop knows."""
    text = resources.files("spothop.catalog").joinpath("vms.csv").read_text(encoding="utf-8")
    return Catalogue(()).corrected(rows(text))


def read(file: Path | None) -> Catalogue:
    """The package's catalogue, corrected by `file`. Raises BadCatalogue, which names it."""
    if file is None:
        return packaged()
    try:
        return packaged().corrected(rows(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise BadCatalogue(f"catalogue {file}: {error}") from error
    except BadCatalogue as error:
        raise BadCatalogue(f"catalogue {file}: {error}") from None


def rows(text: str) -> list[dict[str, str]]:
    """The lines below the header; blank ones and those that begin with # are comments. Columns may
    be left out, but for `cloud` and `vm`. Raises BadCatalogue."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    reader = csv.DictReader(lines, restkey="", restval="")
    names = reader.fieldnames or []
    strange = [name for name in names if name not in COLUMNS]
    if strange or not {"cloud", "vm"} <= set(names):
        told = f"no column {strange[0]!r}" if strange else "no columns cloud and vm"
        raise BadCatalogue(f"{told}; the first line names some of {','.join(COLUMNS)}")
    found = []
    for row in reader:
        if "" in row:
            raise BadCatalogue(f"{row['vm']}: more values than columns")
        found.append({name: (row.get(name) or "").strip() for name in COLUMNS})
        if not found[-1]["cloud"] or not found[-1]["vm"]:
            raise BadCatalogue(
                f"a line without cloud or VM type: {','.join(map(str, row.values()))}"
            )
    return found


def _by_price(each: VmType, region: str | None) -> tuple[float, str, str]:
    price = each.price(region)
    return (math.inf if price is None else price, each.cloud, each.vm)


def _type(row: Mapping[str, str], known: VmType | None) -> VmType:
    name = f"{row['cloud']}/{row['vm']}"
    if known is None and not (row["cpus"] and row["memory_gib"]):
        raise BadCatalogue(f"{name}: a new VM type needs cpus and memory_gib")
    before = known.shape if known is not None else Shape(cpus=0, memory_gib=0)

    def number(key: str, else_: float) -> float:
        return _number(name, key, row[key]) if row[key] else else_

    shape = Shape(
        cpus=number("cpus", before.cpus),
        memory_gib=number("memory_gib", before.memory_gib),
        gpu=row["gpu"] or before.gpu,
        gpus=int(number("gpus", before.gpus)),
        gpu_memory_gib=number("gpu_memory_gib", before.gpu_memory_gib),
        arch=row["arch"] or before.arch,
    )
    if bool(shape.gpu) != bool(shape.gpus):
        raise BadCatalogue(f"{name}: gpu and gpus belong together")
    prices = {**(known.prices if known is not None else {}), **_prices(name, row["prices"])}
    spot = {**(known.spot_prices if known is not None else {}), **_prices(name, row["spot"])}
    return VmType(cloud=row["cloud"], vm=row["vm"], shape=shape, prices=prices, spot_prices=spot)


def _prices(name: str, text: str) -> dict[str, float]:
    pairs = [pair.partition("=") for pair in text.split()]
    return {region: _number(name, f"price in {region}", price) for region, _, price in pairs}


def _number(name: str, key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 < value < math.inf):
        raise BadCatalogue(f"{name}: {key}: {text!r} is not a number above 0")
    return value
