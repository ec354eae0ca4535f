"""Parts become a tree: fetched, verified and written side by side, beside the tree's place.

Nothing is believed of what comes from the store: a part is unpacked only when it has its SHA-256,
into files of a fresh folder that holds no link yet. Symbolic links are made last, so that nothing
is written through one. The owner of all is this process's user.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from spothop.storage.base import part_key
from spothop_agent.environment.index import Damaged, Segment, Stream, decoded
from spothop_agent.environment.manifest import Manifest, Part
from spothop_agent.environment.tree import Item, Kind

Get = Callable[[str], bytes]
"""The object with this key; raises ObjectMissing."""
ASIDE = ".spothop-env-"
INDEX = "index"
"""Name of the list of files, beside the parts."""
WORKERS = 8
"""Each holds one part, and what it unpacks to, in memory."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Unpacked:
    """A whole tree beside its place."""

    def __init__(self, aside: Path, root: Path, tops: Sequence[Item]) -> None:
        self._aside = aside
        self._root = root
        self._tops = tops

    def place(self) -> None:
        """Put it in place of what is there: all of it, or nothing. Raises OSError and Damaged."""
        try:
            _place(self._aside, self._root, self._tops)
        finally:
            self.discard()

    def discard(self) -> None:
        shutil.rmtree(self._aside, ignore_errors=True)


def unpack(
    manifest: Manifest,
    get: Get,
    folder: str,
    root: Path,
    *,
    still_wanted: Callable[[], object] = lambda: None,
    workers: int = WORKERS,
) -> Unpacked:
    """Write the tree into a folder of its own below `root`. `folder` is the key of the folder of
    its parts. `still_wanted` is called for each part and at the end, and may raise.

    Raises Damaged, what `get` raises, and OSError of the disk here.
    """
    for leftover in root.glob(ASIDE + "*"):
        shutil.rmtree(leftover, ignore_errors=True)
    items = decoded(verified(get(f"{folder}/{INDEX}"), manifest.index), manifest.folders)
    stream = Stream(items, manifest.part)
    if stream.size != manifest.size or stream.parts != len(manifest.parts):
        raise Damaged("the list of its files does not match its manifest")
    tops = {item.path: item for item in items if item.path in manifest.folders}
    if tops.keys() != {*manifest.folders}:
        raise Damaged("one of its folders is missing")
    aside = Path(tempfile.mkdtemp(prefix=ASIDE, dir=root))
    ready = Unpacked(aside, root, [*tops.values()])
    try:
        fresh = _Fresh(aside, items, manifest.folders)

        def one(index: int) -> None:
            still_wanted()
            part = manifest.parts[index]
            data = verified(get(part_key(folder, index)), part)
            fresh.write(_content(data, part, stream.length(index)), stream.segments(index))

        _in_parallel(one, stream.parts, workers)
        fresh.finish()
        still_wanted()
    except BaseException:
        ready.discard()
        raise
    return ready


def verified(data: bytes, part: Part) -> bytes:
    """Raises Damaged."""
    if len(data) != part.size or hashlib.sha256(data).hexdigest() != part.sha256:
        raise Damaged("a part of it does not match its SHA-256")
    return data


def _content(data: bytes, part: Part, length: int) -> memoryview:
    if part.codec == "raw":
        content = data
    else:
        try:
            content = zlib.decompressobj().decompress(data, length + 1)
        except zlib.error as error:
            raise Damaged(f"a part of it cannot be unpacked: {error}") from error
    if len(content) != length:
        raise Damaged("a part of it has another length")
    return memoryview(content)


def _in_parallel(work: Callable[[int], None], count: int, workers: int) -> None:
    """The first error ends it, after what is under way."""
    with ThreadPoolExecutor(workers, "spothop-unpack") as pool:
        futures = [pool.submit(work, index) for index in range(count)]
        done, waiting = wait(futures, return_when=FIRST_EXCEPTION)
        for future in waiting:
            future.cancel()
        for future in done:
            future.result()


class _Fresh:
    """A tree that is being written, in a folder that nobody else knows."""

    def __init__(self, aside: Path, items: Sequence[Item], tops: Iterable[str]) -> None:
        self._tops = {*tops}
        self._top = f"{aside}/"
        self._items = items
        self._folders = [item for item in items if item.kind is Kind.FOLDER]
        self._in_pieces: dict[str, Item] = {}
        for item in self._folders:
            os.makedirs(self._top + item.path, mode=0o700, exist_ok=True)
        for item in items:
            if item.kind is Kind.FILE and not item.size:
                with self._open(item) as handle:
                    _finish(handle, item)

    def _open(self, item: Item, flags: int = os.O_EXCL) -> _Handle:
        return _Handle(os.open(self._top + item.path, _NEW | flags, 0o600))

    def write(self, content: memoryview, segments: Iterable[Segment]) -> None:
        """In any thread. A file in several parts is finished at the end."""
        for segment in segments:
            data = content[segment.offset : segment.offset + segment.length]
            if segment.whole:
                with self._open(segment.item) as handle:
                    _write(handle, data, 0)
                    _finish(handle, segment.item)
                continue
            self._in_pieces[segment.item.path] = segment.item
            if data != bytes(len(data)):  # else a hole
                with self._open(segment.item, 0) as handle:
                    _write(handle, data, segment.start)

    def finish(self) -> None:
        """Other names, links, and what writing has changed: modes and times."""
        for item in self._in_pieces.values():
            with self._open(item, 0) as handle:
                os.ftruncate(handle, item.size)
                _finish(handle, item)
        for item in self._items:
            path = self._top + item.path
            if item.kind is Kind.SAME:
                os.link(self._top + item.target, path, follow_symlinks=False)
            elif item.kind is Kind.LINK:
                os.symlink(item.target, path)
                os.utime(path, ns=(item.mtime_ns, item.mtime_ns), follow_symlinks=False)
        for item in reversed(self._folders):  # what is in a folder comes after it
            path = self._top + item.path
            os.utime(path, ns=(item.mtime_ns, item.mtime_ns))
            if item.path not in self._tops:  # a folder that may not be written may not be moved
                os.chmod(path, item.mode)


class _Handle:
    """A file descriptor that is closed."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> int:
        return self._number

    def __exit__(self, *_: object) -> None:
        os.close(self._number)


def _write(handle: int, data: memoryview, place: int) -> None:
    while data:
        written = os.pwrite(handle, data, place)
        data, place = data[written:], place + written


def _finish(handle: int, item: Item) -> None:
    os.utime(handle, ns=(item.mtime_ns, item.mtime_ns))
    os.fchmod(handle, item.mode)


def _place(aside: Path, root: Path, tops: Sequence[Item]) -> None:
    """Rename over what is there; all of them, or none."""
    old = Path(tempfile.mkdtemp(prefix=ASIDE, dir=root))
    undo: list[tuple[Path, Path]] = []
    try:
        for number, top in enumerate(tops):
            place = root / top.path
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.parent.resolve().is_relative_to(root.resolve()):
                raise Damaged(f"{top.path!r} lies behind a link that leads out")
            if os.path.lexists(place):
                os.rename(place, old / str(number))
                undo.append((old / str(number), place))
            os.rename(aside / top.path, place)
            undo.append((place, aside / top.path))
    except BaseException:
        for now, before in reversed(undo):
            os.rename(now, before)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
    for top in tops:
        os.chmod(root / top.path, top.mode)
