"""The rigs of the contract suite for GCP: the fake of Compute Engine in this process, or a project.

`SPOTHOP_GCP_LIVE=1 SPOTHOP_GCP_LIVE_PROJECT=P pytest tests/contract/test_cloud_contract.py` runs
the suite in that project, in us-central1-a or `SPOTHOP_GCP_LIVE_ZONE`, with Google's default
credentials; what only the fake can be made to do is left out. `deploy/gcp/master.yaml` has the
permissions that it needs. Never in CI.

Spending is capped: at most `LIVE_VMS` VMs of `LIVE_TYPE` are launched, each ends with its test, and
if that fails Compute Engine deletes it after 29 minutes. 40 VMs, half an hour, at 0.0084 USD an
hour for the VM, 0.005 for its address and 0.002 for 11 GB of disk (us-central1): less than 0.35
USD.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fakes.cloud_rigs import Named
from fakes.gcp import Gce, Key
from spothop.wire import Pool
from spothop_master.clouds.base import OWNER_TAG, Cloud, CloudVmState, LaunchSpec, Vm
from spothop_master.clouds.gcp import requests
from spothop_master.clouds.gcp.calls import GcpCalls
from spothop_master.clouds.gcp.config import GcpConfig, load
from spothop_master.clouds.gcp.driver import GcpCloud

LIVE_TYPE = "e2-micro"
LIVE_VMS = 40

FILE = """\
project: my-project
regions: [us-central1]
vm_types:
  e2-standard-2: {price: 0.067, spot_price: 0.02}
  g2-standard-4: {price: 0.707, gpu: true}
  n1-standard-8+t4x1: {price: 0.73, gpu: true}
"""


def driver(gce: Gce, config: GcpConfig, *, ahead_s: float = 0.0) -> GcpCloud:
    """`ahead_s`: the master's clock, against Google's."""

    def now() -> datetime:
        return datetime.fromtimestamp(gce.clock() + ahead_s, timezone.utc)

    calls = GcpCalls(login=Key(gce), transport=gce.transport(), now=now)
    return GcpCloud(config, calls=calls, now=now)


class GcpRig(Named):
    """Its time goes by as the suite says."""

    throttled = "rateLimitExceeded"

    def __init__(self, folder: Path, make: Callable[[str], Any]) -> None:
        super().__init__()
        self.gce = Gce()
        self.gce.insert_s, self.gce.delete_s = 20.0, 30.0
        file = folder / "gcp.yaml"
        file.write_text(FILE)
        self.cloud: Cloud = driver(self.gce, load(file))
        self.spot = Pool(
            cloud="gcp", region="us-central1", zone="us-central1-a", vm="e2-standard-2"
        )
        self.on_demand = self.spot.model_copy(update={"spot": False})

    def pass_time(self) -> None:
        self.gce.clock.advance(10.0)

    def refuse(self) -> None:
        message = "The zone does not have enough resources available to fulfill the request."
        self.gce.fail(
            "instances.insert", 503, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", message=message
        )

    def refuse_later(self) -> None:
        self.gce.doomed.append(("ZONE_RESOURCE_POOL_EXHAUSTED", "none left"))

    def hide(self) -> None:
        self.gce.hidden_s = 60.0

    def throttle(self) -> None:
        self.gce.fail("instances.insert", 403, "rateLimitExceeded")

    def expire(self) -> None:
        self.gce.tokens.clear()

    def renew(self) -> None:
        self.gce.tokens.add("token-1")

    def lose_answer(self) -> None:
        self.gce.cut("instances.insert", after=True)

    def lose_request(self) -> None:
        self.gce.cut("instances.insert")

    def vanish_preempted(self) -> None:
        self.gce.forgets = True

    def stray(self) -> str:
        pool = self.spot.model_copy(update={"zone": "us-central1-c", "vm": "n2-standard-2"})
        spec = self.spec(pool)
        config = GcpConfig.model_validate({"project": "my-project", "regions": ["us-central1"]})
        body = requests.instance(
            spec, "x", config=config, image=config.image, gpu=False, notice=False
        )
        body |= {"name": "by-hand", "labels": {OWNER_TAG: self.us}}
        calls = GcpCalls(login=Key(self.gce), transport=self.gce.transport())
        calls.call("POST", "/projects/my-project/zones/us-central1-c/instances", body=body)
        return "us-central1-c/by-hand"

    def left(self) -> list[str]:
        return [life.id for life in self.gce.living()]

    def close(self) -> None: ...


class LiveRig(Named):
    """A real project. A method that is missing here is one of `CANNOT`."""

    within_s = 900.0

    def __init__(self, folder: Path, make: Callable[[str], Any]) -> None:
        super().__init__()
        project = os.environ["SPOTHOP_GCP_LIVE_PROJECT"]  # noqa: TID251  a switch
        zone = os.environ.get("SPOTHOP_GCP_LIVE_ZONE", "us-central1-a")  # noqa: TID251  a switch
        region = zone.rpartition("-")[0]
        config = {
            "project": project,
            "regions": {region: {"zones": [zone]}},
            "service_account": "",
            "disk_gb": 11,
            "max_run_days": 0.02,
            "vm_types": {LIVE_TYPE: {"price": 0.0084, "spot_price": 0.0051}},
        }
        self.cloud: Cloud = _Capped(GcpConfig.model_validate(config))
        self.spot = Pool(cloud="gcp", region=region, zone=zone, vm=LIVE_TYPE)
        self.on_demand = self.spot.model_copy(update={"spot": False})

    def pass_time(self) -> None:
        time.sleep(5.0)

    def left(self) -> list[str]:
        living = [vm for vm in self.cloud.list(self.us) if vm.state is not CloudVmState.TERMINATED]
        assert isinstance(self.cloud, GcpCloud)
        return [vm.id for vm in living] + [each.id for each in self.cloud.remains(self.us)]

    def close(self) -> None:
        for owner in (self.us, self.them):
            for vm in self.cloud.list(owner):
                self.cloud.terminate(vm.id)


class _Capped(GcpCloud):
    """Launches so many VMs and no more."""

    launches = 0

    def launch(self, spec: LaunchSpec, token: str) -> Vm:
        _Capped.launches += 1
        assert _Capped.launches <= LIVE_VMS, f"more than {LIVE_VMS} launches; see LIVE_VMS"
        return super().launch(spec, token)
