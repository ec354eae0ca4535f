"""The master's home folder: one master per home, whose it is, and the first admin token.

`<home>/master.lock` is held with flock(2) for the life of the process, so that a killed master
leaves nothing to clean up. `<home>/owner` is a copy of the installation's name, which stands in the
tags of its VMs: the database's counts (`store.installation`).
`<home>/admin.token` is readable by its user alone.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from pathlib import Path
from typing import IO

from spothop_master.security import token_hash

ADMIN_TOKEN = "admin.token"
_OWNER = re.compile(r"[a-z0-9-]{1,40}")


class HomeError(Exception):
    """The home folder cannot be used; the message says why and the way out."""


def prepare(home: Path) -> IO[str]:
    """Make the folder and lock it; the lock lasts as long as the file is open.

    Raises `HomeError` when it is not writable or another master runs on it.
    """
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (home / "master.lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise HomeError(
            f"home = {home}: not writable ({error.strerror}); "
            "choose another folder with --home or SPOTHOP_MASTER_HOME"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        process = lock.read().strip() or "unknown"
        lock.close()
        raise HomeError(
            f"home = {home}: another master (process {process}) runs on it; "
            "stop that one, or give this one its own --home"
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def new_owner() -> str:
    """A name for an installation."""
    return f"spothop-{secrets.token_hex(4)}"


def known_owner(home: Path) -> str | None:
    """The name of the installation that this home is of; None: of none yet. Raises `HomeError`."""
    path = home / "owner"
    try:
        name = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    if not _OWNER.fullmatch(name):
        raise HomeError(f"{path} holds {name!r}, no name of ours; restore it or remove the file")
    return name


def keep_owner(home: Path, name: str) -> None:
    """So that this home is taken for no other installation's."""
    publish(home / "owner", f"{name}\n", mode=0o644)


def forget_token(home: Path, hash_: str) -> None:
    """Remove `admin.token` if the token in it has this hash: it counts no more, and a command that
    finds it there would only be refused."""
    path = home / ADMIN_TOKEN
    try:
        if token_hash(path.read_text(encoding="utf-8").strip()) == hash_:
            path.unlink()
    except OSError:  # somebody removed it before
        pass


def publish(path: Path, text: str, *, mode: int, new: bool = False) -> None:
    """Write a whole file or none, with these permissions from its first byte on. `new`: raises
    FileExistsError when somebody else, at the same moment too, has made it."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if not new:
        aside.replace(path)
        return
    try:
        os.link(aside, path)
    finally:
        aside.unlink()
