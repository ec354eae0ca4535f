"""One entry of the chain and its JSON. Entries are immutable once created."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from spothop.checkpoints.keys import save_folder
from spothop.storage.base import part_key, parts_of
from spothop.wire import SaveKind

FORMAT, PARTS, STORES = 1, 2, 3
"""Version inside the JSON: the second with a file in parts, the third with one in another store
than the chain's. Whoever knows only an earlier one must not take such a file for a missing one."""


class NewerFormat(ValueError):
    """Written by a newer release: nothing is damaged, and that release can read it."""


@dataclass(frozen=True, slots=True)
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

    url: str = ""
    """Of the store that holds the objects; empty: the one that holds the chain."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
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
        return self.to_bytes().decode()

    def to_bytes(self) -> bytes:
        """The JSON. There may be 100,000 files, and an emergency save waits for this: pydantic
        writes them at once, without a copy of all as dictionaries."""
        version = PARTS if any(record.part for record in self.files) else FORMAT
        version = STORES if any(record.url for record in self.files) else version
        head = {name: getattr(self, name) for name in _FIELDS if name != "files"}
        head["kind"] = self.kind.value if self.kind else None
        start = json.dumps({"v": version, **head}, indent=1).encode()[:-2]
        return b"".join((start, b',\n "files": ', _listed(self.files), b"\n}\n"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Entry:
        """Raises `ValueError` for anything that `to_json` did not write, `NewerFormat` for what
        that of a newer release has written."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "surrogatepass")  # and the bytes are given back
        try:
            data = json.loads(text, object_hook=_record)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if not isinstance(data, dict):
            raise ValueError("not a JSON object")
        version = data.get("v")
        if not isinstance(version, int) or version < FORMAT:
            raise ValueError(f"format {version!r}; there is none below {FORMAT}")
        if version > STORES:
            raise NewerFormat(f"format {version}; this release reads {FORMAT} to {STORES}")
        try:
            return _ADAPTER.validate_python(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ValueError(f"{where}: {first['msg']}") from error


_ADAPTER = TypeAdapter(Entry)
_FIELDS = [each.name for each in fields(Entry)]
_RECORD_FIELDS = frozenset(each.name for each in fields(FileRecord))
_RECORDS = TypeAdapter(FileRecord)
_ALL_RECORDS = TypeAdapter(tuple[FileRecord, ...])


def _listed(files: tuple[FileRecord, ...]) -> bytes:
    try:
        return _ALL_RECORDS.dump_json(files, exclude_defaults=True)
    except ValueError:  # a name that is no UTF-8, which the standard library escapes
        return json.dumps([asdict(record) for record in files]).encode()


def _record(data: dict[str, Any]) -> Any:
    """A file's dictionary becomes its record at once, because all dictionaries of a large entry
    take several times the memory of its text. What is none stays as it is, and is judged whole."""
    if "sha256" not in data or not data.keys() <= _RECORD_FIELDS:
        return data
    try:
        return _RECORDS.validate_python(data)
    except ValidationError:
        return data


@dataclass(frozen=True, slots=True)
class Outline:
    """What is kept of an entry in memory: all that decides, and of its files only sums."""

    n: int
    attempt: int
    id: str
    fence: bool
    step: int | None
    kind: SaveKind | None
    parent: int | None
    folders: tuple[str, ...]
    """Those of the saves that its data lies in (`keys.save_folder`): hardly ever more than one."""
    urls: tuple[str, ...]
    """Of the stores that hold them, one for each folder; empty: the chain's own."""
    objects: int
    size: int
    """Bytes of all objects."""
    vm: str

    @classmethod
    def of(cls, entry: Entry) -> Outline:
        found: dict[tuple[str, str], None] = {}
        objects = size = 0
        within, url = "/", ""  # no key begins like this
        for record in entry.files:
            if not record.key:
                continue
            if not record.key.startswith(within) or record.url != url:  # hardly after the first
                folder, url = save_folder(record.key), record.url
                found[folder, url] = None
                within = folder + "/"
            objects += parts_of(record.size, record.part) if record.part else 1
            size += record.size
        return cls(
            *(entry.n, entry.attempt, entry.id, entry.fence, entry.step, entry.kind, entry.parent),
            tuple(folder for folder, _ in found),
            tuple(url for _, url in found),
            *(objects, size, entry.vm),
        )


@dataclass(frozen=True)
class BadEntry:
    """An entry that is there and cannot be read: what it was is unknown."""

    n: int
    why: str
    newer: bool = False
    """It is whole, and a newer release can read it."""

    def __str__(self) -> str:
        return f"chain entry {self.n} is unreadable ({self.why})"


AnyEntry = Entry | BadEntry
AnyOutline = Outline | BadEntry
