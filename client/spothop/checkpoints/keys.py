"""Where things lie below `jobs/<job>/`, and how file names become keys.

chain/<n>.json                               one entry; n has 8 digits
data/<step>-<attempt>-<kind>/<id>/<path>     what entries name; <id> for each save
outputs/<attempt>/<path>                     what the job leaves to its user
env/                                         what `setup:` made (`spothop_agent.environment.shelf`)
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from spothop.storage import StorageError, UnsafePath
from spothop.storage.folder import TEMPORARY
from spothop.wire import SaveKind

_UNFINISHED = re.compile(rf"(?:(?<=/)|^)\.(?={re.escape(TEMPORARY[1:])})")
_JOB = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_NUMBER = re.compile(r"(\d{8})\.json")
_DATA = re.compile(r"(\d+)-(\d+)-([a-z]+)")


class DataFolder(NamedTuple):
    """What the name of a data folder says."""

    step: int
    attempt: int
    kind: SaveKind


def job_prefix(job: str) -> str:
    """`jobs/<job>`; raises `StorageError` when the id cannot be one segment of a key."""
    if not _JOB.fullmatch(job):
        raise StorageError(f"{job!r} is no job id", hint="use letters, digits, '.', '_' and '-'")
    return f"jobs/{job}"


def chain_folder(job: str) -> str:
    return f"{job_prefix(job)}/chain"


def chain_key(job: str, n: int) -> str:
    return f"{chain_folder(job)}/{n:08d}.json"


def chain_number(key: str) -> int | None:
    """The number in a key below `chain/`; None for anything that is no entry."""
    match = _NUMBER.fullmatch(key.rpartition("/")[2])
    return int(match.group(1)) if match else None


def data_root(job: str) -> str:
    return f"{job_prefix(job)}/data"


def data_folder(job: str, step: int, attempt: int, kind: SaveKind) -> str:
    return f"{data_root(job)}/{step}-{attempt}-{kind.value}"


def parse_data_folder(name: str) -> DataFolder | None:
    """The reverse of `data_folder`'s last segment; None for a folder that is not ours."""
    match = _DATA.fullmatch(name)
    if match is None or match.group(3) not in {kind.value for kind in SaveKind}:
        return None
    return DataFolder(int(match.group(1)), int(match.group(2)), SaveKind(match.group(3)))


def save_folder(key: str) -> str:
    """`jobs/<job>/data/<step>-<attempt>-<kind>/<id>` of a data object: the folder of its save."""
    return "/".join(key.split("/", 5)[:5])


def outputs_folder(job: str) -> str:
    return f"{job_prefix(job)}/outputs"


def quote(path: str) -> str:
    """A relative path as a key: every character that some store treats specially becomes `~XX`.

    Letters and digits of any script stay, for keys that people can read. A name that begins as a
    folder's unfinished writes do would be taken for one, and deleted. Reversed by `unquote`.
    """
    quoted = "".join(
        character
        if character.isalnum() or character in "._-/"
        else "".join(f"~{byte:02X}" for byte in os.fsencode(character))
        for character in path
    )
    return _UNFINISHED.sub("~2E", quoted) if TEMPORARY in quoted else quoted


def unquote(key: str) -> str:
    """The path that `quote` made `key` from."""
    raw = re.sub(
        rb"~([0-9A-F]{2})", lambda match: bytes([int(match.group(1), 16)]), os.fsencode(key)
    )
    return os.fsdecode(raw)


def is_key(key: str) -> bool:
    """Can `key` name an object at all? Without this, only the store's refusal would tell."""
    return "\0" not in key and all(part not in {"", ".", ".."} for part in key.split("/"))


def inside(target: Path, relative: str) -> Path:
    """`relative` below `target`; `UnsafePath` if it leads out, by its text or through a link."""
    parts = relative.split("/")
    if not relative or "\0" in relative or any(part in {"", ".", ".."} for part in parts):
        raise UnsafePath(f"the path {relative!r} leads out of {str(target)!r} or names nothing")
    path = target.joinpath(*parts)
    if not path.parent.resolve().is_relative_to(target.resolve()):
        raise UnsafePath(f"the path {relative!r} leads out of {str(target)!r} through a link")
    return path
