"""Runs the VMs of an emulator (`fakes.vm_hosts`): a VM that is noticed has the notice in its
metadata service, and what its guest does reaches the emulator: a shutdown, and the console."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fakes.aws.fleet import Life, moment
from fakes.aws.server import Emulator
from fakes.vm_hosts import VmHosts, put

ROLE = "spothop-vm"


class Hosts(VmHosts):
    program = Path(__file__).with_name("vm.py")

    def __init__(
        self,
        aws: Emulator,
        folder: Path,
        *,
        reach: Sequence[tuple[str, int]],
        marks: Mapping[str, str],
    ) -> None:
        super().__init__(folder, reach=reach, marks=marks)
        self._aws = aws

    def lives(self) -> Iterable[Life]:
        return self._aws.fleet.lives()

    def name(self, life: Life) -> str:
        return life.id

    def runs(self, life: Life) -> bool | None:
        return None if life.state in ("shutting-down", "terminated") else life.state == "running"

    def described(self, life: Life) -> tuple[bytes, dict[str, Any]]:
        told = {
            "id": life.id,
            "name": life.id,
            "region": life.region,
            "zone": life.instance.placement.zone,
            "type": life.instance.instance_type,
            "spot": life.request is not None,
            "role": ROLE,
            "credentials": self._credentials(life.id),
        }
        return base64.b64decode(life.params["UserData"]), told

    def look(self, life: Life, folder: Path) -> None:
        if life.noticed_at is not None and life.noticed_at <= self._aws.clock():
            put(folder / "notice.json", json.dumps({"deadline": life.interrupted_at}))
        if life.rebalance_at is not None:
            since = f"{moment(life.rebalance_at):%Y-%m-%dT%H:%M:%SZ}"
            put(folder / "rebalance.json", json.dumps({"noticeTime": since}))
        with suppress(FileNotFoundError):
            life.console = (folder / "disk" / "boot.log").read_text(errors="replace")
        if (folder / "disk" / "off").exists():
            self._aws.fleet.shut_down_from_inside(life.id)

    def _credentials(self, vm_id: str) -> dict[str, str]:
        """What the profile of this VM gives it."""
        given: Any = self._aws.assume_role(ROLE, session=vm_id)
        return {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "LastUpdated": "2026-01-01T00:00:00Z",
            "AccessKeyId": given["AccessKeyId"],
            "SecretAccessKey": given["SecretAccessKey"],
            "Token": given["SessionToken"],
            "Expiration": given["Expiration"].strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
