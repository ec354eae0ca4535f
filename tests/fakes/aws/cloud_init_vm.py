"""A VM that boots Debian with cloud-init: `python cloud_init_vm.py FOLDER`, see `CloudInitVm`.

Process 1 of namespaces of its own, as in `vm.py`, whose root is the image with a layer of its own
above it. Against cloud-init's own start of a machine: there is no systemd, so its four stages are
called one after the other, as its units do; the data source is fixed, as in Debian's images for
EC2; and nothing configures the network, which is there. What it asks the metadata service for is
what DataSourceEc2 asks for: a token, the categories of a version, and the user data.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from spothop_master.clouds.local import metadata, vm_processes
from spothop_master.clouds.local.disk import LOCK_FD
from spothop_master.clouds.local.forward import forward
from spothop_master.clouds.local.init import AgentCommand
from spothop_master.clouds.local.metadata import Machine, Request, Response, text
from spothop_master.clouds.local.metadata.aws import META, TOKEN_HEADER, Aws
from spothop_master.clouds.local.metadata.http import MetadataService

METADATA = ("169.254.169.254", 80)
TESTS = Path(__file__).parents[2]
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
"""Of a service of systemd, cloud-init's too (systemd.exec(5))."""

CONFIG = """\
datasource_list: [Ec2]
network: {config: disabled}
locale: false
resize_rootfs: false
"""
LISTED = {
    META.rstrip("/"): "instance-id\ninstance-life-cycle\ninstance-type\nplacement/",
    META + "placement": "availability-zone\nregion",
    "/latest/dynamic/instance-identity": "document",
}
"""Category -> what is in it."""
VERSION = re.compile(r"/\d{4}-\d\d-\d\d/")

BOOT = """\
mount -t overlay -o "lowerdir=$VM_IMAGE,upperdir=$VM_LAYER,workdir=$VM_WORK" none "$VM_ROOT" &&
cd "$VM_ROOT" && mount -t proc none proc && mount -t tmpfs none run &&
mount -t tmpfs none sys && mkdir -p sys/class/net sys/class/dmi/id &&
echo ec2e1916-9099-7caf-fd21-012345abcdef | tee sys/class/dmi/id/product_serial \
  >sys/class/dmi/id/product_uuid &&
mount -t tmpfs none dev && touch dev/null dev/zero dev/random dev/urandom &&
for device in null zero random urandom; do mount --bind /dev/$device dev/$device || exit; done &&
mkdir dev/shm && touch dev/console && mount --bind "$VM_CONSOLE" dev/console &&
mount --bind "$VM_BOOT_ID" proc/sys/kernel/random/boot_id && for bound in $VM_SHARED; do
  mkdir -p "$VM_ROOT$bound" && mount --bind "$bound" "$VM_ROOT$bound" || exit
done && env -i PATH="$VM_PATH" chroot "$VM_ROOT" /bin/sh -c "
  cloud-init init --local && cloud-init init &&
  cloud-init modules --mode=config && cloud-init modules --mode=final"
echo $? >"$VM_DONE.new" && mv "$VM_DONE.new" "$VM_DONE"
"""


class WithUserData(Aws):
    """The metadata service as cloud-init reads it: every version that it asks for, listings of
    categories, and the user data."""

    def __init__(self, *, seed: str, user_data: bytes) -> None:
        super().__init__(seed=seed)
        self._user_data = user_data

    def respond(self, request: Request, machine: Machine, *, now: float, waited: bool) -> Response:
        path = VERSION.sub("/latest/", request.path, count=1)
        asked = Request(request.method, path, request.query, request.headers, request.body)
        answer = super().respond(asked, machine, now=now, waited=waited)
        if answer.status != 404 or TOKEN_HEADER not in request.headers:
            return answer
        if (listed := LISTED.get(path.rstrip("/"))) is not None:
            return text(200, listed)
        if path == "/latest/user-data":
            return Response(200, self._user_data, {"content-type": "application/octet-stream"})
        return answer


class CloudInitVm:
    """One VM; its disk outlives its power. Needs root and namespaces."""

    def __init__(
        self,
        folder: Path,
        image: Path,
        script: str,
        *,
        reach: Sequence[tuple[str, int]],
        shared: Sequence[Path] = (),
    ) -> None:
        """`reach`: addresses of this machine that it reaches; `shared`: folders that it has, too,
        at the same path."""
        self.disk = folder / "disk"
        for name in ("disk", "work", "root"):
            (folder / name).mkdir(parents=True)
        self.put("/etc/cloud/cloud.cfg.d/99_vm.cfg", CONFIG)
        for name in ("shutdown", "poweroff"):
            self.put(f"/usr/local/bin/{name}", f'#!/bin/sh\necho {name} "$@" >>/told\n', 0o755)
        (folder / "user-data").write_text(script)
        os.mkfifo(folder / "console")
        told = {"image": str(image), "reach": list(reach), "shared": [str(path) for path in shared]}
        (folder / "vm.json").write_text(json.dumps(told))
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> CloudInitVm:
        self.power_on()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.power_off()

    def power_on(self) -> None:
        (self._folder / "done").unlink(missing_ok=True)
        (self._folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        with (self._folder / "host.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__)), str(self._folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(TESTS)},  # noqa: TID251  handed on
            )

    def power_off(self) -> None:
        """At once, as when the plug is pulled: process 1 dies with the one that is killed here."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def booted(self) -> str | None:
        """The exit code of cloud-init's stages; None while they run."""
        done = self._folder / "done"
        return done.read_text().strip() if done.exists() else None

    def path(self, path: str) -> Path:
        """Of what it has written; nothing of the image."""
        return self.disk / path.lstrip("/")

    def put(self, path: str, content: str, mode: int = 0o644) -> None:
        target = self.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
        target.chmod(mode)

    def read(self, path: str) -> str:
        """Empty where there is no such file."""
        target = self.path(path)
        return target.read_text(errors="replace") if target.exists() else ""

    @property
    def console(self) -> str:
        """What came out of /dev/console."""
        return (self._folder / "console.log").read_text(errors="replace")

    def told(self) -> str:
        """What it said, for a test that failed."""
        logs = ("/var/log/cloud-init-output.log", "/var/lib/spothop/boot.log")
        parts = [f"--- {log}\n{self.read(log)[-4000:]}" for log in logs]
        parts.append(f"--- agent.log\n{self.read('/var/lib/spothop/agent.log')[-4000:]}")
        parts.append(f"--- host\n{(self._folder / 'host.log').read_text()[-4000:]}")
        return "\n".join(parts)


async def run(folder: Path, told: Mapping[str, Any], listeners: Any, orders: Any) -> None:
    dialect = WithUserData(seed="1", user_data=(folder / "user-data").read_bytes())
    machine = metadata.Machine(
        id="i-0123456789abcdef0",
        name="vm",
        region="us-east-1",
        zone="us-east-1a",
        vm="t3.micro",
        spot=True,
    )
    service = MetadataService(dialect, machine, acknowledged=lambda event: None)
    targets = [None, *map(tuple, told["reach"])]
    _servers = [  # kept: a server that is collected drops its connections
        await (service.listen(listener) if target is None else forward(listener, *target))
        for listener, target in zip(listeners, targets, strict=True)
    ]
    # Open for both: its writers, which come and go, find a reader and never make an end.
    console = os.open(folder / "console", os.O_RDWR | os.O_NONBLOCK)
    with (folder / "console.log").open("ab", buffering=0) as log:
        asyncio.get_running_loop().add_reader(console, lambda: log.write(os.read(console, 65536)))
        orders.start_agent()
        await asyncio.Event().wait()


def main(folder: Path) -> None:
    logging.basicConfig(level=logging.INFO)
    told = json.loads((folder / "vm.json").read_text())
    os.dup2(os.open(os.devnull, os.O_RDONLY), LOCK_FD)  # which process 1 closes
    shutil.rmtree(folder / "work")
    (folder / "work").mkdir()
    environment = {
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
        "VM_PATH": SYSTEM_PATH,
        "VM_IMAGE": told["image"],
        "VM_SHARED": " ".join(told["shared"]),
        "VM_LAYER": str(folder / "disk"),
        **{
            f"VM_{n.upper()}": str(folder / n)
            for n in ("work", "root", "console", "boot_id", "done")
        },
    }
    command = AgentCommand(["/bin/sh", "-c", BOOT], environment, folder)
    listen = [METADATA, *(tuple(address) for address in told["reach"])]
    processes, listeners = vm_processes.start(command, namespaced=True, listen=listen)
    asyncio.run(run(folder, told, listeners, processes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
