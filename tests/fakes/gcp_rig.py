"""The rig of the contract suite for GCP: the fake of Compute Engine, in this process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fakes.cloud_rigs import Named
from fakes.gcp import Gce, Key
from spothop.wire import Pool
from spothop_master.clouds.base import OWNER_TAG, Cloud
from spothop_master.clouds.gcp import requests
from spothop_master.clouds.gcp.calls import GcpCalls
from spothop_master.clouds.gcp.config import GcpConfig, load
from spothop_master.clouds.gcp.driver import GcpCloud

FILE = """\
project: my-project
regions: [us-central1]
vm_types:
  e2-standard-2: {price: 0.067, spot_price: 0.02}
  g2-standard-4: {price: 0.707, gpu: true}
  n1-standard-8+t4x1: {price: 0.73, gpu: true}
"""


def driver(gce: Gce, config: GcpConfig) -> GcpCloud:
    return GcpCloud(
        config,
        calls=GcpCalls(login=Key(gce), transport=gce.transport()),
        now=lambda: datetime.fromtimestamp(gce.clock(), timezone.utc),
    )


class GcpRig(Named):
    """Its time goes by as the suite says."""

    throttled = "rateLimitExceeded"

    def __init__(self, folder: Path, make_aws: Callable[[], Any]) -> None:
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
