"""Where bundles, logs and the agent's files are kept: in a folder, or in a bucket (`files`)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from spothop.wire import StorageSpec
from spothop_master.bundles import Bundles, BundleStore
from spothop_master.lanes import Lane
from spothop_master.logs import Logs, LogStore
from spothop_master.settings import MasterSettings
from spothop_master.store.db import Database

if TYPE_CHECKING:
    from spothop.storage import ObjectStore


def bucket_of(settings: MasterSettings) -> ObjectStore | None:
    """Of bundles, logs and the agent's files; None where they are in a folder. Raises
    StorageError."""
    if not settings.files_url:
        return None
    from spothop.storage import open_store

    return open_store(spec_of(settings.files_url))


def spec_of(url: str) -> StorageSpec:
    """Of a place in a bucket; options that are no secret may follow it, such as
    `?endpoint=https://minio.example&region=here`."""
    parts = urlsplit(url)
    place = urlunsplit(parts._replace(query="")).rstrip("/")
    return StorageSpec(url=place, options=dict(parse_qsl(parts.query)))


def logs_of(
    settings: MasterSettings,
    bucket: ObjectStore | None,
    db: Database,
    clock: Callable[[], datetime],
    *,
    told: Callable[[str], None],
) -> LogStore:
    """`told` hears which job's log has grown."""
    limit = settings.max_log_bytes
    if bucket is not None:
        from spothop_master.bucket_logs import BucketLogs

        later = Lane("logs-to-bucket", 1).later
        return BucketLogs(db, bucket, limit=limit, on_append=told, clock=clock, later=later)
    return Logs(settings.files / "logs", limit=limit, on_append=told)


def bundles_of(
    settings: MasterSettings,
    bucket: ObjectStore | None,
    db: Database,
    clock: Callable[[], datetime],
) -> BundleStore:
    limit = settings.max_bundle_bytes
    if bucket is not None:
        from spothop_master.bucket_bundles import BucketBundles

        return BucketBundles(db, bucket, settings.home / "copies", limit=limit, clock=clock)
    return Bundles(settings.files / "bundles", limit=limit)
