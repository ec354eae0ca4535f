"""Sessions in memory: none outlives its VM, whoever asks at the wrong moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy.orm import Session

from fakes.master_harness import MasterHarness
from spothop_master.agents.sessions import Sessions, VmSession
from spothop_master.problems import ApiError
from spothop_master.security import token_hash
from spothop_master.store.db import Database
from spothop_master.store.schema import VmRow
from support.queries import counted

pytestmark = pytest.mark.databases


class EndingVms:
    """A database in which the VM ends just after its row was read."""

    def __init__(self, harness: MasterHarness) -> None:
        self._harness = harness
        self.ends: list[tuple[Sessions, str]] = []

    def read(self) -> AbstractContextManager[Session]:
        return self._read()

    @contextmanager
    def _read(self) -> Iterator[Session]:
        with self._harness.db.read() as session:
            yield session
        for sessions, vm_id in self.ends:
            with self._harness.db.begin() as session:
                row = session.get_one(VmRow, vm_id)
                row.state, row.reason = "terminated", "released"
            sessions.forget(vm_id)  # as the supervise loop does
        self.ends.clear()


def test_a_vm_that_ends_while_its_session_is_looked_up_is_not_remembered(tmp_path: Path) -> None:
    harness = MasterHarness(tmp_path)
    try:
        harness.training()
        vm_id = harness.vms()[0].id
        with harness.db.begin() as session:
            session.get_one(VmRow, vm_id).session_hash = token_hash("session")
        db = EndingVms(harness)
        sessions = Sessions(cast(Database, db))
        db.ends.append((sessions, vm_id))
        assert sessions.look_up("session").vm == vm_id  # it was there when it asked
        assert sessions.remembered("session") is None
        with pytest.raises(ApiError) as caught:
            sessions.look_up("session")
        assert caught.value.status == 410
    finally:
        harness.db.close()


def test_with_a_session_comes_the_log_that_its_vm_writes(tmp_path: Path) -> None:
    harness = MasterHarness(tmp_path)
    try:
        harness.training()
        vm_id = harness.vms()[0].id
        with harness.db.begin() as session:
            session.get_one(VmRow, vm_id).session_hash = token_hash("session")
        sessions = Sessions(harness.db)
        with counted(harness.db) as statements:
            found = sessions.look_up_all(["session", "unknown"])
        assert len([text for text in statements if "SELECT" in text]) == 1
        assert isinstance(found["session"], VmSession)
        assert isinstance(found["unknown"], ApiError)
        assert (sessions.node_of(vm_id, 1), sessions.node_of(vm_id, 2)) == (0, None)
    finally:
        harness.db.close()
