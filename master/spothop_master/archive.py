"""A back-up of a master: `spothop master backup` and `spothop master restore`.

One zip file, which its owner alone can read, because the master key is in it:

    master.db or database.dump   SQLite's online copy, or what pg_dump writes (its custom format)
    master.key, owner, admin.token, tls/...
    bundles/<sha256>             code bundles
    logs/...                     as far as they had come

Where bundles and logs are in a bucket (`files`), what is there stays there, as checkpoints do.

What it must guarantee: a back-up is whole or not there, and so is a restored home: its database is
put in its place last. The master may run while it is backed up: the database is taken first, at one
moment, and files that come later do no harm. A restore is for a home without a database, with no
master on it; VMs that its database does not know are held by the sweep (`core.orphans`).
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from sqlalchemy import URL

from spothop_master.settings import MasterSettings
from spothop_master.store import dialects
from spothop_master.store.db import Database
from spothop_master.store.migrating import file_of

SQLITE, DUMP = "master.db", "database.dump"
FILES = ("owner", "admin.token", "tls/ca.key", "tls/ca.pem", "tls/leaf.pem")
KEY = "master.key"
_TREE = re.compile(r"bundles/[0-9a-f]{64}|logs/[\w.-]+(/[\w.-]+)*")


class BackupError(Exception):
    """Nothing was written; the message says why, and the way out."""


def save(settings: MasterSettings, target: Path) -> int:
    """Write the archive; its bytes. Raises `BackupError`, `DatabaseRefused`, `OSError`."""
    if target.exists():
        raise BackupError(f"{target} is there; name a file that is not")
    target = target.absolute()
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        with (
            os.fdopen(descriptor, "w+b") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
            tempfile.TemporaryDirectory(dir=target.parent, prefix=".spothop-") as folder,
        ):
            copy = _copy_of_database(settings.database_url, Path(folder))
            archive.write(copy, copy.name)
            for name, path in _files(settings):
                archive.write(path, name)
        with aside.open("rb") as written:
            os.fsync(written.fileno())
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
    return target.stat().st_size


def restore(settings: MasterSettings, source: Path) -> int:
    """Into the home and database of these settings; how many files. The caller holds the home's
    lock. Raises `BackupError`, `DatabaseRefused`, `OSError`."""
    db = Database(settings.database_url)
    try:
        path = file_of(db.engine)
        if path is None:
            dialects.check(db.engine)
        if db.revision() is not None:
            raise BackupError(
                f"{dialects.shown(settings.database_url)} has rows, and nothing in it was changed; "
                "restore into a new home, or a database that is empty"
            )
    finally:
        db.close()
    try:
        archive = zipfile.ZipFile(source)
    except (OSError, zipfile.BadZipFile) as error:
        raise BackupError(f"{source} cannot be read: {error}; name a file of `backup`") from None
    with archive:
        names = archive.namelist()
        wanted, has = (SQLITE, DUMP) if path else (DUMP, SQLITE)
        if wanted not in names:
            kinds = {SQLITE: "SQLite", DUMP: "PostgreSQL"}
            raise BackupError(
                f"{source} holds {'a database of ' + kinds[has] if has in names else 'none'}, and "
                f"database_url is one of {kinds[wanted]}; name one of the same kind, and move it "
                "with `spothop master migrate-database` afterwards"
            )
        files = [name for name in names if _place(settings, name) is not None]
        for name in files:
            _extract(archive, name, _place(settings, name) or Path())
        if path is not None:
            _extract(archive, SQLITE, path)
        else:
            with tempfile.TemporaryDirectory() as folder:
                _extract(archive, DUMP, Path(folder) / DUMP)
                _load(settings.database_url, Path(folder) / DUMP)
    return len(files) + 1


def _files(settings: MasterSettings) -> Iterator[tuple[str, Path]]:
    """What is there now, beside the database."""
    known = [(KEY, settings.key_file), *((name, settings.home / name) for name in FILES)]
    yield from ((name, path) for name, path in known if path.is_file())
    for folder in ("bundles", "logs"):
        for path in sorted((settings.files / folder).rglob("*")):
            name = str(path.relative_to(settings.files))
            if path.is_file() and _TREE.fullmatch(name):
                yield name, path


def _place(settings: MasterSettings, name: str) -> Path | None:
    """Where this file of an archive goes; None: it is none of ours, or a database."""
    if name == KEY:
        return settings.key_file
    if name in FILES:
        return settings.home / name
    ours = _TREE.fullmatch(name) and ".." not in name.split("/")
    return settings.files / name if ours else None


def _extract(archive: zipfile.ZipFile, name: str, path: Path) -> None:
    """Whole or not at all, for its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = path.with_name(f".{path.name}.restoring")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file, archive.open(name) as content:
        shutil.copyfileobj(content, file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


# --- the database ---------------------------------------------------------------------------------


def _copy_of_database(url: str, folder: Path) -> Path:
    db = Database(url)
    try:
        path = file_of(db.engine)
        if path is None:
            dialects.check(db.engine)
            copy = folder / DUMP
            _run("pg_dump", ["--format=custom", "--no-owner", f"--file={copy}"], db.engine.url)
            return copy
        if not path.exists():
            raise BackupError(f"there is no database at {path}; see --home and --database-url")
        copy = folder / SQLITE
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as made:
            source.backup(made)  # https://www.sqlite.org/backup.html
        return copy
    finally:
        db.close()


def _load(url: str, dump: Path) -> None:
    parsed = dialects.parse(url)
    _run("pg_restore", ["--single-transaction", "--no-owner", str(dump)], parsed)


def _run(program: str, options: list[str], url: URL) -> None:
    """One of PostgreSQL's own programs; the password goes by its environment, where no other user
    sees it. Raises `BackupError`."""
    target = url.set(drivername="postgresql", password=None)
    target = target.difference_update_query(["password"])
    hidden = url.password or url.query.get("password")
    where = f"--dbname={target.render_as_string(hide_password=False)}"
    found = find(program)
    if found is None:
        raise BackupError(
            f"{program} is not here; install the package postgresql-client, or run it where it is: "
            f"{program} {' '.join(options)} '{where}'"
        )
    environment = {**os.environ, **({"PGPASSWORD": str(hidden)} if hidden else {})}  # noqa: TID251  handed on
    done = subprocess.run(
        [str(found), *options, where], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise BackupError(f"{program}: {said[0]}; it must be as new as the server at least")


def find(program: str) -> Path | None:
    """On the path, or the newest where Debian has them."""
    if on_path := shutil.which(program):
        return Path(on_path)
    every = Path("/usr/lib/postgresql").glob(f"*/bin/{program}")
    numbered = [path for path in every if path.parts[-3].isdigit()]
    return max(numbered, key=lambda path: int(path.parts[-3]), default=None)
