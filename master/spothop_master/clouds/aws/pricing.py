"""What VM types cost on demand, by AWS's own Price List.

It is served in a few regions for all of them, and large: a thousand products of a region come on
ten pages of a megabyte each. So it is read rarely, and pools are offered before, at the catalogue's
prices. (https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/price-list-query-api.html)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from spothop_master.clouds.aws.calls import Caller

SERVED_IN = "us-east-1"
PLAIN_LINUX: Mapping[str, str] = {
    "operatingSystem": "Linux",
    "preInstalledSw": "NA",
    "tenancy": "Shared",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}
"""The product among those of one VM type that is the VM alone."""


def question(region: str) -> dict[str, Any]:
    wanted = {"regionCode": region, **PLAIN_LINUX}
    return {
        "ServiceCode": "AmazonEC2",
        "FormatVersion": "aws_v1",
        "Filters": [
            {"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()
        ],
    }


def read(calls: Caller, region: str) -> dict[str, float]:
    """VM type -> USD an hour. Raises CloudError."""
    return prices(calls.pages("pricing", SERVED_IN, "get_products", **question(region)))


def prices(pages: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Each product is JSON in a text; one with several prices counts with its lowest."""
    found: dict[str, float] = {}
    for page in pages:
        for text in page["PriceList"]:
            product = json.loads(text)
            vm = product["product"]["attributes"].get("instanceType")
            usd = [*_hourly(product.get("terms", {}).get("OnDemand", {}))]
            if vm and usd:
                found[vm] = min([*usd, found.get(vm, usd[0])])
    return found


def _hourly(terms: Mapping[str, Any]) -> Iterable[float]:
    for term in terms.values():
        for price in term["priceDimensions"].values():
            usd = float(price["pricePerUnit"].get("USD", 0))
            if price["unit"] == "Hrs" and usd > 0:
                yield usd
