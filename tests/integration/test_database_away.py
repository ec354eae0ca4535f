"""A PostgreSQL that is stopped and started again under a master that runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.http_master import HttpMaster
from support import postgres


@pytest.fixture
def server() -> Iterator[postgres.Postgres]:
    own = postgres.Postgres.new()
    yield own
    own.close()


def test_a_master_outlives_the_restart_of_its_database(
    tmp_path: Path, server: postgres.Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    with HttpMaster(tmp_path, database_url=server.migrated()) as master:
        job = master.submit()["id"]
        assert master.get("/readyz").json()["status"] != "no database"

        server.stop()  # connections that are kept open die with it
        server.start()
        answer = master.get(f"/api/v1/jobs/{job}")
        assert answer.status_code == 200, answer.text

        server.stop()
        for answer in (
            master.get(f"/api/v1/jobs/{job}"),
            master.post(f"/api/v1/jobs/{job}/cancel"),
        ):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
            assert answer.json()["error"] == "no_database"
        ready = master.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "no database")
        assert master.get("/healthz").status_code == 200
        assert "Traceback" not in caplog.text

        server.start()
        assert master.get("/readyz").json()["status"] != "no database"
        assert master.post(f"/api/v1/jobs/{job}/cancel").json()["wanted"] == "cancelled"
