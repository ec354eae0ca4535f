"""The Retail Prices API: meters of VM types, with those that are not the plain Linux VM."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

Meter = dict[str, Any]


def meters(types: Mapping[str, tuple[float, float]], region: str = "eastus") -> list[Meter]:
    """VM type -> USD an hour as spot, and on demand."""
    return [meter for vm, prices in types.items() for meter in _meters(vm, region, *prices)]


def _meters(vm: str, region: str, spot: float, on_demand: float) -> list[Meter]:
    size = vm.removeprefix("Standard_").replace("_", " ")
    linux, windows = f"Virtual Machines {size} Series", f"Virtual Machines {size} Series Windows"
    return [
        _meter(vm, region, f"{size} Spot", linux, spot),
        _meter(vm, region, size, linux, on_demand),
        _meter(vm, region, f"{size} Low Priority", linux, spot / 10),
        _meter(vm, region, f"{size} Spot", windows, spot / 10),
        _meter(vm, region, size, windows, on_demand / 10),
    ]


def _meter(vm: str, region: str, meter: str, product: str, usd: float) -> Meter:
    return {
        "currencyCode": "USD",
        "retailPrice": usd,
        "unitPrice": usd,
        "armRegionName": region,
        "meterName": meter,
        "productName": product,
        "serviceName": "Virtual Machines",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "armSkuName": vm,
    }


def answer(rows: list[Meter], query: Mapping[str, str], base: str, page: int) -> dict[str, Any]:
    wanted = query.get("$filter", "")
    region = re.search(r"armRegionName eq '([^']*)'", wanted)
    types = set(re.findall(r"armSkuName eq '([^']*)'", wanted))
    found = [
        row
        for row in rows
        if region and row["armRegionName"] == region[1] and row["armSkuName"] in types
    ]
    first = int(query.get("$skip", 0))
    following = f"{base}/api/retail/prices?$filter={quote(wanted)}&$skip={first + page}"
    return {
        "BillingCurrency": "USD",
        "Items": found[first : first + page],
        "NextPageLink": following if len(found) > first + page else None,
        "Count": len(found[first : first + page]),
    }
