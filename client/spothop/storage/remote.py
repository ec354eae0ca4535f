"""Every store but a folder, through obstore.

Checkpoints go as pieces (`send_pieces`): a file of more than `PART` bytes becomes several objects.
Why not a multipart upload: obstore (0.12) shows neither its id nor the tags of its parts, so it
cannot be gone on with after an error or by an agent that was started again, its parts cannot be
sent twice, and one whose process is killed stays behind and costs money until a lifecycle rule
of the bucket ends it. Pieces have none of that: each is durable by itself, and those that no chain
entry names are pruned.

What people read by other means (a job's outputs) goes whole (`send`), by obstore's multipart
upload. obstore aborts one that fails; for one whose process is killed a bucket needs the rule
(AbortIncompleteMultipartUpload on S3).

Memory while something is written or read stays under about 60 MiB.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.store import ObjectStore as AnyObstore

from spothop.storage.base import MIB, Block, Fetched, ObjectInfo, OnBytes, Piece, part_key
from spothop.storage.codes import status_of
from spothop.storage.errors import ObjectMissing, StorageError
from spothop.storage.hashing import Hasher, write_at
from spothop.storage.mapping import mapped, reading
from spothop.storage.sending import Sending, Stalled
from spothop.storage.window import FIRST, Patience, Window

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta

PART = 8 * MIB
NO_SUCH_RANGE = 416
MAX_PARTS = 10_000
"""S3 multipart limits: https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html"""
_IN_FLIGHT = 4
_READ_BLOCK = 2 * MIB
_CHUNK = 1 * MIB
BUDGET = 48 * MIB
"""Bytes of pieces under way at once, at most."""
_BULK = 1000  # keys in one DeleteObjects request of S3


def part_size(size: int, least: int = PART) -> int:
    """Bytes a part of an object of `size` bytes: whole MiB where more than `least`, so that 10,000
    parts are enough."""
    return least if size <= least * MAX_PARTS else max(least, -(-size // (MAX_PARTS * MIB)) * MIB)


def in_flight(part: int) -> int:
    """Parts under way at once, so that memory stays bounded."""
    return max(1, min(_IN_FLIGHT, BUDGET // part - 1))


class RemoteStore:
    """An `ObjectStore` over any store of obstore; `url` is what messages show. `reader` is the same
    one with the time-outs for reading."""

    def __init__(
        self,
        store: AnyObstore,
        url: str,
        *,
        reader: AnyObstore | None = None,
        part: int = PART,
        patience: Patience | None = None,
        window: Callable[[], Window] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._reader = reader or store
        self._url = url
        self._part = part
        self._patience = patience or Patience()
        paces = Window(BUDGET).paces
        self._window = window or (lambda: Window(BUDGET, at_once=self._at_once, paces=paces))
        self._at_once = FIRST
        self._clock = clock

    @property
    def url(self) -> str:
        return self._url

    def create(self, key: str, data: bytes) -> None:
        with mapped(self._url, key, writing=True, creating=True):
            obstore.put(self._store, key, data, mode="create")

    def put(self, key: str, data: bytes) -> None:
        with mapped(self._url, key, writing=True):
            obstore.put(self._store, key, data, use_multipart=False)

    def send(self, key: str, file: Path, *, size: int, on_bytes: OnBytes) -> str:
        with Hasher() as hasher:
            blocks = _passing(_file_blocks(file, size), hasher, on_bytes)
            if size <= PART:
                self.put(key, b"".join(blocks))
            else:
                part = part_size(size)
                flight = in_flight(part)
                with mapped(self._url, key, writing=True):
                    obstore.put(self._store, key, blocks, chunk_size=part, max_concurrency=flight)
            return hasher.hexdigest()

    def get(self, key: str) -> bytes:
        with mapped(self._url, key):
            return bytes(obstore.get(self._reader, key).bytes())

    def size(self, key: str) -> int:
        with mapped(self._url, key):
            return obstore.head(self._reader, key)["size"]

    def info(self, key: str) -> ObjectInfo:
        with mapped(self._url, key):
            found = obstore.head(self._reader, key)
        return ObjectInfo(key, found["size"], _tag(found))

    def part_size(self, size: int) -> int:
        return part_size(size, self._part)

    def send_pieces(
        self,
        pieces: Iterator[Piece],
        *,
        on_sent: Callable[[Piece], None],
        still_wanted: Callable[[], object],
        left_s: Callable[[], float | None],
    ) -> None:
        """On a slow line so many at once may be that none is finished in time: then fewer begin
        the next try."""
        window = self._window()
        sending = Sending(
            self._put_async,
            window,
            patience=self._patience,
            left_s=left_s,
            still_wanted=still_wanted,
            on_sent=on_sent,
            clock=self._clock,
        )
        try:
            sending.run(pieces)
        except Stalled:
            self._at_once = max(1, min(FIRST, window.at_once) // 2)
            raise
        self._at_once = min(FIRST, window.at_once)

    async def _put_async(self, key: str, data: bytes) -> None:
        with mapped(self._url, key, writing=True):
            await obstore.put_async(self._store, key, data, use_multipart=False)

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
        with file.open("x+b", buffering=0) as target:
            reading = _Reading(self._reader, self._url, target.fileno(), on_bytes)
            if part:
                found = reading.parts(key, size, part)
            else:
                found = reading.whole(key, size)
            if sync:
                os.fsync(target.fileno())
            return found

    def scan(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        with mapped(self._url, prefix):
            for chunk in obstore.list(self._reader, prefix or None, offset=after, chunk_size=1000):
                for meta in chunk:
                    yield ObjectInfo(meta["path"], meta["size"], _tag(meta))

    def folders(self, prefix: str) -> list[str]:
        with mapped(self._url, prefix):
            listed = obstore.list_with_delimiter(self._reader, prefix or None)
            return sorted(
                folder.rstrip("/").rpartition("/")[2] for folder in listed["common_prefixes"]
            )

    def delete(self, keys: Iterable[str]) -> None:
        left = iter(keys)
        while batch := list(islice(left, _BULK)):
            try:
                with mapped(self._url, batch[0]):
                    obstore.delete(self._store, batch)
            except ObjectMissing:
                self._delete_each(batch)

    def _delete_each(self, keys: list[str]) -> None:
        """Some stores stop a bulk request at the first missing object."""
        for key in keys:
            try:
                with mapped(self._url, key):
                    obstore.delete(self._store, key)
            except ObjectMissing:
                continue

    def discard_partial(self, prefix: str) -> None:
        """Nothing: obstore does not list unfinished multipart uploads (see the module's text)."""


class _Reading:
    """One file out of ranges of an object, or out of several objects, some at once: one stream
    seldom uses the whole bandwidth. They are written where they belong as they come, and
    hashed in order from the page cache, so that none waits in memory for those before it."""

    def __init__(self, store: AnyObstore, url: str, target: int, on_bytes: OnBytes) -> None:
        self._store = store
        self._url = url
        self._target = target
        self._on_bytes = on_bytes
        self._digest = hashlib.sha256()

    def whole(self, key: str, size: int) -> Fetched:
        """The first request also says how large the object is: none is spent on asking for it."""
        if size <= PART:
            whole = self._copy(key, 0, size, passing=self._digest.update)
        else:
            whole = self._first_range(key)
            until = min(size, whole)
            self._in_order(
                (partial(self._copy, key, start, end - start, first=start), start, end)
                for start, end in _spans(PART, until, PART)
            )
        return Fetched(self._digest.hexdigest(), whole)

    def parts(self, key: str, size: int, part: int) -> Fetched:
        whole = self._in_order(
            (partial(self._copy, part_key(key, index), start, end - start), start, end)
            for index, (start, end) in enumerate(_spans(0, size, part))
        )
        return Fetched(self._digest.hexdigest(), whole)

    def _first_range(self, key: str) -> int:
        try:
            return self._copy(key, 0, PART, first=0, passing=self._digest.update)
        except StorageError as error:
            if status_of(str(error.__cause__)) != NO_SUCH_RANGE:
                raise
            return 0  # it is empty

    def _in_order(self, copies: Iterable[tuple[Callable[[], int], int, int]]) -> int:
        """Do them, some at once, and hash what they wrote; the sum of what they return."""
        left, found = iter(copies), 0
        with ThreadPoolExecutor(_IN_FLIGHT, "spothop-read") as pool:
            waiting: deque[tuple[Future[int], int, int]] = deque()
            try:
                while True:
                    for copy, start, end in islice(left, _IN_FLIGHT + 1 - len(waiting)):
                        waiting.append((pool.submit(copy), start, end))
                    if not waiting:
                        return found
                    future, start, end = waiting.popleft()
                    found += future.result()
                    self._hash(start, end)
            finally:
                for future, _, _ in waiting:
                    future.cancel()

    def _copy(
        self,
        key: str,
        place: int,
        count: int,
        *,
        first: int | None = None,
        passing: Callable[[Block], object] = lambda block: None,
    ) -> int:
        """Copy `count` bytes, from `first` of the object on, to `place` of the file; fewer where
        there are fewer. Returns the object's size."""
        options: GetOptions = {} if first is None else {"range": (first, first + count)}
        with mapped(self._url, key):
            found = obstore.get(self._store, key, options=options)
            chunks = iter(found.stream(min_chunk_size=_CHUNK))
        while count:
            with mapped(self._url, key):
                chunk = next(chunks, None)
            if chunk is None:
                break
            block = memoryview(chunk)[:count]
            write_at(self._target, block, place)
            passing(block)
            place, count = place + len(block), count - len(block)
            self._on_bytes(len(block))
        return found.meta["size"]

    def _hash(self, start: int, end: int) -> None:
        buffer = memoryview(bytearray(min(_CHUNK, end - start)))
        while start < end:
            count = os.preadv(self._target, [buffer[: end - start]], start)
            if not count:
                return  # it was cut short, and its digest will not match
            self._digest.update(buffer[:count])
            start += count


def _tag(meta: ObjectMeta) -> str:
    """Without its quotes, which Azure's listings leave out."""
    return (meta.get("e_tag") or "").strip('"')


def _spans(start: int, end: int, length: int) -> Iterator[tuple[int, int]]:
    for begin in range(start, end, length):
        yield begin, min(begin + length, end)


def _file_blocks(file: Path, size: int) -> Iterator[bytes]:
    with reading(file):
        source = file.open("rb", buffering=0)
    with source:
        while size:
            with reading(file):
                block = source.read(min(size, _READ_BLOCK))
            if not block:
                return
            size -= len(block)
            yield block


def _passing(blocks: Iterable[Block], hasher: Hasher, on_bytes: OnBytes) -> Iterator[Block]:
    for block in blocks:
        hasher.update(block)
        yield block
        on_bytes(len(block))
