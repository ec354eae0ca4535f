"""A PostgreSQL server of the tests' own: one a process, started when the first test needs it.

It listens on a Unix socket in its own folder, as another user where the tests run as root (which
`initdb` refuses), and syncs nothing: tests survive no power cut. It ends with its input, so that
tests that are killed leave none.
"""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import subprocess
import tempfile
import threading
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa

from spothop_master.store.db import Database
from support import memory_disk
from support.require import missing
from support.waiting import until

USERS = ("postgres", "nobody")
"""Who may run it for root, the first that there is."""

ROLE = "spothop"
GUARDED = "guarded"
"""A role that must give its password; all others are let in without."""

_FAST = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_connections": "300",
    "deadlock_timeout": "100ms",
    "timezone": "Asia/Kathmandu",  # no whole hour from UTC: a time that loses its zone is noticed
}

_FROM_STDIN = '"$@" </dev/null & read -r _; kill -QUIT $!; wait $!'
"""Shell: run it until our input ends."""


class Postgres:
    """One server; `url(name)` is a database in it."""

    def __init__(self, programs: Path) -> None:
        self.programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir=_place()))
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = _other_user()
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None
        self._admin: sa.Engine | None = None
        self._lock = threading.Lock()
        self._templates: dict[str, str] = {}
        self._initdb()
        self.start()

    @classmethod
    def new(cls) -> Postgres:
        """Another one, which the test may stop, and closes. Skips the test where PostgreSQL is not
        installed."""
        where = programs()
        if where is None:
            missing("PostgreSQL", hint="install its server, on Debian the package postgresql")
        assert where is not None
        return cls(where)

    def _initdb(self) -> None:
        order = [self.programs / "initdb", "-D", self.folder / "data", "-U", ROLE, "-A", "trust"]
        order += ["-E", "UTF8", "--locale-provider=libc", "--locale=C.UTF-8", "--no-sync"]
        done = subprocess.run(
            order, capture_output=True, text=True, check=False, cwd="/", **self._as
        )
        assert done.returncode == 0, done.stderr
        access = self.folder / "data" / "pg_hba.conf"
        access.write_text(f"local all {GUARDED} scram-sha-256\n{access.read_text()}")

    def start(self) -> None:
        """Start it, again or for the first time, and wait until it answers."""
        order = [self.programs / "postgres", "-D", self.folder / "data", "-k", self.folder]
        for name, value in _FAST.items():
            order += ["-c", f"{name}={value}"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _FROM_STDIN, "sh", *order],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,  # Ctrl-C reaches the tests alone
                **self._as,
            )
        until(self._answers, what="PostgreSQL answers", details=self.log)

    def stop(self) -> None:
        """At once, as a machine that dies would; what was committed stays."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        if self._admin is not None:
            self._admin.dispose()
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- databases ------------------------------------------------------------------------------

    def url(self, name: str) -> str:
        return f"postgresql://{ROLE}@/{name}?host={quote(str(self.folder), safe='')}"

    def empty(self) -> str:
        """The URL of a new database without tables."""
        return self._copy_of("template0")

    def migrated(self, revision: str = "head") -> str:
        """The URL of a new database at this revision."""
        with self._lock:
            if revision not in self._templates:
                made = self._copy_of("template0")
                db = Database(made)
                db.migrate(revision)
                db.close()
                self._templates[revision] = _name_of(made)
        return self._copy_of(self._templates[revision])

    def drop(self, url: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {_name_of(url)} WITH (FORCE)")

    def execute(self, statement: str) -> None:
        """As its superuser, in a database that no test uses."""
        if self._admin is None:
            url = sa.make_url(self.url("postgres")).set(drivername="postgresql+psycopg")
            self._admin = sa.create_engine(url, isolation_level="AUTOCOMMIT", pool_pre_ping=True)
        with self._admin.connect() as connection:
            connection.exec_driver_sql(statement)

    def _copy_of(self, template: str) -> str:
        name = f"t{uuid.uuid4().hex}"
        # By files: where nothing is synced a checkpoint costs less than pages through the log.
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return self.url(name)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"PostgreSQL ended:\n{self.log()}"
        order = [self.programs / "pg_isready", "-q", "-h", self.folder, "-d", "postgres"]
        return subprocess.call(order) == 0


def _name_of(url: str) -> str:
    return str(sa.make_url(url).database)


def _place() -> Path:
    """Where another user may enter, with a path short enough for a socket in it (107 bytes)."""
    return (
        memory_disk.SHARED_MEMORY if memory_disk.suits(memory_disk.SHARED_MEMORY) else Path("/tmp")
    )


def _other_user() -> pwd.struct_passwd:
    for name in USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise LookupError(f"none of the users {', '.join(USERS)} is here")


@functools.cache
def programs() -> Path | None:
    """The folder of the newest server's programs on this machine."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    versions = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = max(versions, key=lambda path: int(path.parts[-3]), default=None)
    return newest.parent if newest else None


_lock = threading.Lock()
_server: list[Postgres] = []


def server() -> Postgres:
    """That of this process. Skips the test where PostgreSQL is not installed."""
    with _lock:
        if not _server:
            _server.append(Postgres.new())
        return _server[0]


def close() -> None:
    while _server:
        _server.pop().close()
