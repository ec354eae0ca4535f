"""The only way to the master: join, sync, bundle, logs. Knows when to try again.

Reports wait in the spool, so nothing here is lost when the master is away; the loop goes on with
jittered, capped pauses (I9) and at once when something urgent is reported.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from pathlib import Path

import httpx
from pydantic import ValidationError

from spothop.backoff import delay_s
from spothop.tls import trusting
from spothop.wire import (
    LOGS_RIDE,
    OLDEST_PROTOCOL,
    SPEAKS,
    SPOKEN,
    AnyDirective,
    JoinReply,
    JoinRequest,
    LogReply,
    LogState,
    Problem,
    SyncReply,
    SyncRequest,
    speaks,
)
from spothop_agent.clock import Clock
from spothop_agent.spool import BATCH, Spool

TIMEOUT_S = 10.0
BACKOFF_FIRST_S = 0.5
BACKOFF_GROWTH = 1.5
"""Less than the usual 2: a master that is started again is back after a second, and should hear of
all its VMs soon."""
BACKOFF_CAP_S = 5.0
RETRY_AFTER_CAP_S = 30.0
SYNC_BYTES = 1 << 20
"""About the most in one sync; a master takes more, unless it is set to take less."""
URGENT_GAP_S = 0.1
"""Between two syncs, however urgent."""
UNKNOWN_SESSION_S = 600.0
"""A master that says for so long that it does not know us has lost us for good."""

_log = logging.getLogger(__name__)

#   LinkError
#   |-- MasterAway     no answer, or a failure of its own: try again
#   |-- Refused        it answered and will not change its mind
#   |   |-- TooLarge   413: it may take fewer reports at once
#   |   `-- Unknown    401: it does not know the token or the session
#   `-- VmOver         410: this VM is over for the master


class LinkError(Exception):
    """The master did not do what was asked; the message says why."""

    retry_after_s = 0.0
    """The master does not want to be asked again before."""


class MasterAway(LinkError): ...


class Refused(LinkError): ...


class TooLarge(Refused): ...


class Unknown(Refused): ...


class VmOver(LinkError): ...


def backoff_s(failures: int, rng: random.Random) -> float:
    """Pause in seconds after so many failures of the master in a row."""
    return delay_s(
        failures,
        base_s=BACKOFF_FIRST_S,
        max_s=BACKOFF_CAP_S,
        growth=BACKOFF_GROWTH,
        jitter=rng.random(),
    )


def check(response: httpx.Response) -> None:
    """Raises the LinkError that the status means."""
    if response.is_success:
        return
    try:
        problem = Problem.model_validate_json(response.content)
        text = f"{problem.message} {problem.hint}".strip()
    except ValidationError:
        text = response.text[:200]
    message = f"master answered {response.status_code}: {text}"
    if response.status_code == 410:
        raise VmOver(message)
    if response.status_code == 401:
        raise Unknown(message)
    if response.status_code >= 500 or response.status_code in (408, 425, 429):
        away = MasterAway(message)
        away.retry_after_s = _retry_after_s(response)
        raise away
    if response.status_code == 413:
        raise TooLarge(message)
    raise Refused(message)


def _retry_after_s(response: httpx.Response) -> float:
    """Seconds; a date, which no master of ours sends, is 0."""
    said = response.headers.get("Retry-After", "")
    return min(float(said), RETRY_AFTER_CAP_S) if said.isdecimal() else 0.0


class MasterLink:
    """`on_directives` gets what every sync brings; `over` is set when the VM is over."""

    def __init__(
        self,
        base_url: str,
        *,
        clock: Clock,
        rng: random.Random,
        ca: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`ca`: certificates in PEM that may vouch for the master; empty: the system's. Raises
        ValueError when it holds none."""
        self._client = httpx.AsyncClient(
            base_url=base_url.rstrip("/"),
            timeout=TIMEOUT_S,
            trust_env=False,  # the metadata address and the master are never behind a proxy
            verify=trusting(base_url, ca),
            transport=transport,
        )
        self._clock = clock
        self._rng = rng
        self._most = SYNC_BYTES
        self.heard_at = clock.monotonic()
        """When the master last did what was asked, in seconds of CLOCK_MONOTONIC; at first, now."""
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()
        self.over = asyncio.Event()
        self.lost = asyncio.Event()
        """The master has not known our session for `UNKNOWN_SESSION_S`: nobody ends this VM, and
        nobody stands in for what it has not saved."""
        self.on_log: Callable[[LogState | None], None] = lambda state: None
        """Gets what a sync's answer says of the log; an older master says nothing (None)."""

    def use_session(self, session: str) -> None:
        self._client.headers["Authorization"] = f"Bearer {session}"

    async def close(self) -> None:
        await self._client.aclose()

    # --- joining --------------------------------------------------------------------------------

    async def join(self, request: JoinRequest) -> JoinReply:
        """Join, however long the master is away. Raises Refused when the token is not taken."""
        failures = 0
        while True:
            try:
                content = request.model_dump_json()
                headers = {"Content-Type": "application/json", SPEAKS: speaks()}
                response = await self._post("/agent/v1/join", content=content, headers=headers)
                _log.info("protocol %s", response.headers.get(SPOKEN, OLDEST_PROTOCOL))
                return JoinReply.model_validate_json(response.content)
            except MasterAway as error:
                failures += 1
                _log.warning("join: %s", error)
                await asyncio.sleep(backoff_s(failures, self._rng))

    # --- syncs ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Sync at once: a notice, a commit, an exit."""
        self._wake.set()

    async def run(
        self,
        spool: Spool,
        request: Callable[[], SyncRequest],
        on_directives: Callable[[list[AnyDirective]], None],
    ) -> None:
        """Sync until the VM is over."""
        failures = 0
        unknown_since: float | None = None
        urgent = refused = False
        while not self.over.is_set():
            self._wake.clear()
            try:
                message = request()
                if urgent or refused:  # a notice is not held up by a log, nor by an older master
                    message = message.model_copy(update={"log": None})
                pause = await self.sync(spool, message, on_directives)
                failures, unknown_since, refused = 0, None, False
                self.lost.clear()
            except VmOver as error:
                _log.warning("%s", error)
                self.over.set()
                return
            except LinkError as error:
                failures += 1
                refused = isinstance(error, Refused)
                pause = max(backoff_s(failures, self._rng), error.retry_after_s)
                _log.warning("sync: %s; again in %.1f s", error, pause)
                now = self._clock.monotonic()
                unknown_since = (unknown_since or now) if isinstance(error, Unknown) else None
                if unknown_since is not None and now - unknown_since > UNKNOWN_SESSION_S:
                    self.lost.set()
            urgent = await self._pause(pause)
            if urgent:
                failures = max(
                    failures - 1, 0
                )  # a pause that was cut short does not lengthen the next

    async def sync(
        self,
        spool: Spool,
        request: SyncRequest,
        on_directives: Callable[[list[AnyDirective]], None],
    ) -> float:
        """One exchange; the seconds until the next. Raises LinkError."""
        async with self._turn:  # so that replies are applied in the order of their requests
            if not spool.met:
                spool.ack((await self._exchange(request)).ack_seq)
            batch = spool.batch()
            reply = await self._exchange(request.model_copy(update={"reports": batch}))
            spool.ack(reply.ack_seq)
        on_directives(reply.directives)
        took = len(batch) == BATCH and reply.ack_seq >= batch[0].seq
        return 0.0 if took else reply.next_delay_s

    async def _exchange(self, request: SyncRequest) -> SyncReply:
        headers = {"Content-Type": "application/json", LOGS_RIDE: "1"}
        while True:
            content = request.model_dump_json().encode()
            if len(content) > self._most and len(request.reports) > 1:
                fewer = request.reports[: len(request.reports) // 2]
                request = request.model_copy(update={"reports": fewer})
                continue
            try:
                response = await self._post("/agent/v1/sync", content=content, headers=headers)
                break
            except TooLarge:  # the same again would be refused for ever
                if len(request.reports) <= 1:
                    raise
                self._most = len(content) // 2
        try:
            reply = SyncReply.model_validate_json(response.content)
        except ValidationError as error:
            raise MasterAway(f"sync reply is not readable: {error}") from error
        self.on_log(reply.log)
        return reply

    async def _pause(self, seconds: float) -> bool:
        """True when something urgent ended it."""
        await asyncio.sleep(min(seconds, URGENT_GAP_S))
        try:
            await asyncio.wait_for(self._wake.wait(), max(seconds - URGENT_GAP_S, 0.0))
        except asyncio.TimeoutError:
            return False
        return True

    # --- bundle and logs ------------------------------------------------------------------------

    async def fetch_bundle(self, sha256: str, target: Path) -> None:
        """Write the bundle to `target`. Raises LinkError."""
        try:
            async with self._client.stream("GET", f"/agent/v1/bundles/{sha256}") as response:
                if not response.is_success:
                    await response.aread()
                check(response)
                with open(target, "wb") as file:  # noqa: ASYNC230  a local disk
                    async for chunk in response.aiter_raw():
                        file.write(chunk)
        except httpx.HTTPError as error:
            raise MasterAway(f"bundle {sha256[:12]}: {error!r}") from error

    async def send_log(self, attempt: int, offset: int, chunk: bytes) -> int:
        """The offset that the master wants next. Raises LinkError."""
        response = await self._post(
            "/agent/v1/logs",
            params={"attempt": attempt, "offset": offset},
            content=chunk,
            headers={"Content-Type": "application/octet-stream"},
        )
        try:
            return LogReply.model_validate_json(response.content).next_offset
        except ValidationError as error:
            raise MasterAway(f"log reply is not readable: {error}") from error

    async def _post(
        self,
        path: str,
        *,
        content: str | bytes,
        params: dict[str, int] | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        try:
            response = await self._client.post(
                path,
                content=content,
                params=params,
                headers=headers or {"Content-Type": "application/json"},
            )
        except httpx.HTTPError as error:
            raise MasterAway(f"{path}: {error!r}") from error
        check(response)
        self.heard_at = self._clock.monotonic()
        return response
