"""What a master may use of a GCP project: a YAML file.

project: my-project
regions:
  us-central1: {}              # all its zones, in the network `default`
  europe-west4:
    zones: [europe-west4-a]
    subnet: trainers           # or projects/HOST/regions/europe-west4/subnetworks/trainers
service_account: spothop-vm    # whose rights the VMs have
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator
from pydantic_core import PydanticCustomError

from spothop_master.clouds.configuration import Strict, read

PLAIN_IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
"""Ubuntu 22.04 of Canonical, as its publisher keeps it current:
https://cloud.google.com/compute/docs/images/os-details"""
ARM_IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts-arm64"
GPU_IMAGE = (
    "projects/deeplearning-platform-release/global/images/family"
    "/common-cu128-ubuntu-2204-nvidia-570"
)
"""Google's image with NVIDIA's driver, CUDA and nothing of a framework:
https://cloud.google.com/deep-learning-vm/docs/images"""


def _matching(pattern: str, hint: str) -> AfterValidator:
    """Text of this form; the complaint says what it looks like instead of the pattern."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise PydanticCustomError("form", hint)
        return text

    return AfterValidator(check)


Price = Annotated[float, Field(gt=0, allow_inf_nan=False)]
ProjectId = Annotated[
    str,
    _matching(
        r"([a-z0-9.-]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]",
        "expected the id of a project, such as my-project-123; `gcloud projects list` shows it",
    ),
]
Image = Annotated[
    str,
    _matching(
        r"projects/[a-z0-9.:-]+/global/images/(family/)?[a-z][-a-z0-9]*",
        "expected projects/PROJECT/global/images/NAME or .../images/family/NAME;"
        " `gcloud compute images list` shows those of Google",
    ),
]
RegionName = Annotated[
    str,
    _matching(
        r"[a-z]+-[a-z]+\d+", "expected a region, such as us-central1; its zones go into `zones`"
    ),
]
ZoneName = Annotated[
    str, _matching(r"[a-z]+-[a-z]+\d+-[a-z]+", "expected a zone, such as us-central1-a")
]


class RegionConfig(Strict):
    """One region; what is left out is what a new project has."""

    zones: list[ZoneName] = Field(default_factory=list)
    """Only these zones are used; none: all that there are."""
    subnet: str = ""
    """Name, or `projects/HOST/regions/REGION/subnetworks/NAME` of a shared network; empty: that of
    the network in this region."""


class VmTypeConfig(Strict):
    """A VM type that the catalogue lacks, or prices that it has not."""

    price: Price
    """On demand, USD an hour."""
    spot_price: Price | None = None
    """USD an hour; None: not known, so the price on demand stands for it."""
    gpu: bool = False
    """It boots from `gpu_image`."""
    arch: Literal["x86_64", "arm64"] = "x86_64"


class GcpConfig(Strict):
    project: ProjectId
    """Its id, not its number."""
    regions: dict[RegionName, RegionConfig] = Field(min_length=1)
    network: str = Field(default="default", min_length=1)
    external_ip: bool = True
    """Without one the network needs Cloud NAT, for VMs reach their master and storage from it."""
    service_account: str = "spothop-vm"
    """Name in the project, or an e-mail address, of what gives the VMs their rights. Empty: they
    have none."""
    image: Image = PLAIN_IMAGE
    arm_image: Image = ARM_IMAGE
    gpu_image: Image = GPU_IMAGE
    disk_gb: int = Field(default=100, ge=10, le=16_000)
    """Of the disk that a VM boots from, in GB, where the job does not say."""
    vm_types: dict[str, VmTypeConfig] = Field(default_factory=dict)
    """Beside those of the catalogue; one of the same name wins over it."""
    preemption_notice: bool = True
    """Ask for a notice of 120 s (`preemptionNoticeDuration`); where the project may not have it,
    spot VMs are launched without, and have the 30 s of their shutdown."""
    max_run_days: float = Field(default=7.0, gt=0.01, le=120.0)
    """After so long Compute Engine itself deletes a VM (`maxRunDuration`): the last resort against
    one that everybody forgot."""
    launches_per_s: float = Field(default=5.0, gt=0, le=100)
    """Compute Engine lets a project make 20 requests a second, of all kinds that change."""
    endpoint_url: str | None = None
    """Where all of Google's APIs are; for tests."""

    @field_validator("regions", mode="before")
    @classmethod
    def _from_names(cls, value: Any) -> Any:
        """`[us-central1, europe-west4]` will do."""
        if isinstance(value, list):
            return {name: {} for name in value}
        if isinstance(value, dict):
            return {name: {} if region is None else region for name, region in value.items()}
        return value

    @field_validator("regions")
    @classmethod
    def _zones_lie_in_their_regions(cls, value: dict[str, RegionConfig]) -> dict[str, RegionConfig]:
        for name, region in value.items():
            for zone in region.zones:
                if region_of(zone) != name:
                    told = f"zone {zone} is not in region {name}; list it below its own region"
                    raise PydanticCustomError("place", told)
        return value

    def image_for(self, *, gpu: bool, arch: str) -> str:
        if gpu:
            return self.gpu_image
        return self.arm_image if arch == "arm64" else self.image

    def account(self) -> str:
        """The e-mail address of the VMs' service account; "" for none."""
        name = self.service_account
        if not name or "@" in name:
            return name
        domain, _, project = self.project.rpartition(":")
        return f"{name}@{project}.{domain + '.' if domain else ''}iam.gserviceaccount.com"


def region_of(zone: str) -> str:
    return zone.rpartition("-")[0]


def load(file: Path) -> GcpConfig:
    """Raises ConfigError."""
    return read(file, GcpConfig, what="GCP configuration")
