"""What VM types cost, by Azure's Retail Prices API: spot and on demand, in USD an hour.

It is public and needs no key (https://learn.microsoft.com/rest/api/cost-management/retail-prices).
One VM type has several meters: of Linux and of Windows, of spot, of `Low Priority` (the batch
service's), and in some regions of other services.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from spothop_master.clouds.base import AuthFailed, Throttled, Unavailable

PATH = "/api/retail/prices"
VERSION = "2023-01-01-preview"
TYPES_AT_ONCE = 15
"""VM types in one question: the address stays below 2,000 characters."""
PAGES = 50
"""The most that one question is followed; its answer has one page of a hundred meters or two."""
TIMEOUT_S = 30.0

Ask = Callable[[str, Mapping[str, str]], Any]


@dataclass(frozen=True)
class Prices:
    """Of one region, by VM type in lower case."""

    spot: Mapping[str, float] = field(default_factory=dict)
    on_demand: Mapping[str, float] = field(default_factory=dict)


def asker(base_url: str, *, transport: httpx.BaseTransport | None = None) -> Ask:
    """One request. Raises CloudError."""
    contexts: list[ssl.SSLContext] = []  # made at the first call: it takes a tenth of a second

    def ask(url: str, query: Mapping[str, str]) -> Any:
        try:
            if not contexts:
                contexts.append(httpx.create_ssl_context())
            place = url or f"{base_url.rstrip('/')}{PATH}"
            with httpx.Client(timeout=TIMEOUT_S, transport=transport, verify=contexts[0]) as client:
                answer = client.get(place, params=query or None)
        except httpx.HTTPError as error:
            raise Unavailable(f"the Retail Prices API does not answer: {error}") from error
        told = f"the Retail Prices API answered with status {answer.status_code}"
        if answer.status_code == 429:
            raise Throttled(told, code="429")
        if answer.status_code in (401, 403):
            raise AuthFailed(told, code=str(answer.status_code))
        try:
            content = answer.json()
        except ValueError as error:
            raise Unavailable(f"{told}, without JSON") from error
        if not answer.is_success or not isinstance(content, dict):
            raise Unavailable(told, code=str(answer.status_code))
        return content

    return ask


def read(ask: Ask, region: str, vm_types: Iterable[str]) -> Prices:
    """Raises CloudError."""
    spot: dict[str, float] = {}
    on_demand: dict[str, float] = {}
    for some in _parts(sorted(vm_types)):
        for item in _items(ask, question(region, some)):
            usd = _hourly(item)
            if usd is None:
                continue
            found = spot if _is_spot(item) else on_demand
            vm = str(item["armSkuName"]).lower()
            found[vm] = min(usd, found.get(vm, usd))
    return Prices(spot=spot, on_demand=on_demand)


def question(region: str, vm_types: Iterable[str]) -> dict[str, str]:
    types = " or ".join(f"armSkuName eq '{vm}'" for vm in vm_types)
    wanted = (
        "serviceName eq 'Virtual Machines' and priceType eq 'Consumption'"
        f" and armRegionName eq '{region}' and ({types})"
    )
    return {"api-version": VERSION, "currencyCode": "USD", "$filter": wanted}


def _items(ask: Ask, query: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    url, page = "", query
    for _ in range(PAGES):
        answer = ask(url, page)
        yield from answer.get("Items", ())
        url, page = answer.get("NextPageLink") or "", {}
        if not url:
            return


def _hourly(item: Mapping[str, Any]) -> float | None:
    """USD; None for what is not the plain Linux VM."""
    product, meter = str(item.get("productName", "")), str(item.get("meterName", ""))
    other = "Windows" in product or "Cloud Services" in product or "CloudServices" in product
    if other or "Low Priority" in meter or item.get("unitOfMeasure") != "1 Hour":
        return None
    if item.get("currencyCode") != "USD" or item.get("type", "Consumption") != "Consumption":
        return None
    usd = float(item.get("retailPrice") or 0)
    return usd if usd > 0 and item.get("armSkuName") else None


def _is_spot(item: Mapping[str, Any]) -> bool:
    return str(item.get("meterName", "")).endswith(" Spot")


def _parts(names: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(names), TYPES_AT_ONCE):
        yield names[first : first + TYPES_AT_ONCE]
