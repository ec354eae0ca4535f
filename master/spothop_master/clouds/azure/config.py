"""What a master may use of an Azure subscription: a YAML file.

subscription: 00000000-0000-0000-0000-000000000000
resource_group: spothop
identity: /subscriptions/.../userAssignedIdentities/spothop-vm   # whose rights the VMs have
regions:
  eastus: {subnet: /subscriptions/.../virtualNetworks/spothop-eastus/subnets/default}
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from spothop_master.clouds.configuration import Strict, read

PLAIN_IMAGE = "Canonical:0001-com-ubuntu-server-jammy:{jammy}:latest"
"""Ubuntu 22.04 of Canonical:
https://documentation.ubuntu.com/azure/azure-how-to/instances/find-ubuntu-images/"""
GPU_IMAGE = "microsoft-dsvm:ubuntu-hpc:2204:latest"
"""Ubuntu 22.04 with NVIDIA's driver and CUDA:
https://learn.microsoft.com/azure/virtual-machines/azure-hpc-vm-images"""
JAMMY = {"x86_64": "22_04-lts-gen2", "arm64": "22_04-lts-arm64"}
"""What `{jammy}` stands for."""
NOBODYS_KEY = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINK4Z9B/doqW8cIu0YyXrY2FY8MCV7dPqywLBEilynAw"
    " nobody@spothop"
)
"""Azure wants a key or a password for each VM, and we want neither. This is a key that nobody has:
its 32 bytes are SHA-256 of `spothop: nobody has this key N`, with the first N >= 0 for which they
are a point of the curve."""

_IN_GROUP = r"/subscriptions/[^/\s]+/resourceGroups/[^/\s]+/providers/"


def _like(pattern: str, hint: str) -> AfterValidator:
    """A text of this form; who writes another one is told the hint."""

    def check(value: str) -> str:
        if re.fullmatch(pattern, value, re.IGNORECASE) is None:
            raise ValueError(f"expected {hint}")
        return value

    return AfterValidator(check)


def _id(of: str, command: str) -> AfterValidator:
    """The id of a resource; `of` is its type, with NAME for each name."""
    pattern = _IN_GROUP + re.escape(of).replace("NAME", r"[^/\s]+")
    return _like(pattern, f"/subscriptions/.../{of}, as `{command} --query id` tells it")


SUBNET, SECURITY_GROUP, IDENTITY = (
    "Microsoft.Network/virtualNetworks/NAME/subnets/NAME",
    "Microsoft.Network/networkSecurityGroups/NAME",
    "Microsoft.ManagedIdentity/userAssignedIdentities/NAME",
)
SubnetId = Annotated[str, _id(SUBNET, "az network vnet subnet show")]
SecurityGroupId = Annotated[str, _id(SECURITY_GROUP, "az network nsg show")]
IdentityId = Literal[""] | Annotated[str, _id(IDENTITY, "az identity show")]
Subscription = Annotated[
    str,
    _like(
        r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        "the id of a subscription, as `az account show --query id` tells it",
    ),
]
Image = Annotated[
    str,
    _like(
        rf"[^:/\s]+(:[^:/\s]+){{3}}|{_IN_GROUP}\S+",
        "PUBLISHER:OFFER:SKU:VERSION, or the id of an image: /subscriptions/...",
    ),
]
Price = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Arch = Literal["x86_64", "arm64"]


class RegionConfig(Strict):
    """One region."""

    subnet: SubnetId
    """In which the VMs' network interfaces are made."""
    security_group: SecurityGroupId | None = None
    """Of the network interfaces; None: that of the subnet, if it has one. The VMs only call out."""
    zones: list[Literal["1", "2", "3"]] | None = None
    """Availability zones to use. None: all in which Azure offers a VM type; in a region without
    any, VMs are in none."""
    image: Image | None = None
    """In place of `image` of the file: a managed image is in one region."""
    gpu_image: Image | None = None

    @field_validator("zones", mode="before")
    @classmethod
    def _as_names(cls, value: object) -> object:
        """`[1, 2]` will do."""
        return [str(each) for each in value] if isinstance(value, list) else value


class VmTypeConfig(Strict):
    """A VM type that the catalogue lacks, or a price that it has not."""

    price: Price
    """On demand, USD an hour."""
    gpu: bool = False
    """It boots from `gpu_image`."""
    arch: Arch = "x86_64"


class AzureConfig(Strict):
    subscription: Subscription
    resource_group: Annotated[str, Field(pattern=r"^[\w.()-]{1,90}$")]
    """Where everything is made. It has to exist; a master lists and deletes in no other one."""
    regions: dict[str, RegionConfig] = Field(min_length=1)
    identity: IdentityId
    """The user-assigned identity of the VMs: what they may do, such as write to the storage, and
    delete themselves. Empty: they have none."""
    credential: Literal[
        "default", "managed_identity", "cli", "environment", "workload_identity"
    ] = "default"
    """The master's own: `default` is azure-identity's DefaultAzureCredential, which tries them in
    its order."""
    client_id: str | None = None
    """Which user-assigned identity the master has, where its machine has several."""
    image: Image = PLAIN_IMAGE
    """`PUBLISHER:OFFER:SKU:VERSION`, or the id of an image or of a gallery's image version."""
    gpu_image: Image = GPU_IMAGE
    disk_gb: int = Field(default=100, ge=8, le=4_000)
    """Of the disk that a VM boots from, in GB, where the job does not say."""
    disk_type: Literal["Standard_LRS", "StandardSSD_LRS", "Premium_LRS"] = "StandardSSD_LRS"
    """Premium_LRS is for VM types with an `s` in their name only."""
    public_address: bool = True
    """Each VM gets a public address, which costs money, to reach the master by. False: the subnet
    has a NAT gateway; without either, VMs of newer networks reach nothing."""
    ssh_public_key: str = NOBODYS_KEY
    """Of the user `spothop` on the VMs. The default is a key that nobody has."""
    vm_types: dict[str, VmTypeConfig] = Field(default_factory=dict)
    """Beside those of the catalogue; one of the same name wins over it."""
    launches_per_s: float = Field(default=2.0, gt=0, le=100)
    """Azure takes some hundred PUTs of VMs in three minutes, for each region."""
    prices_url: str = "https://prices.azure.com"
    """Of the Retail Prices API."""
    endpoint_url: str = "https://management.azure.com"
    """Of Azure Resource Manager; http:// only for tests, and then without credentials."""

    def image_for(self, region: str, *, gpu: bool, arch: str) -> str:
        own = self.regions[region]
        named = (own.gpu_image or self.gpu_image) if gpu else (own.image or self.image)
        return named.replace("{jammy}", JAMMY.get(arch, JAMMY["x86_64"])).replace("{arch}", arch)

    @property
    def group_id(self) -> str:
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.resource_group}"


def load(file: Path) -> AzureConfig:
    """Raises ConfigError."""
    return read(file, AzureConfig, what="Azure configuration")
