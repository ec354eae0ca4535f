"""What of the master's home goes to the bucket, so that another VM can take its place.

    master/backup/newest.zip      database, keys, name, admin token, TLS: every few minutes, and
                                  when the VM shuts down
    master/backup/<weekday>.zip   the same, of the last time on that day: seven older ones
    master/bundles/<sha256>       code bundles, each once

The database is copied with SQLite's online backup, while the master runs. Logs and the agent's zips
stay behind: those of a job that runs begin anew, the zips are built again. A restore puts the
database in its place last, so that one that was interrupted is repeated.

Other VMs' role may not read or write below `master/` (deploy/aws/vm.json): here are the keys.
"""

from __future__ import annotations

import io
import os
import re
import sqlite3
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path

from spothop_master.clouds.aws.calls import Caller
from spothop_master.clouds.base import CloudError

DATABASE = "master.db"
FILES = ("master.key", "owner", "admin.token", "tls/ca.key", "tls/ca.pem", "tls/leaf.pem")
NEWEST = "master/backup/newest.zip"
BUNDLES = "master/bundles/"
NONE = frozenset({"NoSuchKey", "404"})
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Backups:
    """Of one home folder in one bucket. Raises CloudError and OSError."""

    def __init__(self, calls: Caller, *, region: str, bucket: str, home: Path) -> None:
        self._calls = calls
        self._region = region
        self._bucket = bucket
        self._home = home

    def save(self, now: datetime) -> None:
        """Bundles first: a job that is in the backup has its code there."""
        known = set(self._bundles())
        for path in sorted((self._home / "bundles").glob("*")):
            if _SHA256.fullmatch(path.name) and path.name not in known:
                self._put(f"{BUNDLES}{path.name}", path.read_bytes())
        content = self._zip()
        self._put(f"master/backup/{now:%a}.zip".lower(), content)
        self._put(NEWEST, content)

    def restore(self) -> bool:
        """The newest one, into a home without a database. False: there is nothing to restore, or
        a database is there."""
        if (self._home / DATABASE).exists():
            return False
        try:
            content = self._get(NEWEST)
        except CloudError as error:
            if error.code in NONE:
                return False
            raise
        (self._home / "bundles").mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in self._bundles():
            _write(self._home / "bundles" / name, self._get(f"{BUNDLES}{name}"))
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in (*FILES, DATABASE):
                if name in archive.namelist():
                    _write(self._home / name, archive.read(name))
        return True

    def _zip(self) -> bytes:
        target = io.BytesIO()
        with (
            zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive,
            tempfile.TemporaryDirectory(prefix="spothop-") as folder,
        ):
            copy = Path(folder) / DATABASE
            _copy(self._home / DATABASE, copy)
            archive.write(copy, DATABASE)
            for name in FILES:
                if (self._home / name).is_file():
                    archive.write(self._home / name, name)
        return target.getvalue()

    def _bundles(self) -> Iterator[str]:
        pages = self._calls.pages(
            "s3", self._region, "list_objects_v2", Bucket=self._bucket, Prefix=BUNDLES
        )
        for page in pages:
            for row in page.get("Contents", ()):
                name = str(row["Key"]).removeprefix(BUNDLES)
                if _SHA256.fullmatch(name):
                    yield name

    def _put(self, key: str, content: bytes) -> None:
        where = {"Bucket": self._bucket, "Key": key}
        self._calls.call("s3", self._region, "put_object", **where, Body=content)

    def _get(self, key: str) -> bytes:
        where = {"Bucket": self._bucket, "Key": key}
        answer = self._calls.call("s3", self._region, "get_object", **where)
        return bytes(answer["Body"].read())


def _copy(database: Path, target: Path) -> None:
    """https://www.sqlite.org/backup.html"""
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, for its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = path.with_name(f".{path.name}.restoring")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
