"""Makes the clouds that a master works with."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from spothop_master.clouds.base import Cloud
from spothop_master.clouds.local import isolation
from spothop_master.clouds.local.config import load
from spothop_master.clouds.local.driver import LocalCloud

log = logging.getLogger(__name__)


class UnknownCloud(Exception):
    """No such cloud; the message names those that there are."""


def make_clouds(
    names: Iterable[str] = ("local",),
    *,
    home: Path,
    master_url: str,
    local_cloud: Path | None = None,
    hidden: Iterable[Path] = (),
) -> dict[str, Cloud]:
    """The clouds of these names, ready for use.

    `home` is the master's home folder, `local_cloud` the local cloud's configuration file (None:
    three built-in zones), `master_url` where VMs reach the master. `hidden` is what no VM under
    another user sees, beside `home`. Raises UnknownCloud, and ConfigError for a bad configuration,
    or one that this machine cannot have. Forks: call it while there is one thread.
    """
    clouds: dict[str, Cloud] = {}
    for name in names:
        if name != "local":
            raise UnknownCloud(f"cloud {name!r} is not supported; supported: local")
        config = load(local_cloud, default_directory=home / "local-cloud")
        decision = isolation.decide(config, master_url=master_url)
        if (told := isolation.warning(decision)) is not None:
            log.warning("%s", told)
        config = config.model_copy(update={"isolation": decision.isolation})
        clouds[name] = LocalCloud(config, hidden=(home, *hidden))
    return clouds
