"""What of an upload is durable already, in a file, so that nobody sends it again.

One JSON object a line, appended when the store has said yes: the object's key, the file that it
comes from as it was (size, time of change, inode), and the SHA-256 of that file from its beginning
to the end of the object. So an upload that is begun anew, by an agent that was started again too,
reads a file that it has sent in part once more (its checksum has to be computed in order), finds
out whether those parts are still the same, and sends what is missing. A file that is through is not
even read. What went to another store than this upload's is not taken for sent (`store`): where one
fails, a save goes to the next as a whole.

The journal is no promise: a lost or torn line costs a second transfer of one piece, and where it
cannot be written (the disk is full) the upload goes on without it.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from spothop.storage import SourceChanged

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Seen:
    """A file as it was when it was read."""

    size: int
    changed_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Seen:
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


class Journal:
    """Of one upload to one store; without `file` it remembers as long as it lives. For one thread
    at a time. `store` is the store's URL, empty for the one that holds the chain."""

    def __init__(self, file: Path | None = None, *, store: str = "") -> None:
        self._file = file
        self._of_store = {"store": store} if store else {}
        self._sent: dict[str, tuple[Seen, str]] = {}
        if file is not None:
            self._read(file)

    def sent(self, key: str, seen: Seen) -> str | None:
        """The digest that was noted with `key`; None when it is still to be sent. Raises
        `SourceChanged` when the file was another one then."""
        found = self._sent.get(key)
        if found is None:
            return None
        before, digest = found
        if before != seen:
            raise SourceChanged(
                f"the file of {key!r} changed since a part of it was backed up: {before.size} bytes"
                f" then, {seen.size} now",
                hint="save under another name and hand that to backup()",
            )
        return digest

    def add(self, key: str, seen: Seen, sha256: str) -> None:
        self._sent[key] = (seen, sha256)
        if self._file is None:
            return
        line = json.dumps({"key": key, **asdict(seen), "sha256": sha256, **self._of_store}) + "\n"
        try:
            with self._file.open("a", encoding="utf-8") as out:
                out.write(line)
        except OSError as error:  # only what would be saved by it is lost
            _log.info("what is uploaded cannot be noted: %s", error)
            self._file = None

    def _read(self, file: Path) -> None:
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        except FileNotFoundError:
            return
        except OSError as error:
            _log.info("what was uploaded cannot be read, all of it is sent again: %s", error)
            return
        for line in lines:
            try:
                found = json.loads(line)
                if found.get("store") != self._of_store.get("store"):
                    continue
                seen = Seen(int(found["size"]), int(found["changed_ns"]), int(found["inode"]))
                self._sent[str(found["key"])] = (seen, str(found["sha256"]))
            except (
                ValueError,
                KeyError,
                TypeError,
                AttributeError,
            ):  # torn by a kill in the middle of it
                continue
        if lines and not lines[-1].endswith("\n"):
            self._end_line(file)

    def _end_line(self, file: Path) -> None:
        try:
            with file.open("a", encoding="utf-8") as out:
                out.write("\n")
        except OSError as error:
            _log.info("what is uploaded cannot be noted: %s", error)
            self._file = None
