"""Where kept environments of one job lie, and what is written in which order.

    jobs/<job>/env/<key>.json             a manifest: with it an environment exists
    jobs/<job>/env/parts/<folder>/000000  its parts, and `index`

They lie in the job's own folder, which no job of another user may name and no other local VM sees:
what one user's VM has packed no other user's VM unpacks. Synchronous.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

from spothop.storage import ObjectExists, ObjectMissing, ObjectStore
from spothop_agent.environment import index
from spothop_agent.environment.index import Damaged
from spothop_agent.environment.manifest import PART, Manifest, Part
from spothop_agent.environment.packing import Packing
from spothop_agent.environment.tree import Item
from spothop_agent.environment.unpacking import INDEX, Unpacked, unpack

KEEP_S = 7 * 86_400.0
"""What no VM of the job has made for so long goes, unless it is what this VM uses: of another
image, or another kind of VM."""


class Shelf:
    """Of one job; `prefix` is its folder in `store`."""

    def __init__(self, store: ObjectStore, prefix: str, *, part: int = PART) -> None:
        self._store = store
        self._part = part
        self._folder = f"{prefix}/env"

    def find(self, keys: Iterable[str]) -> Manifest | None:
        """The first of these that is there. Raises StorageError, and Damaged."""
        for key in keys:
            try:
                return Manifest.from_bytes(self._store.get(self._manifest(key)), key)
            except ObjectMissing:
                continue
            except Damaged:
                self.drop(key)
                raise
        return None

    def unpack(
        self, manifest: Manifest, root: Path, *, still_wanted: Callable[[], object]
    ) -> Unpacked:
        """The whole tree, beside its place below `root`. Raises like `unpacking.unpack`; what is
        damaged is deleted, so that it is made anew."""
        parts = self._parts(manifest.folder)
        try:
            return unpack(manifest, self._get, parts, root, still_wanted=still_wanted)
        except Damaged:
            self.drop(manifest.key)
            raise

    def _get(self, key: str) -> bytes:
        try:
            return self._store.get(key)
        except ObjectMissing as error:
            raise Damaged(f"a part of it is missing: {key!r}") from error

    def begin(self, root: Path, items: list[Item], attempt: int) -> Keeping:
        folder = f"{attempt}-{secrets.token_hex(8)}"
        return Keeping(self._store, self._parts(folder), folder, root, items, self._part)

    def publish(self, manifest: Manifest) -> bool:
        """False where another VM was faster: the parts of this one go then."""
        try:
            self._store.create(self._manifest(manifest.key), manifest.to_bytes())
        except ObjectExists:
            found = self._existing(manifest.key)
            if found is not None and found.folder == manifest.folder:
                return True  # ours: the answer to an earlier try was lost
            self.discard(manifest.folder)
            return False
        return True

    def _existing(self, key: str) -> Manifest | None:
        try:
            return Manifest.from_bytes(self._store.get(self._manifest(key)), key)
        except (Damaged, ObjectMissing):
            return None

    def drop(self, key: str) -> None:
        """No VM finds it any more; its parts go with the next `prune`."""
        self._store.delete([self._manifest(key)])

    def discard(self, folder: str) -> None:
        """The parts of what was not kept."""
        self._delete(self._parts(folder))

    def prune(self, *, ours: str, attempt: int, now: float) -> None:
        """Delete what is old, and what VMs that are gone left half done. `ours` is the folder of
        what this VM uses. An older VM that still packs finds its parts gone at worst: whoever
        unpacks that later notices, and it is made anew."""
        named = {ours}
        for info in list(self._store.scan(self._folder)):
            name = info.key.removeprefix(f"{self._folder}/")
            if "/" in name or not name.endswith(".json"):
                continue
            found = self._existing(name.removesuffix(".json"))
            if found is None or (found.folder != ours and now - found.made > KEEP_S):
                self._store.delete([info.key])
            else:
                named.add(found.folder)
        for folder in self._store.folders(f"{self._folder}/parts"):
            number = folder.partition("-")[0]
            if folder not in named and number.isdecimal() and int(number) <= attempt:
                self.discard(folder)

    def clear(self) -> None:
        """The job is over: nobody unpacks it any more."""
        self._delete(self._folder)

    def _delete(self, folder: str) -> None:
        self._store.delete(sorted(info.key for info in self._store.scan(folder)))
        self._store.discard_partial(folder)

    def _manifest(self, key: str) -> str:
        return f"{self._folder}/{key}.json"

    def _parts(self, folder: str) -> str:
        return f"{self._folder}/parts/{folder}"


class Keeping:
    """One tree on its way into the store; `send` may be interrupted, and called again."""

    def __init__(
        self,
        store: ObjectStore,
        parts: str,
        folder: str,
        root: Path,
        items: list[Item],
        part: int,
    ) -> None:
        self._store = store
        self._parts = parts
        self._items = items
        self._part = part
        self.folder = folder
        self.packing = Packing(root, items, parts, part=part)

    def send(self, still_wanted: Callable[[], object]) -> None:
        """Everything that is not sent yet. Raises NotKept, StorageError and what `still_wanted`
        raises."""
        self._store.send_pieces(
            self.packing.pieces(),
            on_sent=self.packing.sent,
            still_wanted=still_wanted,
            left_s=lambda: None,
        )

    def manifest(
        self, key: str, folders: Iterable[str], *, setup_s: float, made: float
    ) -> Manifest:
        """Sends the list of files, too."""
        listed = index.encoded(self._items)
        self._store.put(f"{self._parts}/{INDEX}", listed)
        return Manifest(
            key=key,
            folder=self.folder,
            folders=tuple(folders),
            part=self._part,
            parts=tuple(self.packing.parts),
            index=Part(sha256=hashlib.sha256(listed).hexdigest(), size=len(listed), codec="zlib"),
            size=self.packing.size,
            files=len(self._items),
            setup_s=setup_s,
            made=made,
        )
