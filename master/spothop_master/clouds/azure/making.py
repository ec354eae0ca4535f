"""Makes the Azure cloud of a master."""

from __future__ import annotations

from spothop_master.clouds.azure.config import load
from spothop_master.clouds.azure.driver import AzureCloud
from spothop_master.clouds.azure.offers import VmType
from spothop_master.clouds.base import Cloud
from spothop_master.clouds.configuration import CloudContext, ConfigError


def make(context: CloudContext) -> Cloud:
    """Raises ConfigError."""
    if context.file is None:
        raise ConfigError(
            "the Azure cloud has no configuration; write a file with `subscription`,"
            " `resource_group`, `identity` and `regions` (docs/azure.md), and name it in"
            " SPOTHOP_MASTER_AZURE_CLOUD"
        )
    types = {
        each.vm: VmType(
            prices=each.prices, gpu=each.shape.gpus > 0, arch=each.shape.arch or "x86_64"
        )
        for each in context.catalogue.types
        if each.cloud == "azure"
    }
    return AzureCloud(load(context.file), types=types)
