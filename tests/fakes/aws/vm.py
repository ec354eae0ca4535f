"""One VM of the emulator, really running: `python vm.py FOLDER`, started by `hosts`.

Process 1 of namespaces of its own, as in the local cloud: a network in which the metadata service
is at 169.254.169.254 and nothing is reached but the addresses in `reach`, process ids of its own,
and /var/lib in memory, with the agent's folder on the VM's disk. It runs the very user data that
was sent. `FOLDER/vm.json` says what it is; `rebalance.json` and `notice.json` appear beside it when
EC2 recommends to leave the VM, and when it is about to take it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from spothop_master.clouds.local import metadata, vm_processes
from spothop_master.clouds.local.disk import LOCK_FD
from spothop_master.clouds.local.forward import forward
from spothop_master.clouds.local.init import AgentCommand
from spothop_master.clouds.local.metadata import Machine, Request, Response, document, text
from spothop_master.clouds.local.metadata.aws import META, Aws
from spothop_master.clouds.local.metadata.http import MetadataService

METADATA = ("169.254.169.254", 80)
CREDENTIALS = META + "iam/security-credentials/"
REBALANCE = META + "events/recommendations/rebalance"
BOOT = """\
mount -t tmpfs none /var/lib && mkdir /var/lib/spothop &&
mount --bind "$VM_DISK" /var/lib/spothop && exec /bin/sh "$VM_USER_DATA"
"""


class WithRole(Aws):
    """The metadata service of a VM with an instance profile (EC2 user guide, "Retrieve security
    credentials from instance metadata")."""

    def __init__(self, *, seed: str, role: str, credentials: dict[str, str]) -> None:
        super().__init__(seed=seed)
        self._role, self._credentials = role, credentials
        self.rebalance: dict[str, str] | None = None
        """What is recommended; None: nothing."""

    def respond(self, request: Request, machine: Machine, *, now: float, waited: bool) -> Response:
        answer = super().respond(request, machine, now=now, waited=waited)
        if answer.status != 404:  # 401 without a session
            return answer
        if request.path == REBALANCE and self.rebalance is not None:
            return document(200, self.rebalance)
        if request.path == CREDENTIALS:
            return text(200, self._role)
        if request.path == CREDENTIALS + self._role:
            return document(200, self._credentials)
        return answer


async def run(folder: Path, told: dict[str, Any], listeners: Any, orders: Any) -> None:
    dialect = WithRole(seed=told["id"], role=told["role"], credentials=told["credentials"])
    machine = metadata.Machine(
        id=told["id"],
        name=told["id"],
        region=told["region"],
        zone=told["zone"],
        vm=told["type"],
        spot=told["spot"],
    )
    service = MetadataService(dialect, machine, acknowledged=lambda event: None)
    targets = [None, *map(tuple, told["reach"])]
    servers = [  # kept: a server that is collected drops its connections
        await (service.listen(listener) if target is None else forward(listener, *target))
        for listener, target in zip(listeners, targets, strict=True)
    ]
    orders.start_agent()
    notice, rebalance = folder / "notice.json", folder / "rebalance.json"
    announced = False
    while servers:
        if rebalance.exists() and dialect.rebalance is None:
            dialect.rebalance = json.loads(rebalance.read_text())
        if notice.exists() and not announced:
            announced = True
            deadline = json.loads(notice.read_text())["deadline"]
            service.announce(metadata.Announcement(f"interrupt-{told['id']}", deadline))
        await asyncio.sleep(0.05)


def main(folder: Path) -> None:
    logging.basicConfig(level=logging.INFO)
    told = json.loads((folder / "vm.json").read_text())
    os.dup2(os.open(os.devnull, os.O_RDONLY), LOCK_FD)  # which process 1 closes
    environment = {
        "PATH": f"{folder / 'bin'}:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": "/root",
        "VM_DISK": str(folder / "disk"),
        "VM_USER_DATA": str(folder / "user-data"),
        **told["marks"],
    }
    command = AgentCommand(["/bin/sh", "-c", BOOT], environment, folder / "disk")
    listen = [METADATA, *(tuple(address) for address in told["reach"])]
    processes, listeners = vm_processes.start(command, namespaced=True, listen=listen)
    asyncio.run(run(folder, told, listeners, processes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
