"""EC2's Price List, which moto lacks: products of each VM type, of which one is the VM alone."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

PAGE = 2
"""Products in one answer; AWS gives up to 100."""
DEARER = {"Windows": 2.0, "Linux": 1.0}


def get_products(params: Mapping[str, Any], prices: Mapping[str, Mapping[str, float]]) -> str:
    """`prices`: region -> VM type -> USD an hour of the plain Linux VM."""
    assert params["ServiceCode"] == "AmazonEC2"
    wanted = {each["Field"]: each["Value"] for each in params.get("Filters", ())}
    assert all(each["Type"] == "TERM_MATCH" for each in params.get("Filters", ()))
    found = [
        json.dumps(product)
        for product in _products(prices)
        if wanted.items() <= product["product"]["attributes"].items()
    ]
    first = int(params.get("NextToken") or 0)
    answer: dict[str, Any] = {"FormatVersion": "aws_v1", "PriceList": found[first : first + PAGE]}
    if first + PAGE < len(found):
        answer["NextToken"] = str(first + PAGE)
    return json.dumps(answer)


def _products(prices: Mapping[str, Mapping[str, float]]) -> Iterator[dict[str, Any]]:
    for region, types in prices.items():
        for vm, usd in types.items():
            kinds = itertools.product(DEARER, ("Shared", "Dedicated"), ("Used", "AllocatedHost"))
            for system, tenancy, status in kinds:
                attributes = {
                    "instanceType": vm,
                    "regionCode": region,
                    "operatingSystem": system,
                    "preInstalledSw": "NA",
                    "tenancy": tenancy,
                    "capacitystatus": status,
                    "marketoption": "OnDemand",
                }
                price = usd * DEARER[system] * (1 if tenancy == "Shared" else 1.1)
                yield {
                    "serviceCode": "AmazonEC2",
                    "product": {"productFamily": "Compute Instance", "attributes": attributes},
                    "terms": {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": _price(price)}}}},
                }


def _price(usd: float) -> dict[str, Any]:
    return {"unit": "Hrs", "pricePerUnit": {"USD": f"{usd:.10f}"}}
