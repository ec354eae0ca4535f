"""GCP's Compute Engine on loopback, or in the process: strict where Google's documents are.

    gce = Gce()
    calls = GcpCalls(login=Key(gce), transport=gce.transport())
    gce.fail("instances.insert", 403, "rateLimitExceeded")

There is no emulator of it that others keep. So what is taken is checked by what Google publishes:
`schemas.json` has the methods, their parameters and the schemas of the bodies of the API's
discovery document (tests/support/gce_schemas.py writes it). What the documents say in words (which
scheduling goes together, which disks a machine family boots from, what a request id does) is in
`rules`. From nobody but us, so that a real project may differ: how long operations take, when the
operation of a preemption is written, which errors come in an answer and which in an operation.

Modules: `compute` (the project, its VMs and operations over time), `rules` (what is refused),
`schema` (bodies and field masks), `server` (over HTTP, with tokens for service accounts), `hosts`
(lets the VMs really run).
"""

from __future__ import annotations

from fakes.gcp.compute import Fault, Gce, Key

__all__ = ["Fault", "Gce", "Key"]
