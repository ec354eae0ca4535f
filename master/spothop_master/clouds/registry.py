"""Makes the clouds that a master works with."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from spothop_master.clouds.base import Cloud
from spothop_master.clouds.local.config import load
from spothop_master.clouds.local.driver import LocalCloud


class UnknownCloud(Exception):
    """No such cloud; the message names those that there are."""


def make_clouds(
    names: Iterable[str] = ("local",), *, home: Path, local_cloud: Path | None = None
) -> dict[str, Cloud]:
    """The clouds of these names, ready for use.

    `home` is the master's home folder, `local_cloud` the local cloud's configuration file (None:
    three built-in zones). Raises UnknownCloud, and ConfigError for a bad configuration.
    """
    clouds: dict[str, Cloud] = {}
    for name in names:
        if name != "local":
            raise UnknownCloud(f"cloud {name!r} is not supported; supported: local")
        clouds[name] = LocalCloud(load(local_cloud, default_directory=home / "local-cloud"))
    return clouds
