"""The lives of VMs: what EC2 does with them over time, which moto does at once or not at all.

Nothing runs in the background: `settle` brings every VM to what it is at the clock's moment, and is
called before each answer. The clock stands still until a test moves it (`Clock.advance`), or goes
with the machine's (`Clock(real=True)`, for end-to-end tests).

A VM: pending, running, and then shutting-down and terminated for one of three causes: the user
(TerminateInstances), the guest (its own shutdown), or an interruption of spot. An interruption is
seen in the status of the spot request from its notice on. It is listed for `forget_after_s` more
(EC2: about an hour), and then gone.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from fakes.aws.errors import AwsError, by_code

ACCOUNT = "123456789012"
_CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48}


class Clock:
    """Seconds since 1970; stands still unless it is `real`."""

    def __init__(self, *, real: bool = False) -> None:
        self.real = real
        self._base = time.time()
        self._ahead = 0.0

    def __call__(self) -> float:
        return (time.time() if self.real else self._base) + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds


@dataclass(kw_only=True)
class Life:
    """One VM. Moments are the clock's; None: it has not been, and is not planned."""

    instance: Any
    """moto's own object, which holds everything that the API shows."""
    region: str
    params: dict[str, Any]
    """Of the launch, as they were sent."""
    launched_at: float
    runs_at: float
    seen_from: float
    """Before, it is in no listing, and its id is unknown: eventual consistency."""
    request: SpotRequest | None = None
    rebalance_at: float | None = None
    noticed_at: float | None = None
    interrupted_at: float | None = None
    """When the interruption begins to end it."""
    ending_at: float | None = None
    """It is shutting down from here on."""
    ended_at: float | None = None
    by: str = ""
    """Who ends it: user, guest or spot; or the state reason of one that never ran."""
    doomed: str | None = None
    console: str = ""

    @property
    def id(self) -> str:
        return str(self.instance.id)

    @property
    def state(self) -> str:
        return str(self.instance._state.name)

    @property
    def tags(self) -> dict[str, str]:
        return {tag["key"]: tag["value"] for tag in self.instance.get_tags()}


@dataclass(kw_only=True)
class SpotRequest:
    """A request for a spot VM, as DescribeSpotInstanceRequests shows it."""

    id: str
    created_at: float
    options: dict[str, Any]
    tags: dict[str, str]
    state: str = "active"
    status: str = "fulfilled"
    updated_at: float

    def becomes(self, status: str, at: float, *, state: str | None = None) -> None:
        self.status, self.updated_at = status, at
        self.state = state or self.state


@dataclass
class Fleet:
    """All VMs of the account, in all regions. The times are settings of a test."""

    clock: Clock
    boot_s: float = 0.0
    hidden_s: float = 0.0
    """How long a new VM is missing from listings, and its id unknown."""
    shutdown_s: float = 0.0
    forget_after_s: float = 3600.0
    """How long an ended VM stays listed."""
    vanish: bool = False
    """What was interrupted is not listed any more from its end on."""
    doomed: deque[str] = field(default_factory=deque)
    """State reasons, such as Server.InsufficientInstanceCapacity: the next launches are accepted,
    and end with these where their VMs would begin to run."""
    prices: dict[tuple[str, str], float] = field(default_factory=dict)
    """USD an hour by type and zone; others have `price`."""
    price: float = 0.1
    lock: Any = field(default_factory=threading.RLock)
    _lives: dict[str, Life] = field(default_factory=dict)
    _tokens: dict[tuple[str, str], tuple[dict[str, Any], Any]] = field(default_factory=dict)

    # --- what tests ask and do ----------------------------------------------------------------

    def lives(self) -> list[Life]:
        """Every VM ever launched, the oldest first."""
        with self.lock:
            self.settle()
            return list(self._lives.values())

    def living(self) -> list[Life]:
        """Those that are not terminated."""
        return [life for life in self.lives() if life.ended_at is None]

    def life(self, vm_id: str) -> Life:
        return self._lives[vm_id]

    def price_of(self, vm_type: str, zone: str) -> float:
        return self.prices.get((vm_type, zone), self.price)

    def interrupt(
        self, vm_id: str, *, after_s: float = 120.0, status: str = "instance-terminated-no-capacity"
    ) -> None:
        """AWS takes a spot VM back in so many seconds; the notice is out now, or 120 s before."""
        with self.lock:
            self.settle()
            life, now = self._lives[vm_id], self.clock()
            assert life.request is not None, f"{vm_id} is on demand"
            life.rebalance_at = now
            life.interrupted_at = now + after_s
            life.noticed_at = max(now, life.interrupted_at - 120)
            life.request.options["interrupted"] = status
            self.settle()

    def recommend_rebalance(self, vm_id: str) -> None:
        """AWS says that this VM is likelier than others to be taken."""
        self._lives[vm_id].rebalance_at = self.clock()

    def shut_down_from_inside(self, vm_id: str) -> None:
        """The guest powers itself off; EC2 ends the VM if it was launched so."""
        with self.lock:
            life = self._lives[vm_id]
            assert life.instance.instance_initiated_shutdown_behavior == "terminate"
            self._begin_end(life, self.clock(), by="guest")
            self.settle()

    # --- what EC2 does ------------------------------------------------------------------------

    def repeated(self, region: str, token: str, params: dict[str, Any]) -> Any:
        """What the launch with this token answered; None if it is the first one. Raises AwsError
        (IdempotentParameterMismatch) when it asked for something else."""
        known = self._tokens.get((region, token))
        if known is None:
            return None
        if known[0] != params:
            raise by_code("IdempotentParameterMismatch")
        if all(vm.id in self._lives and self._lives[vm.id].ended_at for vm in known[1].instances):
            raise AwsError(
                "IdempotentInstanceTerminated",
                "The request to launch an instance uses the same client token as a previous request"
                " for which the instance has been terminated.",
            )
        return known[1]

    def launched(self, reservation: Any, region: str, params: dict[str, Any]) -> None:
        """moto has made these VMs: their lives begin."""
        now = self.clock()
        if token := params.get("ClientToken"):
            self._tokens[region, token] = dict(params), reservation
        for instance in reservation.instances:
            life = Life(
                instance=instance,
                region=region,
                params=dict(params),
                launched_at=now,
                runs_at=now + self.boot_s,
                seen_from=now + self.hidden_s,
                doomed=self.doomed.popleft() if self.doomed else None,
            )
            instance.launch_time = moment(now)
            for nic in instance.nics.values():  # moto leaves it behind, unlike EC2
                nic.delete_on_termination = True
            instance.spot_instance_request_id = None
            options = params.get("InstanceMarketOptions", {})
            if options.get("MarketType") == "spot":
                life.request = _request(options, params, now)
                instance.spot_instance_request_id = life.request.id
            _set_state(life, "pending")
            self._lives[life.id] = life

    def terminate(self, vm_id: str) -> tuple[str, str]:
        """The state before and after."""
        life = self._lives[vm_id]
        before = life.state
        if life.ending_at is None:
            self._begin_end(life, self.clock(), by="user")
        return before, "terminated" if before == "terminated" else "shutting-down"

    def visible(self, life: Life) -> bool:
        """Whether the API knows it at this moment."""
        now = self.clock()
        if now < life.seen_from:
            return False
        if life.ended_at is None:
            return True
        return not (self.vanish and life.by == "spot") and now < life.ended_at + self.forget_after_s

    def seen(self, region: str) -> dict[str, Life]:
        """All that the API knows in this region, by id."""
        return {
            life.id: life
            for life in self._lives.values()
            if life.region == region and self.visible(life)
        }

    def requests(self, region: str) -> list[tuple[SpotRequest, Life]]:
        return [
            (life.request, life)
            for life in self._lives.values()
            if life.region == region and life.request is not None
        ]

    def settle(self) -> None:
        """Bring every VM to what it is now."""
        with self.lock:
            now = self.clock()
            for life in self._lives.values():
                if life.ended_at is None:
                    self._settle(life, now)

    def _settle(self, life: Life, now: float) -> None:
        if life.noticed_at is not None and now >= life.noticed_at and life.ending_at is None:
            assert life.request is not None
            if life.request.status == "fulfilled":
                life.request.becomes(life.request.options["interrupted"], life.noticed_at)
        if life.interrupted_at is not None and now >= life.interrupted_at:
            self._begin_end(life, life.interrupted_at, by="spot")
        if life.doomed is not None and now >= life.runs_at:
            self._begin_end(life, life.runs_at, by=life.doomed)
        if life.ending_at is not None:
            if now >= life.ending_at + self.shutdown_s:
                self._end(life, life.ending_at + self.shutdown_s)
        elif now >= life.runs_at and life.state == "pending":
            _set_state(life, "running")

    def _begin_end(self, life: Life, at: float, *, by: str) -> None:
        if life.ending_at is not None:
            return
        life.ending_at, life.by = at, by
        _set_state(life, "shutting-down")
        _set_reason(life)
        if life.request is not None:
            by_user = by in ("user", "guest")
            status = "instance-terminated-by-user" if by_user else life.request.status
            life.request.becomes(status, at, state="closed")

    def _end(self, life: Life, at: float) -> None:
        life.instance.terminate()  # volumes, addresses and the profile go too
        life.ended_at = at
        _set_state(life, "terminated")
        _set_reason(life)


def moment(at: float) -> datetime:
    """As moto keeps times: naive, UTC."""
    return datetime.fromtimestamp(at, timezone.utc).replace(tzinfo=None)


def _set_state(life: Life, name: str) -> None:
    life.instance._state.name, life.instance._state.code = name, _CODES[name]


_REASONS = {
    "user": ("User initiated", "Client.UserInitiatedShutdown", "User initiated shutdown"),
    "guest": ("", "Client.InstanceInitiatedShutdown", "Instance initiated shutdown"),
    "spot": ("Service initiated", "Server.SpotInstanceTermination", "Spot instance termination"),
}


def _set_reason(life: Life) -> None:
    word, code, message = _REASONS.get(life.by, ("", life.by, "Refused after it was accepted"))
    assert life.ending_at is not None
    when = f"({moment(life.ending_at):%Y-%m-%d %H:%M:%S} GMT)"
    life.instance._reason = f"{word} {when}" if word else ""
    life.instance.state_reason.code = code
    life.instance.state_reason.message = f"{code}: {message}"


def _request(options: dict[str, Any], params: dict[str, Any], now: float) -> SpotRequest:
    tags = {
        tag["Key"]: tag["Value"]
        for spec in params.get("TagSpecifications", [])
        if spec.get("ResourceType") == "spot-instances-request"
        for tag in spec.get("Tags", [])
    }
    return SpotRequest(
        id=f"sir-{secrets.token_hex(4)}",
        created_at=now,
        updated_at=now,
        options=dict(options.get("SpotOptions", {})),
        tags=tags,
    )
