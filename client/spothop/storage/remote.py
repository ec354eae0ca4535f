"""Every store but a folder, through obstore.

Memory while one object is written or read stays under about 100 MiB: `part_size` x (parts in flight
+ 1). Only objects above 480 GiB need more, because their parts have to grow (10,000 at most).
obstore aborts a multipart upload that fails; one whose process is killed stays behind and costs
money until a lifecycle rule of the bucket ends it (AbortIncompleteMultipartUpload on S3).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import obstore
from obstore import exceptions as obs
from obstore.store import ObjectStore as AnyObstore

from spothop.storage.base import MIB, Block, Fetched, ObjectInfo, OnBytes
from spothop.storage.codes import status_of
from spothop.storage.errors import ObjectMissing, SourceChanged
from spothop.storage.hashing import Hasher, write_all
from spothop.storage.mapping import mapped

SMALLEST_PART = 16 * MIB
NO_SUCH_RANGE = 416
MAX_PARTS = 10_000
"""S3 multipart limits: https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html"""
_IN_FLIGHT = 4
_READ_BLOCK = 2 * MIB
_BUDGET = 80 * MIB
_BULK = 1000  # keys in one DeleteObjects request of S3


def part_size(size: int) -> int:
    """Bytes a part of an object of `size` bytes: whole MiB, so that 10,000 parts are enough."""
    return max(SMALLEST_PART, -(-size // (MAX_PARTS * MIB)) * MIB)


def in_flight(part: int) -> int:
    """Parts under way at once, so that memory stays bounded."""
    return max(1, min(_IN_FLIGHT, _BUDGET // part - 1))


class RemoteStore:
    """An `ObjectStore` over any store of obstore; `url` is what messages show."""

    def __init__(self, store: AnyObstore, url: str) -> None:
        self._store = store
        self._url = url

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
            if size <= SMALLEST_PART:
                self.put(key, b"".join(blocks))
            else:
                part = part_size(size)
                flight = in_flight(part)
                with mapped(self._url, key, writing=True):
                    obstore.put(self._store, key, blocks, chunk_size=part, max_concurrency=flight)
            return hasher.hexdigest()

    def get(self, key: str) -> bytes:
        with mapped(self._url, key):
            return bytes(obstore.get(self._store, key).bytes())

    def size(self, key: str) -> int:
        with mapped(self._url, key):
            return obstore.head(self._store, key)["size"]

    def fetch(
        self, key: str, file: Path, *, size: int, on_bytes: OnBytes, sync: bool = True
    ) -> Fetched:
        with file.open("xb", buffering=0) as target, Hasher() as hasher:
            first, whole = self._first_block(key, size)
            for block in _passing(self._blocks(key, first, min(size, whole)), hasher, on_bytes):
                write_all(target.fileno(), block)
            if sync:
                os.fsync(target.fileno())
            return Fetched(hasher.hexdigest(), whole)

    def _first_block(self, key: str, size: int) -> tuple[memoryview, int]:
        """The beginning, and the size of the whole object: no request is spent on asking for it."""
        with mapped(self._url, key):
            if size <= SMALLEST_PART:
                found = obstore.get(self._store, key)
                return memoryview(found.bytes())[:size], found.meta["size"]
            try:
                found = obstore.get(self._store, key, options={"range": (0, SMALLEST_PART)})
            except obs.BaseError as error:
                if status_of(str(error)) != NO_SUCH_RANGE:
                    raise
                return memoryview(b""), self.size(key)  # it is empty
            return memoryview(found.bytes()), found.meta["size"]

    def _blocks(self, key: str, first: memoryview, size: int) -> Iterator[memoryview]:
        """Ranges in parallel, yielded in order; one stream seldom uses the whole bandwidth."""
        yield first
        if size <= SMALLEST_PART:
            return
        starts = iter(range(SMALLEST_PART, size, SMALLEST_PART))
        with ThreadPoolExecutor(_IN_FLIGHT, "spothop-read") as pool:
            waiting: deque[Future[memoryview]] = deque()
            try:
                for start in islice(starts, _IN_FLIGHT):
                    waiting.append(pool.submit(self._range, key, start, size))
                while waiting:
                    yield waiting.popleft().result()
                    for start in islice(starts, 1):
                        waiting.append(pool.submit(self._range, key, start, size))
            finally:
                for future in waiting:
                    future.cancel()

    def _range(self, key: str, start: int, size: int) -> memoryview:
        with mapped(self._url, key):
            end = min(size, start + SMALLEST_PART)
            return memoryview(obstore.get_range(self._store, key, start=start, end=end))

    def scan(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        with mapped(self._url, prefix):
            for chunk in obstore.list(self._store, prefix or None, offset=after, chunk_size=1000):
                for meta in chunk:
                    yield ObjectInfo(meta["path"], meta["size"])

    def folders(self, prefix: str) -> list[str]:
        with mapped(self._url, prefix):
            listed = obstore.list_with_delimiter(self._store, prefix or None)
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


def _file_blocks(file: Path, size: int) -> Iterator[bytes]:
    try:
        with file.open("rb", buffering=0) as source:
            while size and (block := source.read(min(size, _READ_BLOCK))):
                size -= len(block)
                yield block
    except OSError as error:
        raise SourceChanged(f"{str(file)!r} cannot be read: {error.strerror}") from error


def _passing(blocks: Iterable[Block], hasher: Hasher, on_bytes: OnBytes) -> Iterator[Block]:
    for block in blocks:
        hasher.update(block)
        yield block
        on_bytes(len(block))
