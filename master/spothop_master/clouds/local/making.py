"""Makes the local cloud of a master."""

from __future__ import annotations

import logging

from spothop_master.clouds.base import Cloud
from spothop_master.clouds.configuration import CloudContext
from spothop_master.clouds.local import isolation
from spothop_master.clouds.local.config import load
from spothop_master.clouds.local.driver import LocalCloud

log = logging.getLogger(__name__)


def make(context: CloudContext) -> Cloud:
    """Without a file: three built-in zones. Raises ConfigError for a bad configuration, or one that
    this machine cannot have. Forks: call it while there is one thread."""
    config = load(context.file, default_directory=context.home / "local-cloud")
    decision = isolation.decide(config, master_url=context.master_url)
    if (told := isolation.warning(decision)) is not None:
        log.warning("%s", told)
    config = config.model_copy(update={"isolation": decision.isolation})
    return LocalCloud(config, hidden=(context.home, *context.hidden))
