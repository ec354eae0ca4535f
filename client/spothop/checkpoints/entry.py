"""One entry of the chain and its JSON. Entries are immutable once created."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from spothop.wire import SaveKind

FORMAT = 1
"""Version inside the JSON; an entry of a newer one counts as unreadable."""


@dataclass(frozen=True)
class FileRecord:
    """One file of a checkpoint; an empty directory when `path` ends in `/` (it has no key)."""

    path: str
    """Relative to the saved directory; the file's name when a single file was saved."""
    size: int
    """Bytes."""
    sha256: str
    """Hexadecimal."""
    key: str
    link: str = ""
    """Where a symbolic link leads, relative to its own folder and inside the saved directory; a
    link has no key. Empty for files and directories."""

    @property
    def is_folder(self) -> bool:
        return self.path.endswith("/")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A fence, or a checkpoint."""

    n: int
    attempt: int
    id: str
    """Unique; lets the author recognise its own entry after an ambiguous answer."""
    fence: bool = False
    step: int | None = None
    kind: SaveKind | None = None
    files: tuple[FileRecord, ...] = ()
    parent: int | None = None
    """Number of the checkpoint that this attempt saved or restored before."""
    root: str = ""
    """What the user saved, relative to the job's directory."""
    is_dir: bool = False
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(record.size for record in self.files)

    def __str__(self) -> str:
        if self.fence:
            return f"fence {self.n} of attempt {self.attempt}"
        kind = self.kind.value if self.kind else "unknown"
        return f"checkpoint {self.n} (step {self.step}, {kind}, attempt {self.attempt})"

    def to_json(self) -> str:
        kind = self.kind.value if self.kind else None
        return json.dumps({"v": FORMAT, **asdict(self), "kind": kind}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Entry:
        """Raises `ValueError` for anything that `to_json` did not write."""
        try:
            data = json.loads(text)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if not isinstance(data, dict):
            raise ValueError("not a JSON object")
        if data.get("v") != FORMAT:
            raise ValueError(f"format {data.get('v')!r}; this version reads {FORMAT}")
        try:
            return _ADAPTER.validate_python(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ValueError(f"{where}: {first['msg']}") from error


_ADAPTER = TypeAdapter(Entry)


@dataclass(frozen=True)
class BadEntry:
    """An entry that is there and cannot be read: what it was is unknown."""

    n: int
    why: str

    def __str__(self) -> str:
        return f"chain entry {self.n} is unreadable ({self.why})"


AnyEntry = Entry | BadEntry
