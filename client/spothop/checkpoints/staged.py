"""Files of a data set that are on this machine already, from an attempt before.

An attempt that ends leaves its data, and the next one of the same VM may want the same. What it
must guarantee: a file is used again only where it is byte for byte what a fetch would bring now.

1. The notes say of each fetched file which object it is (URL, key, size and the store's own tag of
   its content), and how it looked on the disk then (size, time of change, inode).
2. It is used again where the object still has that tag, and the file still looks like that: a
   script that has written into it has changed its time. What was not noted is fetched.
3. A file is moved, never copied, so that nothing takes room twice. The notes are no promise: a lost
   or torn line costs a second fetch.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from pathlib import Path

from spothop.checkpoints.journal import Seen
from spothop.storage import ObjectInfo

_log = logging.getLogger(__name__)


class Staged:
    """`notes` is the file of what is fetched below `work` now; `earlier` a folder that was a `work`
    before, and `earlier_notes` what was noted of it. For several threads."""

    def __init__(
        self,
        work: Path,
        notes: Path,
        *,
        earlier: Path | None = None,
        earlier_notes: Path | None = None,
    ) -> None:
        self.reused_files = 0
        self.reused_bytes = 0
        self._work = work
        self._notes = notes
        self._earlier = earlier
        self._lock = threading.Lock()
        self._known = _read(earlier_notes) if earlier_notes is not None else {}

    def take(self, url: str, info: ObjectInfo, place: Path) -> bool:
        """Move the file of this object to `place`, if it is here and unchanged."""
        with self._lock:
            found = self._known.pop(_name(url, info), None)
        if found is None or self._earlier is None:
            return False
        path, seen = found
        file = self._earlier / path
        try:
            status = os.lstat(file)
            if not stat.S_ISREG(status.st_mode) or Seen.of(status) != seen:
                return False
            os.rename(file, place)
        except OSError as error:
            _log.info("%s is not used again: %s", file, error)
            return False
        with self._lock:
            self.reused_files += 1
            self.reused_bytes += info.size
        self.fetched(url, info, place)
        return True

    def fetched(self, url: str, info: ObjectInfo, place: Path) -> None:
        """Note a whole file that is in its place now."""
        if not info.etag:
            return
        seen = Seen.of(os.lstat(place))
        note = {"object": _name(url, info), "path": str(place.relative_to(self._work))}
        line = json.dumps({**note, "seen": [seen.size, seen.changed_ns, seen.inode]}) + "\n"
        try:
            with self._lock, self._notes.open("a", encoding="utf-8") as out:
                out.write(line)
        except OSError as error:  # only a second fetch is saved by it
            _log.info("what was fetched cannot be noted: %s", error)


def _name(url: str, info: ObjectInfo) -> str:
    return json.dumps([url, info.key, info.size, info.etag])


def _read(notes: Path) -> dict[str, tuple[str, Seen]]:
    """Object -> where its file lies, and how it looked."""
    try:
        lines = notes.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    found: dict[str, tuple[str, Seen]] = {}
    for line in lines:
        try:
            note = json.loads(line)
            found[str(note["object"])] = str(note["path"]), Seen(*map(int, note["seen"]))
        except (ValueError, KeyError, TypeError):  # torn by a kill in the middle of it
            continue
    return found
