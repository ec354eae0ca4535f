"""`spothop catalog`: the VM types that spothop knows, by kind of GPU or by price."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from spothop.catalog.needs import (
    Amount,
    GpuNeed,
    Needs,
    NotANeed,
    parse_cpus,
    parse_gpu,
    parse_memory,
)
from spothop.catalog.table import BadCatalogue, Catalogue, VmType, read, unknown_gpu
from spothop.cli.text import print_table, print_text
from spothop.durations import NOTHING
from spothop.wire import PoolView

SHOWN = 50
"""VM types, without --all."""


def catalogue(file: Path | None) -> Catalogue:
    try:
        return read(file)
    except BadCatalogue as error:
        raise typer.BadParameter(str(error)) from None


def gpu_need(known: Catalogue, text: str) -> GpuNeed:
    """Without a number any number will do: who looks wants to see which there are."""
    try:
        need = parse_gpu(text)
        if problem := unknown_gpu(known, need):
            raise problem
    except NotANeed as error:
        raise typer.BadParameter(
            f"{text!r}: {error.fact}; {error.hint}", param_hint="--gpu"
        ) from None
    return need if ":" in text else GpuNeed(need.name, Amount(1, or_more=True), text)


def needs(known: Catalogue, gpus: Sequence[str], cpus: str | None, memory: str | None) -> Needs:
    found = {}
    for option, text, parse in (("--cpus", cpus, parse_cpus), ("--memory", memory, parse_memory)):
        try:
            found[option] = parse(text) if text is not None else None
        except NotANeed as error:
            told = f"{text!r} {error.fact}; {error.hint}"
            raise typer.BadParameter(told, param_hint=option) from None
    return Needs(
        gpus=tuple(gpu_need(known, text) for text in gpus),
        cpus=found["--cpus"],
        memory=found["--memory"],
    )


def known_cloud(known: Catalogue, cloud: str) -> str:
    names = sorted({each.cloud for each in known.types})
    if cloud not in names:
        told = f"{cloud!r} is not in the catalogue, which has {', '.join(names)}"
        raise typer.BadParameter(told, param_hint="--cloud")
    return cloud


def kinds(console: Console, known: Catalogue) -> None:
    """A line for each GPU of one size."""
    groups: dict[tuple[str, float], list[VmType]] = {}
    for each in known.types:
        if each.shape.gpus:
            groups.setdefault((each.shape.gpu, each.shape.gpu_memory_gib), []).append(each)
    rows = []
    for (gpu, size), types in sorted(groups.items()):
        counts = sorted({each.shape.gpus for each in types})
        prices = [each.price() for each in types]
        clouds = " ".join(sorted({each.cloud for each in types}))
        least = _usd(min((p for p in prices if p is not None), default=None))
        rows.append((gpu, f"{size:g}GB", " ".join(map(str, counts)), clouds, least))
    columns = ("GPU", "MEMORY", "IN ONE VM", "CLOUDS", "FROM USD/H")
    print_table(console, columns, rows, right=("MEMORY", "FROM USD/H"))
    plain = sum(not each.shape.gpus for each in known.types)
    print_text(
        console,
        f"and {plain} VM types without a GPU. `spothop catalog --gpu A100` or `--cpus 16+` shows "
        "VM types. Prices are on demand, for the cheapest VM.",
    )


def vm_types(
    console: Console, types: Sequence[VmType], *, region: str | None, every: bool = False
) -> None:
    if not types:
        where = f" with a known price in {region}" if region is not None else ""
        print_text(console, f"the catalogue has no such VM type{where}")
        return
    shown = types if every else types[:SHOWN]
    columns: tuple[str, ...] = ("VM TYPE", "GPU", "CPUS", "GIB", "USD/H", "REGION")
    rows: list[tuple[str, ...]] = [
        (
            f"{each.cloud}/{each.vm}",
            each.shape.gpu_text,
            f"{each.shape.cpus:g}",
            f"{each.shape.memory_gib:g}",
            _usd(each.price(region)),
            region or each.cheapest or "",
        )
        for each in shown
    ]
    if not any(each.shape.gpus for each in shown):
        columns, rows = _without(1, columns, rows)
    print_table(console, columns, rows, right=("CPUS", "GIB", "USD/H"), under=("REGION",))
    if len(shown) < len(types):
        print_text(console, f"{len(types) - len(shown)} more; --all shows them")
    where = f"in {region}" if region else "in the cheapest region whose price is known"
    print_text(console, f"USD/H: on demand, {where}; {NOTHING} where no source tells it")


def offered(
    types: Sequence[VmType], pools: Sequence[PoolView], *, region: str | None
) -> list[tuple[VmType, PoolView]]:
    """Of these VM types those that the master's clouds offer as spot now, each with its cheapest
    pool, by that price."""
    best: dict[tuple[str, str], PoolView] = {}
    for each in pools:
        key, known = (each.pool.cloud, each.pool.vm), best.get((each.pool.cloud, each.pool.vm))
        if (
            each.pool.spot
            and region in (None, each.pool.region)
            and (known is None or each.price < known.price)
        ):
            best[key] = each
    found = [(each, best[each.cloud, each.vm]) for each in types if (each.cloud, each.vm) in best]
    return sorted(found, key=lambda pair: (pair[1].price, str(pair[1].pool)))


def offers(console: Console, found: Sequence[tuple[VmType, PoolView]]) -> None:
    if not found:
        print_text(console, "the master's clouds offer no such VM type as spot now")
        return
    columns: tuple[str, ...] = ("VM TYPE", "GPU", "CPUS", "GIB", "SPOT", "ON DEMAND", "ZONE")
    rows: list[tuple[str, ...]] = [
        (
            f"{each.cloud}/{each.vm}",
            each.shape.gpu_text,
            f"{each.shape.cpus:g}",
            f"{each.shape.memory_gib:g}",
            _usd(pool.price),
            _usd(pool.on_demand_price),
            pool.pool.zone,
        )
        for each, pool in found
    ]
    if not any(each.shape.gpus for each, _ in found):
        columns, rows = _without(1, columns, rows)
    figures = ("CPUS", "GIB", "SPOT", "ON DEMAND")
    print_table(console, columns, rows, right=figures, under=("ZONE",))
    print_text(console, "USD an hour, in the cheapest zone now, as the master's clouds say")


def offers_json(found: Sequence[tuple[VmType, PoolView]]) -> list[dict[str, Any]]:
    return [
        {**facts, "offer": pool.model_dump(mode="json")}
        for facts, (_, pool) in zip(as_json([each for each, _ in found]), found, strict=True)
    ]


def as_json(types: Sequence[VmType]) -> list[dict[str, Any]]:
    return [
        {
            "cloud": each.cloud,
            "vm": each.vm,
            "gpu": each.shape.gpu or None,
            "gpus": each.shape.gpus,
            "gpu_memory_gib": each.shape.gpu_memory_gib,
            "cpus": each.shape.cpus,
            "memory_gib": each.shape.memory_gib,
            "arch": each.shape.arch,
            "prices": dict(each.prices),
        }
        for each in types
    ]


def _without(
    i: int, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    return columns[:i] + columns[i + 1 :], [row[:i] + row[i + 1 :] for row in rows]


def _usd(price: float | None) -> str:
    return NOTHING if price is None else f"{price:.4g}"
