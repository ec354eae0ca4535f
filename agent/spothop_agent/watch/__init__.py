"""Watches a VM's metadata endpoint for the cloud's notice that it takes the VM back.

One module per dialect, one `Notice` for all. A watcher yields each event once, never ends and never
raises because of what the endpoint answers: an unusable answer is logged and asked again after a
jittered pause. A recommendation to leave the VM is a notice of the kind `AT_RISK`, which announces
no end. Other events go to `inform`.
"""

from __future__ import annotations

import logging
import random
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
from typing_extensions import assert_never

from spothop.wire import Dialect
from spothop_agent.watch import aws, azure, gcp
from spothop_agent.watch.endpoint import AT_RISK, Endpoint, Notice

__all__ = ["AT_RISK", "LONGEST_GRACE_S", "Notice", "acknowledge", "metadata_client", "watch"]

LONGEST_GRACE_S = 120.0
"""The longest grace period that a spot VM of any of the three clouds has."""

_log = logging.getLogger(__name__)


def metadata_client() -> httpx.AsyncClient:
    """A client that never goes through a proxy: the endpoint is link-local. It speaks plain HTTP
    with all three vendors, so that no certificate authorities are read (20 ms)."""
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.AsyncClient(trust_env=False, follow_redirects=False, verify=nobody)


async def watch(
    dialect: Dialect,
    base_url: str,
    *,
    vm_name: str | None,
    client: httpx.AsyncClient,
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
    grace_s: float = LONGEST_GRACE_S,
    wall: Callable[[], float] = time.time,
    rng: random.Random | None = None,
    inform: Callable[[str], None] = _log.info,
) -> AsyncIterator[Notice]:
    """Yield every notice of this VM, once per event; runs until it is closed or cancelled.

    `clock` is CLOCK_MONOTONIC in seconds, `wall` the Unix time, `grace_s` what the pool promises:
    no deadline lies further ahead. `vm_name` is the VM's name in Azure's events (asked of the
    endpoint when None); the other dialects do not need it.
    """
    endpoint = Endpoint(
        base_url=base_url.rstrip("/"),
        client=client,
        clock=clock,
        sleep=sleep,
        wall=wall,
        rng=rng or random.Random(),
        grace_s=grace_s,
        inform=inform,
    )
    async for notice in _notices(dialect, endpoint, vm_name):
        yield notice


def _notices(dialect: Dialect, endpoint: Endpoint, vm_name: str | None) -> AsyncIterator[Notice]:
    match dialect:
        case Dialect.AWS:
            return aws.notices(endpoint)
        case Dialect.AZURE:
            return azure.notices(endpoint, vm_name)
        case Dialect.GCP:
            return gcp.notices(endpoint)
        case _:
            assert_never(dialect)


async def acknowledge(notice: Notice) -> bool:
    """Tell the cloud that it may take the VM now; call it only after the last backup committed.

    True when the cloud was told; False when it refused or has no such call (AWS, GCP).
    """
    return await notice.release() if notice.release is not None else False
