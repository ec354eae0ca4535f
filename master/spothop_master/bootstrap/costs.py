"""What an installation costs in a month while no job runs. Pure.

Prices in USD of us-east-1, on demand, read on 2026-11-22: VM types from the catalogue; public IPv4
addresses https://aws.amazon.com/vpc/pricing/ (the same whether an address is in use or not); gp3
disks https://aws.amazon.com/ebs/pricing/; S3 https://aws.amazon.com/s3/pricing/. Other regions are
up to about a third dearer; where the catalogue has no price of the region, this is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spothop.catalog.table import Catalogue
from spothop_master.bootstrap import desired
from spothop_master.bootstrap.on_vm import BACKUP_EVERY_S

HOURS = 730
"""Of a month, as AWS counts them."""
ADDRESS, DISK_GB, PUTS = 0.005, 0.08, 0.005 / 1000
"""An hour; a GB and month; a request that writes to S3."""
PUTS_A_BACKUP = 2
PRICED = "us-east-1"


@dataclass(frozen=True, kw_only=True)
class Cost:
    what: str
    usd: float | None
    """A month; None: not known."""


def costs(catalogue: Catalogue, *, region: str, vm_type: str) -> Sequence[Cost]:
    known = catalogue.get("aws", vm_type)
    here = known.price(region) if known is not None else None
    price = here if here is not None else (known.price(PRICED) if known is not None else None)
    elsewhere = f", price of {PRICED}" if here is None and price is not None else ""
    backups = HOURS * 3600 / BACKUP_EVERY_S * PUTS_A_BACKUP
    return [
        Cost(
            what=f"VM {vm_type}, on demand{elsewhere}",
            usd=None if price is None else price * HOURS,
        ),
        Cost(what="elastic address", usd=ADDRESS * HOURS),
        Cost(what=f"disk of {desired.DISK_GB} GB", usd=DISK_GB * desired.DISK_GB),
        Cost(what="backups: requests to S3", usd=backups * PUTS),
    ]


def total(rows: Sequence[Cost]) -> float:
    """Of what is known."""
    return sum(row.usd for row in rows if row.usd is not None)
