"""Runs the VMs of the fake (`fakes.vm_hosts`): a spot VM that is evicted has the event in its
metadata service, and what its guest does reaches the fake: an acknowledgement, upon which the
eviction goes on at once. A shutdown does not: Azure keeps such a VM, and bills it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fakes.azure.group import Life
from fakes.azure.server import Emulator
from fakes.vm_hosts import VmHosts, put


class Hosts(VmHosts):
    program = Path(__file__).with_name("vm.py")

    def __init__(
        self,
        azure: Emulator,
        folder: Path,
        *,
        reach: Sequence[tuple[str, int]],
        marks: Mapping[str, str],
    ) -> None:
        super().__init__(folder, reach=reach, marks=marks)
        self._azure = azure

    def lives(self) -> Iterable[Life]:
        self._azure.group.settle()
        return self._azure.group.ever()

    def name(self, life: Life) -> str:
        return life.name

    def runs(self, life: Life) -> bool | None:
        now = self._azure.clock()
        if life.gone_at is not None and now >= life.gone_at:
            return None
        state = life.state(now)
        return None if state == "Deleting" else state == "Succeeded"

    def described(self, life: Life) -> tuple[bytes, dict[str, Any]]:
        properties = life.body["properties"]
        told = {
            "id": f"id-of-{life.name}",
            "name": life.name,
            "region": life.body["location"],
            "zone": (life.body.get("zones") or [""])[0],
            "type": properties["hardwareProfile"]["vmSize"],
            "spot": life.spot,
        }
        return base64.b64decode(properties["osProfile"]["customData"]), told

    def look(self, life: Life, folder: Path) -> None:
        if life.noticed_at is not None and life.noticed_at <= self._azure.clock():
            put(folder / "notice.json", json.dumps({"deadline": life.evicted_at}))
        with suppress(FileNotFoundError):
            life.console = (folder / "disk" / "boot.log").read_text(errors="replace")
        if (folder / "acknowledged").exists():
            self._azure.group.start_event(life.name)
