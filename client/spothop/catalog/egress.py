"""What it costs to read a bucket from elsewhere. The figures, their date and source: egress.csv."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import resources

REGION, INTERNET = "region", "internet"


@dataclass(frozen=True, kw_only=True)
class Egress:
    """USD for each GB that is read; None where there is no figure, and then `why` says so."""

    usd_per_gb: float | None
    why: str


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One line of the file."""

    usd_per_gb: float
    read: date
    source: str


def egress(*, cloud: str, region: str, to_cloud: str, to_region: str) -> Egress:
    """From a bucket of `cloud` in `region` to a VM. What is empty is not known.

    A price for another continent may be higher than the one that is told for another region.
    """
    if not cloud:
        return Egress(usd_per_gb=None, why="where the storage lies is not known")
    if cloud != to_cloud:
        return _of(cloud, INTERNET, "to another cloud")
    if not region:
        return Egress(usd_per_gb=None, why="the region of the storage is not known")
    if region == to_region:
        return Egress(usd_per_gb=0.0, why="inside a region")
    return _of(cloud, REGION, "to another region")


def _of(cloud: str, to: str, words: str) -> Egress:
    fact = facts().get((cloud, to))
    if fact is None:
        return Egress(usd_per_gb=None, why=f"no figure for {cloud} {words}")
    return Egress(
        usd_per_gb=fact.usd_per_gb, why=f"list price of {cloud} {words}, read on {fact.read}"
    )


@cache
def facts() -> dict[tuple[str, str], Fact]:
    """By cloud and where to."""
    text = resources.files(__package__).joinpath("egress.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {
        (row["cloud"], row["to"]): Fact(
            usd_per_gb=float(row["usd_per_gb"]),
            read=date.fromisoformat(row["read"]),
            source=row["source"],
        )
        for row in rows
    }
