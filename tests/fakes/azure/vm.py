"""One VM of the fake, really running: `python vm.py FOLDER`, started by `hosts`
(`fakes.vm_program` says how). `notice.json` appears in its folder when it is about to be evicted;
`acknowledged` when its guest lets that go on."""

from __future__ import annotations

import json
from pathlib import Path

from fakes import vm_program
from spothop_master.clouds.local.metadata import Announcement, Machine, Request, Response
from spothop_master.clouds.local.metadata.azure import Azure
from spothop_master.clouds.local.metadata.http import MetadataService


class Evictable(Azure):
    """The metadata service of a spot VM."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._event = f"evict-{name}"
        self._announced = False
        self._acknowledged = False

    def respond(self, request: Request, machine: Machine, *, now: float, waited: bool) -> Response:
        answer = super().respond(request, machine, now=now, waited=waited)
        self._acknowledged = self._acknowledged or answer.acknowledged is not None
        return answer

    def watch(self, folder: Path, service: MetadataService) -> None:
        notice = folder / "notice.json"
        if notice.exists() and not self._announced:
            self._announced = True
            deadline = json.loads(notice.read_text())["deadline"]
            service.announce(Announcement(self._event, deadline))
        if self._acknowledged:
            (folder / "acknowledged").touch()


def make(told: vm_program.Told) -> tuple[Evictable, vm_program.Watch]:
    dialect = Evictable(told["name"])
    return dialect, dialect.watch


if __name__ == "__main__":
    vm_program.run(make)
