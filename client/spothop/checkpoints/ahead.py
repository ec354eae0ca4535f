"""A checkpoint that is fetched before it is known whether it is the one to restore.

A replacement has nothing to do while it waits for its fence, and the old VM trains on. What it
fetches then is used by content: of a newer checkpoint only the files that differ are fetched. Each
file was verified when it came; nobody but the caller knows the folder.
"""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

from spothop.checkpoints.entry import Entry, FileRecord


class Ahead:
    """Files in `folder`, of which each is handed out once: by its content, into another place."""

    def __init__(self, folder: Path, entry: Entry, place: Path) -> None:
        self.n = entry.n
        self._folder = folder
        self._lock = threading.Lock()
        self._found: dict[tuple[str, int], list[Path]] = {}
        for record in entry.files:
            if not record.is_folder and not record.link:
                path = place / record.path if entry.is_dir else place
                self._found.setdefault((record.sha256, record.size), []).append(path)

    def take(self, record: FileRecord, place: Path) -> bool:
        """Move a file with this content to `place`, which is new; False where there is none."""
        with self._lock:
            paths = self._found.get((record.sha256, record.size))
            if not paths:
                return False
            path = paths.pop()
        try:
            if path.stat().st_size != record.size:
                return False
            os.link(path, place)  # as a download: never over what is there
            path.unlink()
        except FileExistsError:
            raise
        except OSError:
            return False
        return True

    def drop(self) -> None:
        """What is left of it."""
        shutil.rmtree(self._folder, ignore_errors=True)
