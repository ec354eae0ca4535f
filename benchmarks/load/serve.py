"""`python -m load.serve HOME PORT COUNT URL SETTINGS`: a real master with the resting cloud."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from pathlib import Path

from load.fleet import OWNER, Member, RestingCloud
from spothop_master.app import create_app
from spothop_master.first_start import first_start
from spothop_master.program import listen, make_server
from spothop_master.settings import MasterSettings


def settings_of(home: Path, port: int, url: str, more: dict[str, object]) -> MasterSettings:
    given = {"home": home, "port": port, "owner": OWNER, **more}
    return MasterSettings.model_validate(given | ({"database_url": url} if url else {}))


def main(home: str, port: str, count: str, url: str, more: str) -> None:
    settings = settings_of(Path(home), int(port), url, json.loads(more))
    members = [Member(number=number) for number in range(int(count))]
    now = datetime.now(timezone.utc)
    cloud = RestingCloud(members, Path(home) / "launches.jsonl", now)
    app = create_app(settings, {cloud.name: cloud})
    first_start(app.state.services)
    listener = listen(settings.host, settings.port)
    with listener:
        make_server(app).run(sockets=[listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
