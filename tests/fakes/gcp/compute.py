"""One project of Compute Engine: VMs and operations over time, behind the API's methods.

Nothing runs in the background: `settle` brings everything to what it is at the clock's moment, and
is called before each answer. A VM: PROVISIONING while its insert is under way, RUNNING when that is
done, STOPPING, and gone; a guest that shuts down leaves one that is TERMINATED, which is there
until it is deleted. Operations stay for ever, unless a test makes the project forget them.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx

from fakes.aws.fleet import Clock
from fakes.gcp import project, rules, schema
from fakes.gcp.answers import PROJECT, ROOT, error, matching, not_found, scoped, time
from fakes.gcp.schema import Refused

ACCOUNT = f"spothop-vm@{PROJECT}.iam.gserviceaccount.com"


class Cut(Exception):
    """The connection ends in place of an answer."""


@dataclass(kw_only=True)
class Fault:
    """One thing that goes wrong; the first that matches strikes, and counts down."""

    action: str = "*"
    """Such as instances.insert: a pattern of fnmatch."""
    zone: str | None = None
    times: int = 1
    skip: int = 0
    after: bool = False
    """The call is done, and then the answer is the one below."""
    status: int = 0
    """0: the connection is cut in place of an answer."""
    reason: str = ""
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    stall: threading.Event | None = None
    """No answer before this is set."""


@dataclass(frozen=True, kw_only=True)
class Call:
    action: str
    params: Mapping[str, str]
    query: Mapping[str, str]
    body: Any


@dataclass(kw_only=True)
class Operation:
    kind: str
    zone: str
    target: str
    began_at: float
    ends_at: float
    client_id: str = ""
    user: str = "master@example"
    code: str = ""
    """What it fails with at its end."""
    message: str = ""
    number: int
    forgotten: bool = False


@dataclass(kw_only=True)
class Life:
    """One VM. Moments are the clock's; None: it has not been, and is not planned."""

    name: str
    zone: str
    body: dict[str, Any]
    number: int
    created_at: float
    insert: Operation
    seen_from: float
    noticed_at: float | None = None
    preempted_at: float | None = None
    stopped_at: float | None = None
    """Its guest has shut down."""
    ending: Operation | None = None
    ended_at: float | None = None
    console: str = ""

    @property
    def id(self) -> str:
        return f"{self.zone}/{self.name}"

    @property
    def spot(self) -> bool:
        return self.body["scheduling"].get("provisioningModel") == "SPOT"

    @property
    def notice_s(self) -> float:
        asked = self.body["scheduling"].get("preemptionNoticeDuration", {"seconds": "0"})
        return float(asked["seconds"])

    def state(self, now: float) -> str:
        if self.ended_at is not None:
            return "GONE"
        if self.ending is not None:
            return "STOPPING"
        if self.stopped_at is not None:
            return "TERMINATED"
        return "RUNNING" if now >= self.insert.ends_at else "PROVISIONING"


class Gce:
    """Thread-safe. The times are settings of a test."""

    def __init__(self, *, real: bool = False) -> None:
        self.clock = Clock(real=real)
        self.insert_s = self.delete_s = self.hidden_s = 0.0
        """How long an insert and a delete take, and how long a new VM is missing from lists."""
        self.doomed: deque[tuple[str, str]] = deque()
        """Code and message: the next inserts are accepted, and fail with these."""
        self.gives_notice = True
        """Whether this project may have `preemptionNoticeDuration`."""
        self.silent: set[str] = set()
        """Zones that do not answer lists: one that does not ask for a part fails as a whole."""
        self.takes_partial = True
        """Whether lists may be asked for a part (`schema.PARTIAL`)."""
        self.forgets = False
        """It has no operations to tell of."""
        self.granted: frozenset[str] | None = None
        """Permissions of who calls; None: all."""
        self.accounts = frozenset({ACCOUNT})
        self.loose_disks: list[dict[str, Any]] = []
        self.bucket: dict[str, Any] | None = None
        self.regional: dict[str, float] = {"PREEMPTIBLE_CPUS": 64, "CPUS": 64}
        self.gpus_in_all_regions = 8.0
        self.tokens: set[str] = {"token-0"}
        """What opens the API."""
        self.calls: list[Call] = []
        self._faults: list[Fault] = []
        self._lives: list[Life] = []
        self._operations: list[Operation] = []
        self._requests: dict[str, Operation] = {}
        self._lock = threading.RLock()

    # --- what tests ask and do ------------------------------------------------------------------

    def lives(self) -> list[Life]:
        """Every VM ever made, the oldest first."""
        with self._lock:
            self.settle()
            return list(self._lives)

    def living(self) -> list[Life]:
        return [life for life in self.lives() if life.ended_at is None]

    def life(self, vm_id: str) -> Life:
        return next(life for life in self._lives if life.id == vm_id)

    def state(self, vm_id: str) -> str:
        with self._lock:
            self.settle()
            return self.life(vm_id).state(self.clock())

    def preempt(self, vm_id: str) -> None:
        """Compute Engine takes a spot VM back, with the notice that it was launched with."""
        with self._lock:
            life = self.life(vm_id)
            assert life.spot, f"{vm_id} is on demand"
            life.noticed_at = self.clock()
            life.preempted_at = life.noticed_at + life.notice_s

    def shut_down_from_inside(self, vm_id: str) -> None:
        with self._lock:
            life = self.life(vm_id)
            if life.stopped_at is None and life.ending is None:
                life.stopped_at = self.clock()
                self.operation("compute.instances.guestTerminate", life.zone, life.name)

    def add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def fail(
        self, action: str, status: int, reason: str, *, times: int = 1, message: str = "by script"
    ) -> Fault:
        return self.add(
            Fault(action=action, status=status, reason=reason, times=times, message=message)
        )

    def cut(self, action: str, *, after: bool = False) -> Fault:
        """Cut the connection in place of an answer; with `after` once the call is done."""
        return self.add(Fault(action=action, after=after))

    def heal(self) -> None:
        self._faults.clear()

    def count(self, action: str = "*") -> int:
        return sum(fnmatchcase(call.action, action) for call in self.calls)

    def transport(self) -> httpx.MockTransport:
        """For a client in this process."""

        def handle(request: httpx.Request) -> httpx.Response:
            try:
                status, body, headers = self.answer(
                    request.method,
                    f"{request.url.path}?{request.url.query.decode()}",
                    request.headers,
                    request.content,
                )
            except Cut:
                raise httpx.ReadError("cut by script") from None
            date = formatdate(self.clock(), usegmt=True)
            return httpx.Response(status, json=body, headers={"date": date, **headers})

        return httpx.MockTransport(handle)

    # --- the API --------------------------------------------------------------------------------

    def answer(
        self, method: str, target: str, headers: Mapping[str, str], content: bytes
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Status, body and headers of an answer. Raises Cut."""
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        try:
            self._let_in(headers)
            call = self._read(method, parts.path, query, content)
            fault = self._strike(call)
            if fault is not None and fault.stall is not None:
                fault.stall.wait()
            if fault is not None and not fault.after and fault.stall is None:
                return self._instead(fault)
            with self._lock:
                self.settle()
                body = self._do(call)
            if "fields" in call.query:
                body = schema.masked(body, call.query["fields"])
            return self._instead(fault) if fault is not None and fault.after else (200, body, {})
        except Refused as refused:
            return refused.status, error(refused.status, refused.reason, str(refused)), {}

    def _let_in(self, headers: Mapping[str, str]) -> None:
        if headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
            text = "Request had invalid authentication credentials."
            raise Refused(text, status=401, reason="authError")

    def _read(self, method: str, path: str, query: dict[str, str], content: bytes) -> Call:
        body = json.loads(content) if content else None
        for prefix, action in project.ELSEWHERE.items():
            if path.startswith(prefix):
                call = Call(action=action, params={"path": path}, query=query, body=body)
                break
        else:
            name, params = schema.route(method, path.removeprefix("/compute/v1/"))
            schema.check_query(name, query)
            schema.check_body(name, body)
            call = Call(action=name, params=params, query=query, body=body)
        self.calls.append(call)
        return call

    def _strike(self, call: Call) -> Fault | None:
        with self._lock:
            for fault in self._faults:
                if fault.times <= 0 or not fnmatchcase(call.action, fault.action):
                    continue
                if fault.zone not in (None, call.params.get("zone")):
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault
        return None

    def _instead(self, fault: Fault) -> tuple[int, Any, Mapping[str, str]]:
        if not fault.status:
            raise Cut
        return fault.status, error(fault.status, fault.reason, fault.message), fault.headers

    def _do(self, call: Call) -> Any:
        if call.params.get("project") not in (None, PROJECT) and "images" not in call.action:
            raise not_found(f"projects/{call.params['project']}")
        for permission in project.NEEDED.get(call.action, ()):
            if self.granted is not None and permission not in self.granted:
                text = f"Required '{permission}' permission for 'projects/{PROJECT}'"
                raise Refused(text, status=403, reason="forbidden")
        partial = call.query.get(schema.PARTIAL)
        if partial is not None and not self.takes_partial:
            raise Refused(f'Unknown name "{schema.PARTIAL}": Cannot bind query parameter.')
        if call.action.endswith(".aggregatedList") and self.silent and partial != "true":
            text = "Internal error. Please try again or contact Google Support."
            raise Refused(text, status=503, reason="backendError")
        zone = call.params.get("zone")
        if zone is not None and not any(zone in zones for zones in rules.ZONES.values()):
            raise Refused(f"Invalid value for field 'zone': '{zone}'. Unknown zone.")
        if call.action in _ACTIONS:
            found = _ACTIONS[call.action](self, call)
        else:
            found = project.ANSWERS[call.action](self, call)
        return self._without_silent(found) if call.action.endswith(".aggregatedList") else found

    def _without_silent(self, found: dict[str, Any]) -> dict[str, Any]:
        for zone in self.silent:
            found["items"][f"zones/{zone}"] = {"warning": {"code": "UNREACHABLE"}}
        if self.silent:
            found["unreachables"] = [f"projects/{PROJECT}/zones/{z}" for z in sorted(self.silent)]
        return found

    # --- VMs ------------------------------------------------------------------------------------

    def insert(self, call: Call) -> Any:
        zone, body, client_id = call.params["zone"], call.body, call.query.get("requestId")
        rules.request_id(client_id)
        if client_id in self._requests:
            return self.told(self._requests[client_id])
        if any(life.name == body["name"] and life.zone == zone for life in self.there()):
            text = f"The resource '{ROOT}/zones/{zone}/instances/{body['name']}' already exists"
            raise Refused(text, status=409, reason="alreadyExists")
        rules.insert(body, zone, notice=self.gives_notice, accounts=self.accounts)
        code, message = self.doomed.popleft() if self.doomed else ("", "")
        made = self.operation("insert", zone, body["name"], takes_s=self.insert_s)
        made.client_id, made.code, made.message = client_id or "", code, message
        if client_id:
            self._requests[client_id] = made
        now = self.clock()
        self._lives.append(
            Life(
                name=body["name"],
                zone=zone,
                body=body,
                number=made.number,
                created_at=now,
                insert=made,
                seen_from=now + self.hidden_s,
            )
        )
        self.settle()
        return self.told(made)

    def get(self, call: Call) -> Any:
        return self._shown(self._find(call))

    def delete(self, call: Call) -> Any:
        life = self._find(call)
        if life.ending is None:
            life.ending = self.operation("delete", life.zone, life.name, takes_s=self.delete_s)
        return self.told(life.ending)

    def simulate(self, call: Call) -> Any:
        life = self._find(call)
        if life.spot:
            self.preempt(life.id)
        return self.told(self.operation("simulateMaintenanceEvent", life.zone, life.name))

    def serial(self, call: Call) -> Any:
        return {"contents": self._find(call).console, "kind": "compute#serialPortOutput"}

    def instances(self, call: Call) -> Any:
        matches, now = matching(call.query.get("filter")), self.clock()
        shown = ((life.zone, self._shown(life)) for life in self.there() if now >= life.seen_from)
        return scoped("instances", ((z, row) for z, row in shown if matches(row)))

    def operations(self, call: Call) -> Any:
        matches = matching(call.query.get("filter"))
        rows = ((each.zone, self.told(each)) for each in self._operations if not self.forgets)
        return scoped("operations", ((zone, row) for zone, row in rows if matches(row)))

    def there(self) -> list[Life]:
        return [life for life in self._lives if life.ended_at is None]

    def _find(self, call: Call) -> Life:
        zone, name = call.params["zone"], call.params["instance"]
        for life in self.there():
            if (life.zone, life.name) == (zone, name):
                return life
        raise not_found(f"projects/{PROJECT}/zones/{zone}/instances/{name}")

    def _shown(self, life: Life) -> dict[str, Any]:
        now, place = self.clock(), f"{ROOT}/zones/{life.zone}"
        shown = {
            **life.body,
            "id": str(life.number),
            "kind": "compute#instance",
            "zone": place,
            "selfLink": f"{place}/instances/{life.name}",
            "machineType": f"{ROOT}/{life.body['machineType']}",
            "creationTimestamp": time(life.created_at),
            "status": life.state(now),
        }
        if now >= life.insert.ends_at:
            shown["lastStartTimestamp"] = time(life.insert.ends_at)
        return shown

    def operation(self, kind: str, zone: str, name: str, *, takes_s: float = 0.0) -> Operation:
        now = self.clock()
        made = Operation(
            kind=kind,
            zone=zone,
            target=f"{ROOT}/zones/{zone}/instances/{name}",
            began_at=now,
            ends_at=now + takes_s,
            number=secrets.randbits(60),
        )
        self._operations.append(made)
        return made

    def told(self, operation: Operation) -> dict[str, Any]:
        done = self.clock() >= operation.ends_at
        place = f"{ROOT}/zones/{operation.zone}"
        told = {
            "kind": "compute#operation",
            "id": str(operation.number),
            "name": f"operation-{operation.number}",
            "zone": place,
            "operationType": operation.kind,
            "targetLink": operation.target,
            "status": "DONE" if done else "RUNNING",
            "user": operation.user,
            "progress": 100 if done else 0,
            "insertTime": time(operation.began_at),
            "startTime": time(operation.began_at),
        }
        if operation.client_id:
            told["clientOperationId"] = operation.client_id
        if operation.kind.startswith("compute.instances."):
            told["user"], told["statusMessage"] = "system", "Instance was taken."
        if done:
            told["endTime"] = time(operation.ends_at)
        if done and operation.code:
            cause = {"code": operation.code, "message": operation.message or operation.code}
            told |= {"error": {"errors": [cause]}, "httpErrorStatusCode": 503}
        return told

    def settle(self) -> None:
        """Bring every VM to what it is now."""
        now = self.clock()
        for life in self.there():
            if life.insert.code and now >= life.insert.ends_at:
                life.ended_at = life.insert.ends_at
            elif life.preempted_at is not None and life.ending is None and now >= life.preempted_at:
                life.ending = self.operation(
                    "compute.instances.preempted", life.zone, life.name, takes_s=self.delete_s
                )
            if life.ended_at is None and life.ending is not None and now >= life.ending.ends_at:
                life.ended_at = life.ending.ends_at


class Key:
    """The login of a driver in this process (`calls.Login`)."""

    def __init__(self, gce: Gce) -> None:
        self._gce = gce

    def headers(self) -> Mapping[str, str]:
        return {"authorization": f"Bearer {min(self._gce.tokens, default='expired')}"}

    def renew(self) -> None: ...

    def who(self) -> str:
        return f"spothop-master@{PROJECT}.iam.gserviceaccount.com"


_ACTIONS: Mapping[str, Callable[[Gce, Call], Any]] = {
    "globalOperations.aggregatedList": Gce.operations,
    "instances.aggregatedList": Gce.instances,
    "instances.delete": Gce.delete,
    "instances.get": Gce.get,
    "instances.getSerialPortOutput": Gce.serial,
    "instances.insert": Gce.insert,
    "instances.simulateMaintenanceEvent": Gce.simulate,
}
