"""One resource group: its VMs over time, and what was made with them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

SUBSCRIPTION = "00000000-0000-4000-8000-000000000001"
GROUP = "spothop"
GROUP_ID = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}"
LOCATIONS = {"eastus": ("1", "2", "3"), "westeurope": ("1", "2", "3"), "westus": ()}
"""Regions and their zones."""
_VMS = "Microsoft.Compute/virtualMachines"
DELETED, SIMULATED = f"{_VMS}/delete", f"{_VMS}/simulateEviction/action"
EVICTED = f"{_VMS}/evictSpotVM/action"
"""Operations of the activity log. Azure's documentation does not name the last one; logs that
users have shown do."""


class Clock:
    """Seconds since 1970: of tests, until `real`."""

    def __init__(self) -> None:
        self.real = False
        self._now = 1_700_000_000.0

    def __call__(self) -> float:
        return time.time() if self.real else self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


def moment(at: float) -> str:
    """As Azure writes it: with seven digits of a second."""
    found = datetime.fromtimestamp(at, timezone.utc)
    return f"{found:%Y-%m-%dT%H:%M:%S}.{found.microsecond:06d}0+00:00"


def vm_body(name: str, *, location: str = "westus", **tags: str) -> dict[str, Any]:
    """Of a VM that somebody made by hand."""
    return {
        "location": location,
        "tags": tags,
        "properties": {
            "hardwareProfile": {"vmSize": "Standard_D2s_v5"},
            "storageProfile": {"osDisk": {"name": name, "deleteOption": "Delete"}},
            "osProfile": {"computerName": name},
            "networkProfile": {"networkInterfaceConfigurations": []},
        },
    }


@dataclass(kw_only=True)
class Life:
    """One VM."""

    name: str
    body: dict[str, Any]
    made_at: float
    up_at: float
    """When its creation is over, well or not."""
    seen_at: float
    """From then on listings have it."""
    doomed: str = ""
    """The code with which its creation fails."""
    deleted_at: float | None = None
    """When the deletion began."""
    gone_at: float | None = None
    noticed_at: float | None = None
    evicted_at: float | None = None
    """When an eviction deletes it."""
    simulated: bool = False
    """Somebody asked for the eviction: then the log has that request, and nothing else of it."""
    console: str = ""
    """What its serial port wrote."""

    @property
    def spot(self) -> bool:
        return bool(self.body["properties"].get("priority") == "Spot")

    def state(self, now: float) -> str:
        if self.deleted_at is not None and now >= self.deleted_at:
            return "Deleting"
        if now < self.up_at:
            return "Creating"
        return "Failed" if self.doomed else "Succeeded"

    def runs(self, now: float) -> bool:
        return self.state(now) == "Succeeded"


@dataclass
class Group:
    """Times are seconds of the clock. Thread-safe where it is called from outside."""

    clock: Clock
    boot_s: float = 20.0
    delete_s: float = 30.0
    notice_s: float = 30.0
    """From the notice of an eviction to the deletion."""
    before_notice_s: float = 2.0
    """From the request of an eviction to its notice."""
    hidden_s: float = 0.0
    log_lag_s: float = 0.0
    """The activity log shows an event so much later."""
    doomed: list[str] = field(default_factory=list)
    """Codes with which the next creations fail after they were accepted."""
    lives: dict[str, Life] = field(default_factory=dict)
    past: list[Life] = field(default_factory=list)
    resources: dict[str, dict[str, dict[str, Any]]] = field(
        default_factory=lambda: {"disks": {}, "networkInterfaces": {}, "publicIPAddresses": {}}
    )
    log: list[tuple[float, str, str]] = field(default_factory=list)
    """Moment, operation, name of the VM."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def settle(self) -> None:
        """What time has done meanwhile."""
        now = self.clock()
        with self.lock:
            for life in [*self.lives.values()]:
                evicted = life.evicted_at
                if evicted is not None and now >= evicted and life.deleted_at is None:
                    if not life.simulated:
                        self.log.append((evicted, EVICTED, life.name))
                    self._delete(life, evicted, 0.0)
                if life.gone_at is not None and now >= life.gone_at:
                    self._bury(life)

    def ever(self) -> list[Life]:
        """Every VM that was made, the oldest first."""
        with self.lock:
            return sorted([*self.past, *self.lives.values()], key=lambda life: life.made_at)

    def make(self, name: str, body: dict[str, Any]) -> Life:
        now = self.clock()
        with self.lock:
            life = Life(
                name=name,
                body=body,
                made_at=now,
                up_at=now + self.boot_s,
                seen_at=now + self.hidden_s,
                doomed=self.doomed.pop(0) if self.doomed else "",
            )
            self.lives[name] = life
            location, owner = body["location"], f"{GROUP_ID}/virtualMachines/{name}"
            disk = body["properties"]["storageProfile"]["osDisk"]
            # An implicit disk gets the VM's tags.
            self._add("disks", disk["name"], location, body.get("tags"), {"diskSizeGB": 100}, owner)
            for card in body["properties"]["networkProfile"]["networkInterfaceConfigurations"]:
                used = {"virtualMachine": {"id": owner}}
                self._add("networkInterfaces", card["name"], location, card.get("tags"), used)
                for config in card["properties"]["ipConfigurations"]:
                    if ip := config["properties"].get("publicIPAddressConfiguration"):
                        tags, used = ip.get("tags"), {"ipConfiguration": {"id": owner}}
                        self._add("publicIPAddresses", ip["name"], location, tags, used)
            return life

    def _add(
        self,
        kind: str,
        name: str,
        location: str,
        tags: dict[str, str] | None,
        properties: dict[str, Any],
        managed_by: str | None = None,
    ) -> None:
        row = {"name": name, "location": location, "tags": dict(tags or {})}
        row |= {"properties": properties, **({"managedBy": managed_by} if managed_by else {})}
        self.resources[kind][name] = row

    def delete(self, name: str) -> None:
        """By request."""
        with self.lock:
            life = self.lives[name]
            if life.deleted_at is None:
                self.log.append((self.clock(), DELETED, name))
                self._delete(life, self.clock(), self.delete_s)

    def _delete(self, life: Life, at: float, takes_s: float) -> None:
        life.deleted_at, life.gone_at = at, at + takes_s

    def _bury(self, life: Life) -> None:
        """What was made with it goes along where it was told so, and stays elsewhere."""
        self.past.append(self.lives.pop(life.name))
        properties = life.body["properties"]
        self._drop("disks", properties["storageProfile"]["osDisk"])
        for card in properties["networkProfile"]["networkInterfaceConfigurations"]:
            self._drop("networkInterfaces", card)
            for config in card["properties"]["ipConfigurations"]:
                if ip := config["properties"].get("publicIPAddressConfiguration"):
                    self._drop("publicIPAddresses", ip)

    def _drop(self, kind: str, made: dict[str, Any]) -> None:
        option = made.get("deleteOption") or made.get("properties", {}).get("deleteOption")
        if option == "Delete":
            self.resources[kind].pop(made["name"], None)
        elif row := self.resources[kind].get(made["name"]):
            row.pop("managedBy", None)
            row["properties"] = {}

    def evict(self, name: str, *, simulated: bool = False) -> None:
        with self.lock:
            life, now = self.lives[name], self.clock()
            if simulated:
                life.simulated = True
                self.log.append((now, SIMULATED, name))
            life.noticed_at = now + self.before_notice_s
            life.evicted_at = life.noticed_at + self.notice_s

    def start_event(self, name: str) -> None:
        """The guest has acknowledged: the eviction goes on at once."""
        with self.lock:
            if (life := self.lives.get(name)) and life.evicted_at is not None:
                life.evicted_at = min(life.evicted_at, self.clock() + 1.0)

    def left(self) -> list[str]:
        """All that the group holds."""
        self.settle()
        rows = [name for kind in self.resources.values() for name in kind]
        return [*self.lives, *rows]

    def view(self, life: Life, *, instance: bool = False) -> dict[str, Any]:
        now = self.clock()
        state = life.state(now)
        row = {key: value for key, value in life.body.items() if key != "properties"}
        properties = {**life.body["properties"], "provisioningState": state}
        properties["osProfile"] = {
            key: value for key, value in properties["osProfile"].items() if key != "customData"
        }
        properties["timeCreated"] = moment(life.made_at)
        properties["vmId"] = f"id-of-{life.name}"
        if instance:
            properties["instanceView"] = {"statuses": _statuses(life, state)}
        path = f"{GROUP_ID}/providers/Microsoft.Compute/virtualMachines/{life.name}"
        return {**row, "id": path, "name": life.name, "properties": properties, "etag": '"1"'}


def _statuses(life: Life, state: str) -> list[dict[str, str]]:
    if state == "Failed":
        return [
            {
                "code": f"ProvisioningState/failed/{life.doomed}",
                "level": "Error",
                "displayStatus": "Provisioning failed",
                "message": f"Allocation failed: {life.doomed}.",
            }
        ]
    found = [{"code": f"ProvisioningState/{state.lower()}", "level": "Info"}]
    if state == "Succeeded":
        found.append({"code": "PowerState/running", "level": "Info"})
    return found
