"""The fake on a port of loopback: who may ask what, what goes wrong, and the answers."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import ThreadingHTTPServer
from types import TracebackType
from typing import Any

from fakes.azure import retail, schema
from fakes.azure.group import GROUP, GROUP_ID, LOCATIONS, SUBSCRIPTION, Clock, Group, moment
from fakes.azure.rights import actions, allows, linked
from fakes.azure.wire import Answer, Call, handler

NETWORK_ID = f"{GROUP_ID}/providers/Microsoft.Network/virtualNetworks"
IDENTITY = f"{GROUP_ID}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/spothop-vm"


def subnet(location: str) -> str:
    return f"{NETWORK_ID}/{location}/subnets/default"


@dataclass(kw_only=True)
class Fault:
    """One thing that goes wrong; the first that matches strikes, and counts down."""

    call: str = "*"
    """A pattern of fnmatch over the method and the kind: `PUT virtualMachines`."""
    status: int = 0
    """0: the connection is cut in place of an answer."""
    code: str = ""
    message: str = "by script"
    headers: Mapping[str, str] = field(default_factory=dict)
    after: bool = False
    """The call is done, and then the answer is the one above."""
    times: int = 1
    skip: int = 0
    """So many matching calls go well before."""


class Refusal(Exception):
    """An error answer."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers = dict(headers or {})


class Emulator:
    """One subscription with one resource group. `group`, `clock`, `skus`, `meters`, `quota` (vCPUs
    for spot), `faults` and `roles` are for tests to set; `calls` is everything that was asked."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler(self.answer))
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self.reset()

    def reset(self) -> None:
        """An empty resource group in which nothing goes wrong."""
        self.clock = Clock()
        self.group = Group(self.clock)
        self.faults: list[Fault] = []
        self.calls: list[Call] = []
        self.roles: dict[str, list[dict[str, Any]]] = {}
        """Token -> roles as in deploy/azure; without an entry it may do all or, if there are
        others, nothing."""
        self.skus: dict[str, dict[str, Any]] = {
            "Standard_D2s_v5": {"vcpus": 2},
            "Standard_NC4as_T4_v3": {"vcpus": 4},
        }
        """VM types; `not_in`: zones or locations that the subscription may not use."""
        self.meters = retail.meters({"Standard_D2s_v5": (0.02, 0.096)})
        self.images = {"22_04-lts-gen2", "2204"}
        """Those that there are, by their SKU."""
        self.quota = 100
        self.page = 50
        self.lock = threading.Lock()

    def __enter__(self) -> Emulator:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def config(self, **more: Any) -> dict[str, Any]:
        """What a master's file says to use it."""
        return {
            "subscription": SUBSCRIPTION,
            "resource_group": GROUP,
            "identity": IDENTITY,
            "regions": {"eastus": {"subnet": subnet("eastus")}},
            "endpoint_url": self.endpoint,
            "prices_url": self.endpoint,
            **more,
        }

    def fail(self, call: str, status: int, code: str, **more: Any) -> Fault:
        fault = Fault(call=call, status=status, code=code, **more)
        self.faults.append(fault)
        return fault

    def cut(self, call: str, *, after: bool = False) -> None:
        """What a time-out looks like to who called, without the waiting."""
        self.faults.append(Fault(call=call, after=after))

    def count(self, call: str) -> int:
        return sum(fnmatchcase(each.what, call) for each in self.calls)

    # --- answering ------------------------------------------------------------------------------

    def answer(self, call: Call) -> Answer | None:
        """None: cut the connection."""
        with self.lock:
            self.calls.append(call)
            fault = self._strike(call)
        try:
            if fault is not None and not fault.after:
                raise _refusal(fault)
            self.group.settle()
            found = self._do(call)
            if fault is not None:
                raise _refusal(fault)
        except _Cut:
            return None
        except Refusal as refusal:
            body = {"error": {"code": refusal.code, "message": refusal.message}}
            return refusal.status, body, refusal.headers
        return found

    def _strike(self, call: Call) -> Fault | None:
        for fault in self.faults:
            if fault.times <= 0 or not fnmatchcase(call.what, fault.call):
                continue
            if fault.skip > 0:
                fault.skip -= 1
                continue
            fault.times -= 1
            return fault
        return None

    def _do(self, call: Call) -> Answer:
        if call.kind == "prices":
            return 200, retail.answer(self.meters, call.query, self.endpoint, self.page), {}
        if call.kind == "consoles":
            if call.query.get("sig") != "secret" or "authorization" in call.headers:
                raise Refusal(403, "AuthenticationFailed", "the signature, and nothing else")
            return 200, self.group.lives[call.name].console.encode(), {}
        if "api-version" not in call.query and "$skiptoken" not in call.query:
            raise Refusal(400, "MissingApiVersionParameter", "The api-version query parameter")
        self._authorize(call)
        handler = getattr(self, f"_{call.method}_{call.kind}_{call.rest}".rstrip("_"), None)
        if handler is None:
            raise Refusal(404, "InvalidResourceType", f"the fake has no {call.what}")
        answer: Answer = handler(call)
        return answer

    def _authorize(self, call: Call) -> None:
        scheme, _, token = call.headers.get("authorization", "").partition(" ")
        if scheme != "Bearer" or not token:
            raise Refusal(401, "AuthenticationFailed", "Authentication failed.")
        if self.roles and token not in self.roles:
            raise Refusal(401, "InvalidAuthenticationToken", "The access token is invalid.")
        for action in actions(call):
            self.require(token, action)

    def require(self, token: str, action: str) -> None:
        if token in self.roles and not any(allows(role, action) for role in self.roles[token]):
            raise Refusal(
                403,
                "AuthorizationFailed",
                f"The client does not have authorization to perform action '{action}'.",
            )

    # --- VMs ------------------------------------------------------------------------------------

    def _PUT_virtualMachines(self, call: Call) -> Answer:
        if call.headers.get("if-none-match") != "*":
            raise Refusal(400, "InvalidParameter", "the fake wants If-None-Match: *")
        if call.name in self.group.lives:
            raise Refusal(412, "PreconditionFailed", "The condition in If-None-Match is not met.")
        body = json.loads(call.body)
        try:
            schema.check(body, "VirtualMachine")
        except schema.Wrong as wrong:
            raise Refusal(400, "InvalidRequestContent", str(wrong)) from wrong
        self._check(body)
        token = call.headers["authorization"].partition(" ")[2]
        for action in linked(body):
            self.require(token, action)
        life = self.group.make(call.name, body)
        operation = f"{self.endpoint}/subscriptions/{SUBSCRIPTION}/operations/{call.name}"
        headers = {"Azure-AsyncOperation": f"{operation}?api-version=1", "Retry-After": "10"}
        return 201, self.group.view(life), headers

    def _check(self, body: dict[str, Any]) -> None:
        properties, location = body["properties"], body["location"]
        if location not in LOCATIONS:
            raise Refusal(400, "LocationNotAvailableForResourceType", f"location {location}")
        zones = body.get("zones") or []
        if any(zone not in LOCATIONS[location] for zone in zones):
            raise Refusal(400, "InvalidAvailabilityZone", f"The zone(s) '{zones[0]}' in {location}")
        size = properties["hardwareProfile"]["vmSize"]
        if size not in self.skus:
            raise Refusal(400, "InvalidParameter", f"The value {size} of vmSize is invalid.")
        if {location, *zones} & set(self.skus[size].get("not_in", ())):
            raise Refusal(409, "SkuNotAvailable", f"{size} is not available in {location}.")
        self._check_spot(properties, size)
        system = properties["osProfile"]
        if len(base64.b64decode(system["customData"], validate=True)) > 65_535:
            raise Refusal(400, "InvalidParameter", "Custom data in OSProfile is too long.")
        keys = system["linuxConfiguration"]["ssh"]["publicKeys"]
        if "adminPassword" not in system and not keys:
            raise Refusal(400, "InvalidParameter", "Authentication using either SSH or password")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}", system["computerName"]):
            raise Refusal(400, "InvalidParameter", f"computerName {system['computerName']}")
        for card in properties["networkProfile"]["networkInterfaceConfigurations"]:
            for config in card["properties"]["ipConfigurations"]:
                wanted = config["properties"]["subnet"]["id"]
                if wanted not in map(subnet, LOCATIONS):
                    raise Refusal(400, "InvalidResourceReference", f"{wanted} was not found.")
        for identity in (body.get("identity") or {}).get("userAssignedIdentities", {}):
            if identity != IDENTITY:
                raise Refusal(400, "FailedIdentityOperation", f"{identity} was not found.")

    def _check_spot(self, properties: dict[str, Any], size: str) -> None:
        if properties.get("priority") != "Spot":
            if "evictionPolicy" in properties or "billingProfile" in properties:
                raise Refusal(409, "OperationNotAllowed", "Eviction policy can be set only on Spot")
            return
        used = sum(
            self.skus[life.body["properties"]["hardwareProfile"]["vmSize"]]["vcpus"]
            for life in self.group.lives.values()
            if life.spot
        )
        if used + self.skus[size]["vcpus"] > self.quota:
            raise Refusal(
                409,
                "OperationNotAllowed",
                "Operation could not be completed as it results in exceeding approved"
                f" LowPriorityCores quota. Current Limit: {self.quota}",
            )

    def _GET_virtualMachines(self, call: Call) -> Answer:
        if not call.name:
            now = self.group.clock()
            rows = [
                self.group.view(each) for each in self.group.lives.values() if now >= each.seen_at
            ]
            return 200, self._pages(call, rows), {}
        life = self.group.lives.get(call.name)
        if life is None:
            raise _not_found(call)
        return (
            200,
            self.group.view(life, instance="instanceView" in call.query.get("$expand", "")),
            {},
        )

    def _pages(self, call: Call, rows: list[Any]) -> dict[str, Any]:
        first = int(call.query.get("$skiptoken", 0))
        page: dict[str, Any] = {"value": rows[first : first + self.page]}
        if len(rows) > first + self.page:
            page["nextLink"] = f"{self.endpoint}{call.path}?$skiptoken={first + self.page}"
        return page

    def _DELETE_virtualMachines(self, call: Call) -> Answer:
        if call.name not in self.group.lives:
            return 204, None, {}
        self.group.delete(call.name)
        return 202, None, {"Location": f"{self.endpoint}/operations/1?api-version=1"}

    def _POST_virtualMachines_simulateEviction(self, call: Call) -> Answer:
        life = self.group.lives.get(call.name)
        if life is None:
            raise _not_found(call)
        if not life.spot or not life.runs(self.group.clock()):
            raise Refusal(409, "OperationNotAllowed", "Eviction is for Spot VMs that run.")
        self.group.evict(call.name, simulated=True)
        return 204, None, {}

    def _POST_virtualMachines_retrieveBootDiagnosticsData(self, call: Call) -> Answer:
        life = self.group.lives.get(call.name)
        if life is None:
            raise _not_found(call)
        if not life.body["properties"].get("diagnosticsProfile"):
            raise Refusal(409, "BootDiagnosticsNotEnabled", "Boot diagnostics is not enabled.")
        url = f"{self.endpoint}/consoles/{call.name}?sig=secret"
        return 200, {"serialConsoleLogBlobUri": url} if life.console else {}, {}

    # --- what is beside them --------------------------------------------------------------------

    def _GET_disks(self, call: Call) -> Answer:
        return 200, self._pages(call, [*self.group.resources[call.kind].values()]), {}

    def _DELETE_disks(self, call: Call) -> Answer:
        row = self.group.resources[call.kind].get(call.name)
        if row is None:
            return 204, None, {}
        if row.get("managedBy") or row["properties"].keys() & {"virtualMachine", "ipConfiguration"}:
            raise Refusal(409, "OperationNotAllowed", f"{call.name} is in use.")
        del self.group.resources[call.kind][call.name]
        return 202, None, {}

    _GET_networkInterfaces = _GET_publicIPAddresses = _GET_disks
    _DELETE_networkInterfaces = _DELETE_publicIPAddresses = _DELETE_disks

    def _GET_virtualNetworks(self, call: Call) -> Answer:
        if call.name not in LOCATIONS:
            raise _not_found(call)
        return 200, {"name": call.name, "location": call.name}, {}

    def _GET_userAssignedIdentities(self, call: Call) -> Answer:
        if not IDENTITY.endswith(f"/{call.name}"):
            raise _not_found(call)
        return 200, {"name": call.name, "properties": {"clientId": "c"}}, {}

    def _GET_permissions(self, call: Call) -> Answer:
        token = call.headers["authorization"].partition(" ")[2]
        roles = self.roles.get(token, [{"Actions": ["*"], "NotActions": []}])
        rows = [{"actions": role["Actions"], "notActions": role["NotActions"]} for role in roles]
        return 200, {"value": rows}, {}

    def _GET_usages(self, call: Call) -> Answer:
        row = {"name": {"value": "lowPriorityCores"}, "limit": self.quota, "currentValue": 0}
        return 200, {"value": [{**row, "unit": "Count"}]}, {}

    def _GET_versions(self, call: Call) -> Answer:
        """Of an image; a plain list."""
        sku = call.path.split("/")[-2]
        if sku not in self.images:
            raise Refusal(404, "NotFound", f"Artifact: VMImage was not found. {sku}")
        return 200, [{"name": "1.0.0", "location": "eastus"}], {}

    def _GET_skus(self, call: Call) -> Answer:
        found = re.fullmatch(r"location eq '(\w+)'", call.query.get("$filter", ""))
        location = found[1] if found else ""
        rows = [
            _sku(vm, location, facts) for vm, facts in self.skus.items() if location in LOCATIONS
        ]
        return 200, {"value": rows}, {}

    def _GET_values(self, call: Call) -> Answer:
        """The activity log."""
        if f"resourceGroupName eq '{GROUP}'" not in call.query.get("$filter", ""):
            raise Refusal(400, "BadRequest", "the fake wants a filter by resource group")
        if "eventTimestamp ge" not in call.query["$filter"]:
            raise Refusal(400, "BadRequest", "The filter must have a start time.")
        shown = self.group.clock() - self.group.log_lag_s
        path = f"{GROUP_ID}/providers/Microsoft.Compute/virtualMachines"
        rows = [
            {
                "operationName": {"value": operation, "localizedValue": operation},
                "status": {"value": "Succeeded", "localizedValue": "Succeeded"},
                "resourceId": f"{path}/{name}",
                "eventTimestamp": moment(at),
            }
            for at, operation, name in self.group.log
            if at <= shown
        ]
        return 200, self._pages(call, rows), {}


class _Cut(Exception):
    """Of the connection."""


def _refusal(fault: Fault) -> Exception:
    if not fault.status:
        return _Cut()
    return Refusal(fault.status, fault.code, fault.message, fault.headers)


def _not_found(call: Call) -> Refusal:
    return Refusal(404, "ResourceNotFound", f"The Resource '{call.kind}/{call.name}' was not found")


def _sku(vm: str, location: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    without = set(facts.get("not_in", ()))
    zones = [zone for zone in LOCATIONS[location] if zone in without]
    restrictions = []
    if location in without:
        info: dict[str, Any] = {"locations": [location]}
        restrictions.append({"type": "Location", "values": [location], "restrictionInfo": info})
    if zones:
        info = {"locations": [location], "zones": zones}
        restrictions.append({"type": "Zone", "values": [location], "restrictionInfo": info})
    return {
        "resourceType": "virtualMachines",
        "name": vm,
        "locations": [location],
        "locationInfo": [{"location": location, "zones": list(LOCATIONS[location])}],
        "capabilities": [
            {"name": "vCPUs", "value": str(facts["vcpus"])},
            {"name": "LowPriorityCapable", "value": str(facts.get("spot", True))},
        ],
        "restrictions": [
            {**each, "reasonCode": "NotAvailableForSubscription"} for each in restrictions
        ],
    }
