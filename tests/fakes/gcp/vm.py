"""One VM of the fake, really running: `python vm.py FOLDER`, started by `hosts`
(`fakes.vm_program` says how). `notice.json` appears in its folder when it is about to be taken."""

from __future__ import annotations

import json
from pathlib import Path

from fakes import vm_program
from spothop_master.clouds.local.metadata import (
    Announcement,
    Hold,
    Machine,
    Request,
    Response,
    document,
    text,
)
from spothop_master.clouds.local.metadata.gcp import FLAVOR, ROOT, Gcp
from spothop_master.clouds.local.metadata.http import MetadataService

ACCOUNT = ROOT + "instance/service-accounts/default/"


class WithAccount(Gcp):
    """The metadata server of a VM with a service account (Compute Engine, "Authenticate workloads
    using service accounts": the token, by the same header)."""

    def __init__(self, *, email: str, token: str) -> None:
        self._email, self._token = email, token
        self._announced = False

    def respond(
        self, request: Request, machine: Machine, *, now: float, waited: bool
    ) -> Response | Hold:
        answer = super().respond(request, machine, now=now, waited=waited)
        if isinstance(answer, Hold) or answer.status != 404 or not self._token:
            return answer
        if request.path == f"{ACCOUNT}token":
            told = {"access_token": self._token, "expires_in": 3599, "token_type": "Bearer"}
            return document(200, told)
        return text(200, self._email, **FLAVOR) if request.path == f"{ACCOUNT}email" else answer

    def watch(self, folder: Path, service: MetadataService) -> None:
        notice = folder / "notice.json"
        if notice.exists() and not self._announced:
            self._announced = True
            deadline = json.loads(notice.read_text())["deadline"]
            service.announce(Announcement("preempted", deadline))


def make(told: vm_program.Told) -> tuple[WithAccount, vm_program.Watch]:
    dialect = WithAccount(email=told["account"], token=told["token"])
    return dialect, dialect.watch


if __name__ == "__main__":
    vm_program.run(make)
