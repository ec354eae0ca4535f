"""A real object store behind a line and a provider that fail by script.

Each request takes the first waiting `Fault` that is for its kind. What a provider refuses goes
through the same tables as a real answer (`storage.codes`). Requests of an agent that is dead have
no effect, except those that were on their way (`Late`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from obstore import exceptions as obs

from fakes.blocking_calls import pause
from spothop.storage import ObjectInfo, ObjectStore, StorageUnavailable
from spothop.storage.base import Fetched, OnBytes, Piece
from spothop.storage.mapping import translate

T = TypeVar("T")

Kind = Literal["any", "create", "send", "get", "scan", "fetch", "delete"]


LOOK_S = 2.0
"""How often a request that waits looks whether it is still wanted."""


@dataclass(frozen=True)
class Refuse:
    """The provider answers with an error."""

    status: int
    code: str


@dataclass(frozen=True)
class Slow:
    """The request takes so long, in virtual seconds."""

    seconds: float


@dataclass(frozen=True)
class Stall:
    """Nothing comes until the client gives up."""

    seconds: float = 120.0
    done: bool = False
    """The operation was done, and only its answer did not come."""


@dataclass(frozen=True)
class Lost:
    """It is done, and the answer is lost."""


@dataclass(frozen=True)
class Late:
    """The line is cut; the request arrives so much later, even when its sender is dead."""

    seconds: float


@dataclass(frozen=True)
class Again:
    """The client library sends it twice: the second one meets what the first one wrote."""


@dataclass(frozen=True)
class Short:
    """A write leaves an object that is cut and fails; a read gets only so many bytes."""

    size: int


@dataclass(frozen=True)
class Behind:
    """A listing leaves out the newest so many."""

    count: int


@dataclass(frozen=True)
class Kill:
    """The agent is killed before the request has an effect, or after it."""

    done: bool


How = Refuse | Slow | Stall | Lost | Late | Again | Short | Behind | Kill


@dataclass
class Fault:
    kind: Kind
    how: How
    times: int = 1


@dataclass
class Faults:
    """What waits to go wrong, for all agents of a VM; `on_change` is called after each write."""

    waiting: list[Fault] = field(default_factory=list)
    on_change: Callable[[str], None] = lambda what: None
    kill: Callable[[], None] = lambda: None
    log: Callable[[str], None] = lambda text: None

    def take(self, kind: Kind) -> How | None:
        for fault in self.waiting:
            if fault.kind in (kind, "any"):
                fault.times -= 1
                if not fault.times:
                    self.waiting.remove(fault)
                return fault.how
        return None


class FaultyStore:
    """An `ObjectStore`, as one agent reaches it."""

    def __init__(
        self,
        store: ObjectStore,
        faults: Faults,
        loop: asyncio.AbstractEventLoop,
        *,
        part: int = 0,
    ) -> None:
        """`part`: as `part_size` says."""
        self._part = part
        self._store = store
        self._faults = faults
        self._loop = loop
        self.dead = False

    @property
    def url(self) -> str:
        return self._store.url

    def create(self, key: str, data: bytes) -> None:
        self._write("create", key, lambda: self._store.create(key, data), creating=True)

    def put(self, key: str, data: bytes) -> None:
        self._write("send", key, lambda: self._store.put(key, data))

    def send(self, key: str, file: Path, *, size: int, on_bytes: OnBytes) -> str:
        def cut(to: int) -> None:
            self._store.put(key, file.read_bytes()[:to])

        def work() -> str:
            return self._store.send(key, file, size=size, on_bytes=on_bytes)

        return self._write("send", key, work, cut=cut)

    def get(self, key: str) -> bytes:
        found, how = self._read("get", key, lambda: self._store.get(key))
        return found[: how.size] if isinstance(how, Short) else found

    def size(self, key: str) -> int:
        return self._read("get", key, lambda: self._store.size(key))[0]

    def info(self, key: str) -> ObjectInfo:
        return self._read("get", key, lambda: self._store.info(key))[0]

    def part_size(self, size: int) -> int:
        return self._part

    def send_pieces(
        self,
        pieces: Iterator[Piece],
        *,
        on_sent: Callable[[Piece], None],
        still_wanted: Callable[[], object],
        left_s: Callable[[], float | None],
    ) -> None:
        """One after the other."""
        for piece in pieces:
            still_wanted()

            def cut(to: int, piece: Piece = piece) -> None:
                self._store.put(piece.key, piece.data[:to])

            def work(piece: Piece = piece) -> None:
                self._store.put(piece.key, piece.data)

            self._write("send", piece.key, work, cut=cut, still_wanted=still_wanted)
            on_sent(piece)

    def fetch(
        self,
        key: str,
        file: Path,
        *,
        size: int,
        on_bytes: OnBytes,
        sync: bool = True,
        part: int = 0,
    ) -> Fetched:
        def work() -> Fetched:
            return self._store.fetch(key, file, size=size, on_bytes=on_bytes, sync=False, part=part)

        found, how = self._read("fetch", key, work)
        if isinstance(how, Short):
            file.write_bytes(file.read_bytes()[: how.size])
            return Fetched(found.sha256[::-1], found.size)
        return found

    def scan(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        found, how = self._read("scan", prefix, lambda: list(self._store.scan(prefix, after=after)))
        if isinstance(how, Behind):
            found = sorted(found, key=lambda info: info.key)[: -how.count]
        return iter(found)

    def folders(self, prefix: str) -> list[str]:
        return self._read("scan", prefix, lambda: self._store.folders(prefix))[0]

    def delete(self, keys: Iterable[str]) -> None:
        """One request each: an interrupted deletion leaves the rest."""
        for key in keys:
            self._write("delete", key, lambda key=key: self._store.delete([key]))

    def discard_partial(self, prefix: str) -> None:
        self._store.discard_partial(prefix)

    # --- what goes wrong ------------------------------------------------------------------------

    def _write(
        self,
        kind: Kind,
        key: str,
        work: Callable[[], T],
        *,
        creating: bool = False,
        cut: Callable[[int], None] = lambda size: None,
        still_wanted: Callable[[], object] = lambda: None,
    ) -> T:
        def effect() -> T:
            self._alive(key)
            result = work()
            self._faults.on_change(f"{kind} {key}")
            return result

        def arrive() -> None:
            try:
                work()
            except Exception:  # nobody waits for this answer any more
                return
            self._faults.on_change(f"late {kind} {key}")

        how = self._begin(kind, key)
        match how:
            case Late(seconds):
                self._loop.call_later(seconds, arrive)
                raise self._away(key, "the connection was cut")
            case Lost() | Stall(done=True):
                effect()
            case Short(size):
                cut(size)
                raise self._away(key, "cut short")
            case Again():
                effect()
        if isinstance(how, Lost):
            raise self._away(key, "the answer was lost")
        return self._end(
            kind,
            key,
            how,
            effect,
            writing=True,
            creating=creating,
            still_wanted=still_wanted,
        )

    def _read(self, kind: Kind, key: str, work: Callable[[], T]) -> tuple[T, How | None]:
        how = self._begin(kind, key)
        return self._end(kind, key, how, lambda: (self._alive(key), work())[1]), how

    def _begin(self, kind: Kind, key: str) -> How | None:
        self._alive(key)
        how = self._faults.take(kind)
        self._faults.log(f"    {kind} {key}" + (f"  <- {how}" if how else ""))
        if how == Kill(done=False):
            self._faults.kill()
            self._alive(key)
        return how

    def _end(
        self,
        kind: Kind,
        key: str,
        how: How | None,
        effect: Callable[[], T],
        *,
        writing: bool = False,
        creating: bool = False,
        still_wanted: Callable[[], object] = lambda: None,
    ) -> T:
        match how:
            case Refuse(status, code):
                raise refusal(self.url, key, status, code, writing=writing, creating=creating)
            case Stall(seconds):
                _pause(seconds, still_wanted)
                raise self._away(key, "no answer in time")
            case Slow(seconds):
                _pause(seconds, still_wanted)
            case Lost() | Late():
                raise self._away(key, "the connection was cut")
        result = effect()
        if how == Kill(done=True):
            self._faults.kill()
            self._alive(key)
        return result

    def _alive(self, key: str) -> None:
        if self.dead:
            raise self._away(key, "its sender is dead")

    def _away(self, key: str, why: str) -> StorageUnavailable:
        return StorageUnavailable(f"{key!r} in {self.url} failed: {why}")


def _pause(seconds: float, still_wanted: Callable[[], object]) -> None:
    while seconds > 0:
        pause(min(LOOK_S, seconds))
        seconds -= LOOK_S
        still_wanted()


def refusal(
    url: str, key: str, status: int, code: str, *, writing: bool, creating: bool
) -> Exception:
    """What our store makes of such an answer, as obstore passes it on."""
    body = f"<Error><Code>{code}</Code></Error>" if code else ""
    text = f"Error performing a request - Server returned non-2xx status code: {status}: {body}"
    return translate(obs.GenericError(text), url, key, writing=writing, creating=creating)
