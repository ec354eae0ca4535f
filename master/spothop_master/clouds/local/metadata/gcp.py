"""GCP: the metadata server, with long polls.

Source: Compute Engine, "About VM metadata" (required header, `wait_for_change`, `timeout_sec`,
`last_etag`) and "Spot VMs: detect preemption".
"""

from __future__ import annotations

import hashlib

from spothop_master.clouds.local.metadata import Hold, Machine, Request, Response, text

ROOT = "/computeMetadata/v1/"
PREEMPTED = ROOT + "instance/preempted"
FLAVOR = {"metadata_flavor": "Google", "server": "Metadata Server for VM"}


class Gcp:
    def respond(
        self, request: Request, machine: Machine, *, now: float, waited: bool
    ) -> Response | Hold:
        if request.headers.get("metadata-flavor") != "Google":
            return text(403, "Missing required header: Metadata-Flavor: Google", **FLAVOR)
        if "x-forwarded-for" in request.headers:
            return text(403, "X-Forwarded-For is not allowed", **FLAVOR)
        if request.method != "GET":
            return text(405, "Method not allowed", allow="GET", **FLAVOR)
        value = _values(machine).get(request.path)
        if value is None:
            return text(404, "Not Found", **FLAVOR)
        etag = hashlib.sha256(f"{request.path}={value}".encode()).hexdigest()[:16]
        try:
            hold = None if waited else _hold(request, etag)
        except ValueError as error:
            return text(400, str(error), **FLAVOR)
        return hold or text(200, value, etag=etag, **FLAVOR)


def _hold(request: Request, etag: str) -> Hold | None:
    """The long poll that the request asks for; raises ValueError for a bad one."""
    if request.query.get("wait_for_change", "false").lower() != "true":
        return None
    timeout = request.query.get("timeout_sec")
    if timeout is not None and not (timeout.isascii() and timeout.isdigit()):
        raise ValueError(f"timeout_sec is not a number of seconds: {timeout!r}")
    # Without last_etag, only a change from now on counts: a flip before this request is not seen.
    if request.query.get("last_etag", etag) != etag:
        return None
    return Hold(None if timeout is None else float(timeout))


def _values(machine: Machine) -> dict[str, str]:
    return {
        PREEMPTED: "TRUE" if machine.announcement is not None else "FALSE",
        # Preemptions do not show here; live migrations and GPU host maintenance would.
        ROOT + "instance/maintenance-event": "NONE",
        ROOT + "instance/id": str(int(hashlib.sha256(machine.id.encode()).hexdigest()[:15], 16)),
        ROOT + "instance/name": machine.name,
        ROOT + "instance/zone": f"projects/0/zones/{machine.zone}",
        ROOT + "instance/machine-type": f"projects/0/machineTypes/{machine.vm}",
        ROOT + "instance/scheduling/preemptible": "TRUE" if machine.spot else "FALSE",
    }
