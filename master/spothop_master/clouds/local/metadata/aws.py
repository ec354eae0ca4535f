"""AWS: the instance metadata service, version 2 only.

Source: EC2 user guide, "Use IMDSv2", "Instance metadata categories" and "Spot Instance interruption
notices". Not served: rebalance recommendations, whose answer is always 404 (none).
"""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime, timezone

from spothop_master.clouds.local.metadata import Machine, Request, Response, document, text

TOKEN = "/latest/api/token"
META = "/latest/meta-data/"
ACTION = META + "spot/instance-action"
TERMINATION_TIME = META + "spot/termination-time"
IDENTITY = "/latest/dynamic/instance-identity/document"

TTL_HEADER = "x-aws-ec2-metadata-token-ttl-seconds"
TOKEN_HEADER = "x-aws-ec2-metadata-token"
LONGEST_TTL_S = 21600


class Aws:
    """Session tokens live in this object, as they do in one instance's service."""

    def __init__(self, *, seed: str) -> None:
        self._seed = seed
        self._ends: dict[str, float] = {}

    def respond(self, request: Request, machine: Machine, *, now: float, waited: bool) -> Response:
        if request.path == TOKEN:
            return self._token(request, now)
        if request.method != "GET":
            return text(405, "Method Not Allowed", allow="GET")
        if self._ends.get(request.headers.get(TOKEN_HEADER, ""), 0.0) <= now:
            return text(401, "Unauthorized")
        return _read(request.path, machine)

    def _token(self, request: Request, now: float) -> Response:
        if request.method != "PUT":
            return text(405, "Method Not Allowed", allow="PUT")
        if "x-forwarded-for" in request.headers:  # a proxy that is open to the world
            return text(403, "Forbidden")
        ttl = request.headers.get(TTL_HEADER, "")
        if not (ttl.isascii() and ttl.isdigit() and 1 <= int(ttl) <= LONGEST_TTL_S):
            return text(400, "Bad Request")
        self._ends = {token: end for token, end in self._ends.items() if end > now}
        digest = hashlib.sha256(f"{self._seed} {len(self._ends)} {now!r}".encode()).digest()
        token = base64.urlsafe_b64encode(digest).decode()
        self._ends[token] = now + int(ttl)
        return text(200, token, x_aws_ec2_metadata_token_ttl_seconds=ttl)


def _read(path: str, machine: Machine) -> Response:
    if path == IDENTITY:
        return document(200, _identity(machine))
    announced = machine.announcement
    if path in (ACTION, TERMINATION_TIME) and announced is not None:
        # Whole seconds, rounded down: what is announced is never later than what was promised.
        moment = datetime.fromtimestamp(int(announced.deadline), timezone.utc)
        time = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        if path == TERMINATION_TIME:
            return text(200, time)
        return document(200, {"action": "terminate", "time": time})
    facts = {
        "instance-id": machine.id,
        "instance-type": machine.vm,
        "instance-life-cycle": "spot" if machine.spot else "on-demand",
        "placement/availability-zone": machine.zone,
        "placement/region": machine.region,
    }
    fact = facts.get(path.removeprefix(META)) if path.startswith(META) else None
    return text(404, "Not Found") if fact is None else text(200, fact)


def _identity(machine: Machine) -> dict[str, str]:
    return {
        "accountId": "000000000000",
        "availabilityZone": machine.zone,
        "instanceId": machine.id,
        "instanceType": machine.vm,
        "region": machine.region,
        "version": "2017-09-30",
    }
