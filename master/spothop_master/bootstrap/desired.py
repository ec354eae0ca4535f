"""What an installation consists of. Pure, but for the policies, which are files of the package."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TAG = "spothop-bootstrap"
"""Its value is the region of the installation."""
BUCKET_TAG = "spothop-bucket"
"""Of the master's role: the name of the installation's bucket."""
SOFTWARE_TAG = "spothop-user-data"
"""Of the master's VM: the SHA-256 of its user data, and so of all that it runs."""
MASTER, VM, FIS = "spothop-master", "spothop-vm", "spothop-fis"
SOFTWARE = "master/software/"
PORT = 8900
VM_TYPE = "t3.small"
"""x86_64 as most GPU VMs, which can then run the agent's zip of the master as it is."""
DISK_GB = 20
PARTS_RULE = "spothop: parts of uploads that nobody finished"
PARTS_DAYS = 7
ANYWHERE = "0.0.0.0/0"

_POLICIES = Path(__file__).with_name("_policies")


@dataclass(frozen=True, kw_only=True)
class Role:
    """Who may have it, and what it may do: inline policies by their names."""

    service: str
    policies: dict[str, str]
    """Name -> file of deploy/aws, without its ending."""
    profile: bool
    """Whether VMs have it, by an instance profile of the same name."""


ROLES: dict[str, Role] = {
    MASTER: Role(
        service="ec2", policies={"spothop": "master", "spothop-vm": "master-vm"}, profile=True
    ),
    VM: Role(service="ec2", policies={"spothop": "vm"}, profile=True),
    FIS: Role(service="fis", policies={"spothop": "fis"}, profile=False),
}
GROUPS = {
    MASTER: "spothop: the master's port, with TLS, open to its VMs and users",
    VM: "spothop: VMs that jobs run on; nothing comes in",
}
"""Security groups -> description."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the user asked for."""

    region: str
    bucket: str
    software: str
    """SHA-256 of the master's software."""
    vm_type: str = ""
    """Empty: that of the VM there is, else `VM_TYPE`."""
    lose_backup: bool = False
    """Terminate a master's VM that made no last backup."""
    with_data: bool = False
    """Remove the bucket though it holds something."""
    endpoint: str = ""
    """Where AWS's APIs are; for tests."""
    tags: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", {TAG: self.region})


def owner(account: str, region: str) -> str:
    """The name of the installation in the tags of its VMs: known before the master's first start,
    and the same after all is lost."""
    return f"spothop-{account}-{region}"


def default_bucket(account: str, region: str) -> str:
    return f"spothop-{account}-{region}"


def policy(name: str, bucket: str) -> Any:
    """One of deploy/aws, for this bucket."""
    text = (_POLICIES / f"{name}.json").read_text("utf-8")
    return json.loads(text.replace("SPOTHOP_BUCKET", bucket))


def trust(service: str) -> Any:
    principal = {"Service": f"{service}.amazonaws.com"}
    allowed = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": principal}
    return {"Version": "2012-10-17", "Statement": [allowed]}


def tag_list(tags: dict[str, str], **more: str) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in sorted({**tags, **more}.items())]


ACCESS_BLOCK = dict.fromkeys(
    ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"), True
)
ENCRYPTION = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
PARTS = {
    "ID": PARTS_RULE,
    "Status": "Enabled",
    "Filter": {"Prefix": ""},
    "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": PARTS_DAYS},
}
