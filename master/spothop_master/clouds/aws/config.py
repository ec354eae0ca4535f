"""What a master may use of an AWS account: a YAML file.

regions:
  us-east-1: {}                # the default VPC, and images that AWS's own parameters name
  eu-west-1:
    subnets: {eu-west-1a: subnet-0123, eu-west-1b: subnet-4567}
    security_groups: [sg-0123]
instance_profile: spothop-vm   # whose role the VMs have
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from spothop_master.clouds.configuration import Strict, read

PLAIN_IMAGE = (
    "resolve:ssm:/aws/service/canonical/ubuntu/server/22.04/stable/current/{debian_arch}/hvm"
    "/ebs-gp2/ami-id"
)
"""Ubuntu 22.04 of Canonical, as its publisher keeps it current:
https://documentation.ubuntu.com/aws/aws-how-to/instances/find-ubuntu-images/"""
GPU_IMAGE = (
    "resolve:ssm:/aws/service/deeplearning/ami/{arch}/base-oss-nvidia-driver-gpu-ubuntu-22.04"
    "/latest/ami-id"
)
"""AWS's image with NVIDIA's driver, CUDA and nothing of a framework:
https://docs.aws.amazon.com/dlami/latest/devguide/find-dlami-id.html"""
DEBIAN_ARCH = {"x86_64": "amd64"}
"""Where Debian has another name for an architecture."""

_REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d+")

Price = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Image = Annotated[str, Field(pattern=r"^(ami-[0-9a-f]+|resolve:ssm:\S+)$")]


class RegionConfig(Strict):
    """One region; what is left out is what AWS gives a new account."""

    subnets: dict[str, str] = Field(default_factory=dict)
    """Zone -> subnet. Only these zones are used; none: the default VPC's, in all zones."""
    security_groups: list[str] = Field(default_factory=list)
    """None: the VPC's default one, which lets everything out and nothing in."""
    image: Image | None = None
    """In place of `image` of the file, whose ids are those of one region."""
    gpu_image: Image | None = None


class VmTypeConfig(Strict):
    """A VM type that the catalogue lacks, or a price that it has not."""

    price: Price
    """On demand, USD an hour."""
    gpu: bool = False
    """It boots from `gpu_image`."""
    arch: Literal["x86_64", "arm64"] = "x86_64"


class AwsConfig(Strict):
    regions: dict[str, RegionConfig] = Field(min_length=1)
    profile: str | None = None
    """Of the SDK's configuration files; None: wherever the SDK finds credentials."""
    instance_profile: str = "spothop-vm"
    """Name or ARN of what gives the VMs their role. Empty: they have none."""
    interruption_role: str = "spothop-fis"
    """Name or ARN of the role with which AWS's Fault Injection Service may interrupt our spot VMs;
    for tests of preemptions."""
    image: Image = PLAIN_IMAGE
    gpu_image: Image = GPU_IMAGE
    disk_gb: int = Field(default=100, ge=8, le=16_000)
    """Of the disk that a VM boots from, in GB, where the job does not say."""
    vm_types: dict[str, VmTypeConfig] = Field(default_factory=dict)
    """Beside those of the catalogue; one of the same name wins over it."""
    launches_per_s: float = Field(default=2.0, gt=0, le=100)
    """EC2 refills the bucket of RunInstances by two requests a second for each region."""
    endpoint_url: str | None = None
    """Where all AWS APIs are; for tests."""

    @field_validator("regions", mode="before")
    @classmethod
    def _from_names(cls, value: Any) -> Any:
        """`[us-east-1, eu-west-1]` will do."""
        names = value if isinstance(value, (list, dict)) else ()
        if wrong := [name for name in names if not _REGION.fullmatch(str(name))]:
            raise ValueError(
                f"{wrong[0]!r} is no region; one is called like us-east-1, and us-east-1a is a zone"
            )
        if isinstance(value, list):
            return {name: {} for name in value}
        if isinstance(value, dict):
            return {name: {} if region is None else region for name, region in value.items()}
        return value

    def image_for(self, region: str, *, gpu: bool, arch: str) -> str:
        """`{arch}` in it is that of the VM type, `{debian_arch}` the same in Debian's words."""
        own = self.regions[region]
        named = (own.gpu_image or self.gpu_image) if gpu else (own.image or self.image)
        debian = DEBIAN_ARCH.get(arch, arch)
        return named.replace("{debian_arch}", debian).replace("{arch}", arch)


def load(file: Path) -> AwsConfig:
    """Raises ConfigError."""
    return read(file, AwsConfig, what="AWS configuration")
