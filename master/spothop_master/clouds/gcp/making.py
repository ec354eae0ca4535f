"""Makes the GCP cloud of a master."""

from __future__ import annotations

from spothop_master.clouds.base import Cloud
from spothop_master.clouds.configuration import CloudContext, ConfigError
from spothop_master.clouds.gcp.config import load
from spothop_master.clouds.gcp.driver import GcpCloud
from spothop_master.clouds.gcp.offers import VmType


def make(context: CloudContext) -> Cloud:
    """Raises ConfigError."""
    if context.file is None:
        raise ConfigError(
            "the GCP cloud has no configuration; write a file with at least"
            " `project: PROJECT_ID` and `regions: [us-central1]`, and name it in"
            " SPOTHOP_MASTER_GCP_CLOUD"
        )
    types = {
        each.vm: VmType(
            prices=each.prices,
            spot_prices=each.spot_prices,
            gpu=each.shape.gpus > 0,
            arch=each.shape.arch or "x86_64",
        )
        for each in context.catalogue.types
        if each.cloud == "gcp"
    }
    return GcpCloud(load(context.file), types=types)
