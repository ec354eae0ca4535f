"""Runs the VMs of the fake (`fakes.vm_hosts`): a spot VM that is taken has the notice in its
metadata server, and what its guest does reaches the fake: a shutdown, and the serial port."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fakes.gcp.compute import Gce, Life
from fakes.vm_hosts import VmHosts, put


class Hosts(VmHosts):
    program = Path(__file__).with_name("vm.py")

    def __init__(
        self,
        gce: Gce,
        folder: Path,
        *,
        token: str,
        reach: Sequence[tuple[str, int]],
        marks: Mapping[str, str],
    ) -> None:
        """`token` is what the metadata server gives for the VMs' service account."""
        super().__init__(folder, reach=reach, marks=marks)
        self._gce = gce
        self._token = token

    def lives(self) -> Iterable[Life]:
        return self._gce.lives()

    def name(self, life: Life) -> str:
        return life.name

    def runs(self, life: Life) -> bool | None:
        state = life.state(self._gce.clock())
        return None if state in ("STOPPING", "TERMINATED", "GONE") else state == "RUNNING"

    def described(self, life: Life) -> tuple[bytes, dict[str, Any]]:
        items = {item["key"]: item["value"] for item in life.body["metadata"]["items"]}
        account = life.body.get("serviceAccounts", [{}])[0]
        told = {
            "id": str(life.number),
            "name": life.name,
            "region": life.zone.rpartition("-")[0],
            "zone": life.zone,
            "type": life.body["machineType"].rpartition("/")[2],
            "spot": life.spot,
            "account": account.get("email", ""),
            "token": self._token if account.get("scopes") else "",
        }
        return items["startup-script"].encode(), told

    def look(self, life: Life, folder: Path) -> None:
        if life.noticed_at is not None:
            put(folder / "notice.json", json.dumps({"deadline": life.preempted_at}))
        with suppress(FileNotFoundError):
            life.console = (folder / "disk" / "boot.log").read_text(errors="replace")
        if (folder / "disk" / "off").exists():
            self._gce.shut_down_from_inside(life.id)
