"""One entry of the chain and its JSON. Entries are immutable once created."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from spothop.storage.base import part_key, parts_of
from spothop.wire import SaveKind

FORMAT, PARTS = 1, 2
"""Version inside the JSON: the second with a file in parts, which whoever knows only the first must
not take for a missing file. An entry of a newer version counts as unreadable."""


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

    part: Annotated[int, Field(ge=0)] = 0
    """Bytes of each of the objects that hold the file (`storage.part_key`), the last one may have
    fewer; 0: one object, at `key`."""

    @property
    def is_folder(self) -> bool:
        return self.path.endswith("/")

    def objects(self) -> Iterator[tuple[str, int]]:
        """Keys and sizes of what holds the file; nothing for directories and links."""
        if not self.key:
            return
        if not self.part:
            yield self.key, self.size
            return
        for index in range(parts_of(self.size, self.part)):
            yield part_key(self.key, index), min(self.part, self.size - index * self.part)


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
    vm: str = ""
    """Of a fence: the id of the VM that wrote it. Empty where it is not known, as in the fences of
    version 0.1.0."""

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
        version = PARTS if any(record.part for record in self.files) else FORMAT
        return json.dumps({"v": version, **asdict(self), "kind": kind}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Entry:
        """Raises `ValueError` for anything that `to_json` did not write."""
        try:
            data = json.loads(text)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if not isinstance(data, dict):
            raise ValueError("not a JSON object")
        if data.get("v") not in (FORMAT, PARTS):
            raise ValueError(f"format {data.get('v')!r}; this version reads {FORMAT} and {PARTS}")
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
