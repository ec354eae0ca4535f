"""What the programs of all emulated clouds' VMs have in common (`vm_hosts` starts them).

Process 1 of namespaces of its own, as in the local cloud: a network in which the metadata service
is at 169.254.169.254 and nothing is reached but the addresses in `reach`, process ids of its own,
and /var/lib in memory, with the agent's folder on the VM's disk. It runs the very user data that
was sent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spothop_master.clouds.local import metadata, vm_processes
from spothop_master.clouds.local.disk import LOCK_FD
from spothop_master.clouds.local.forward import forward
from spothop_master.clouds.local.init import AgentCommand
from spothop_master.clouds.local.metadata.http import MetadataService

METADATA = ("169.254.169.254", 80)
BOOT = """\
mount -t tmpfs none /var/lib && mkdir /var/lib/spothop &&
mount --bind "$VM_DISK" /var/lib/spothop && exec /bin/sh "$VM_USER_DATA"
"""
Told = Mapping[str, Any]
Watch = Callable[[Path, MetadataService], None]
"""Called often: what the cloud tells the VM by files in its folder goes to its metadata service."""


async def _run(
    folder: Path,
    told: Told,
    dialect: metadata.Dialect,
    watch: Watch,
    listeners: Any,
    orders: Any,
) -> None:
    machine = metadata.Machine(
        id=told["id"],
        name=told["name"],
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
    while servers:
        watch(folder, service)
        await asyncio.sleep(0.05)


def main(folder: Path, make: Callable[[Told], tuple[metadata.Dialect, Watch]]) -> None:
    """`make`: what speaks for the metadata service of this cloud."""
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
    asyncio.run(_run(folder, told, *make(told), listeners, processes))


def run(make: Callable[[Told], tuple[metadata.Dialect, Watch]]) -> None:
    main(Path(sys.argv[1]), make)
