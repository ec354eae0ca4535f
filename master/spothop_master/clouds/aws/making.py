"""Makes the AWS cloud of a master."""

from __future__ import annotations

from spothop_master.clouds.aws.config import load
from spothop_master.clouds.aws.driver import AwsCloud
from spothop_master.clouds.aws.offers import VmType
from spothop_master.clouds.base import Cloud
from spothop_master.clouds.configuration import CloudContext, ConfigError


def make(context: CloudContext) -> Cloud:
    """Raises ConfigError."""
    if context.file is None:
        raise ConfigError(
            "the AWS cloud has no configuration; write a file with at least"
            " `regions: [us-east-1]`, and name it in SPOTHOP_MASTER_AWS_CLOUD"
        )
    types = {
        each.vm: VmType(
            prices=each.prices, gpu=each.shape.gpus > 0, arch=each.shape.arch or "x86_64"
        )
        for each in context.catalogue.types
        if each.cloud == "aws"
    }
    return AwsCloud(load(context.file), types=types)
