"""Calls to the storage, in threads, repeated as long as repeating can help."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from spothop.backoff import delay_s
from spothop.storage.errors import StorageError
from spothop_agent.threads import Threads

P = ParamSpec("P")
T = TypeVar("T")

FIRST_S = 1.0
"""Longest pause after the first failure."""
CAP_S = 15.0
HURRY_CAP_S = 1.0
"""Longest pause after a notice."""
SLOW_FIRST_S, SLOW_S = 2.0, 60.0
"""Longest pauses, the first and any, after a refusal that is final as far as anybody knows."""

_log = logging.getLogger(__name__)


def retryable(error: BaseException) -> bool:
    return isinstance(error, StorageError) and error.retryable


def in_words(error: BaseException) -> str:
    """For people. What is neither of the store nor of the system is a fault of ours: its class says
    more than its text."""
    if isinstance(error, (StorageError, OSError)):
        return str(error)
    return f"unexpected {type(error).__name__}: {error}"


class StorageRetrier:
    """Runs blocking storage calls; pauses are jittered and capped, and end early in a hurry.

    There is no limit to the number of tries: without a notice a job waits for its storage, and
    after one the VM's end is the limit.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        threads: Threads | None = None,
        first_s: float = FIRST_S,
        cap_s: float = CAP_S,
        hurry_cap_s: float = HURRY_CAP_S,
    ) -> None:
        self._rng = rng
        self._threads = threads or Threads()
        self._first_s = first_s
        self._cap_s = cap_s
        self._hurry_cap_s = hurry_cap_s
        self.hurry = asyncio.Event()
        """Set by a notice: pauses under way end, later ones are short."""
        self.on_failure: Callable[[str], None] = _log.warning
        """Called with a text at the first failure in a row."""

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Raises what `function` raises when trying again cannot help."""

        async def once() -> T:
            return await self._threads.storage(function, *args, **kwargs)

        return await self.repeat(once)

    async def repeat(self, once: Callable[[], Awaitable[T]]) -> T:
        """The same for a sequence of calls that is to be begun anew after a failure."""

        async def one_try() -> T:  # tenacity awaits only what is declared async
            return await once()

        return await AsyncRetrying(
            retry=retry_if_exception(retryable),
            wait=self._wait,
            sleep=self._sleep,
            before_sleep=self._note_failure,
            reraise=True,
        )(one_try)

    def _wait(self, state: RetryCallState) -> float:
        cap = self._hurry_cap_s if self.hurry.is_set() else self._cap_s
        return delay_s(
            state.attempt_number, base_s=self._first_s, max_s=cap, jitter=self._rng.random()
        )

    async def pause_slowly(self, refusals: int) -> None:
        """After so many refusals in a row that trying again will hardly change, unless somebody
        changes something. A notice ends the pause, for this may be the last chance."""
        longest = self._hurry_cap_s if self.hurry.is_set() else SLOW_S
        await self._sleep(
            delay_s(refusals, base_s=SLOW_FIRST_S, max_s=longest, jitter=self._rng.random())
        )

    async def _sleep(self, seconds: float) -> None:
        if self.hurry.is_set():
            await asyncio.sleep(seconds)
            return
        try:
            await asyncio.wait_for(self.hurry.wait(), seconds)
        except asyncio.TimeoutError:
            return

    def _note_failure(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if state.attempt_number == 1:
            self.on_failure(f"storage: {error}; trying again until it works")
        else:
            _log.info("storage, try %d: %s", state.attempt_number, error)
