"""One VM of the emulator, really running: `python vm.py FOLDER`, started by `hosts`
(`fakes.vm_program` says how). `rebalance.json` and `notice.json` appear in its folder when EC2
recommends to leave the VM, and when it is about to take it."""

from __future__ import annotations

import json
from pathlib import Path

from fakes import vm_program
from spothop_master.clouds.local.metadata import (
    Announcement,
    Machine,
    Request,
    Response,
    document,
    text,
)
from spothop_master.clouds.local.metadata.aws import META, Aws
from spothop_master.clouds.local.metadata.http import MetadataService

CREDENTIALS = META + "iam/security-credentials/"
REBALANCE = META + "events/recommendations/rebalance"


class WithRole(Aws):
    """The metadata service of a VM with an instance profile (EC2 user guide, "Retrieve security
    credentials from instance metadata")."""

    def __init__(self, *, seed: str, role: str, credentials: dict[str, str]) -> None:
        super().__init__(seed=seed)
        self._role, self._credentials = role, credentials
        self._id = seed
        self._announced = False
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

    def watch(self, folder: Path, service: MetadataService) -> None:
        notice, rebalance = folder / "notice.json", folder / "rebalance.json"
        if rebalance.exists() and self.rebalance is None:
            self.rebalance = json.loads(rebalance.read_text())
        if notice.exists() and not self._announced:
            self._announced = True
            deadline = json.loads(notice.read_text())["deadline"]
            service.announce(Announcement(f"interrupt-{self._id}", deadline))


def make(told: vm_program.Told) -> tuple[WithRole, vm_program.Watch]:
    dialect = WithRole(seed=told["id"], role=told["role"], credentials=told["credentials"])
    return dialect, dialect.watch


if __name__ == "__main__":
    vm_program.run(make)
