"""A real script that starts itself again inside its attempt, beside a real agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.agent_vm import AgentVm, assignment, chain, pack
from fakes.fake_azure_metadata import FakeAzureMetadata
from fakes.fake_master import FakeMaster, bundle_hash
from spothop.wire import ExitedReport, MetricsReport

pytestmark = pytest.mark.e2e

EXECS = """
import json, os, sys
import spothop as sp

path = sp.latest_checkpoint()
step = json.loads(path.read_text())["step"] if path else 0
starts = [*sys.argv[1:], str(step)]
while step < 40:
    with sp.step_context():
        step += 1
    sp.log(starts=len(starts))
    if step % 10 == 0:
        with open("checkpoint.json", "w") as file:
            json.dump({"step": step}, file)
        sp.backup("checkpoint.json")
    if step in (20, 33) and len(starts) < 4:
        with open("checkpoint.json", "w") as file:
            file.write("{half")
        os.execv(sys.executable, [sys.executable, sys.argv[0], *starts])
print("started at", *starts)
sp.done()
"""


def test_each_execv_goes_on_from_the_newest_save(tmp_path: Path) -> None:
    """At step 20 at once after the save was handed over; at step 33 twice, from step 30, whose copy
    is used up after the first time and comes from the store then."""
    bundle = pack({"train.py": EXECS})
    storage = tmp_path / "storage"
    work = assignment(storage, bundle=bundle_hash(bundle))
    with (
        FakeAzureMetadata() as metadata,
        FakeMaster(work, bundle) as master,
        AgentVm(tmp_path, master, metadata=metadata.url) as vm,
    ):
        vm.start()
        assert master.wait_for(ExitedReport) == ExitedReport(code=0, done=True, step=40)
        assert "started at 0 20 30 30" in master.log()
        assert [entry.step for entry in chain(storage)] == [None, 10, 20, 30, 40]
        metrics = master.reports(MetricsReport)
        assert (metrics[-1].step, metrics[-1].values) == (40, {"starts": 4})
        assert not (vm.run_dir() / "kept").exists()
        assert master.refused == []
