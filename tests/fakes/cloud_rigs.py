"""One rig for each cloud that the contract suite runs over: makes it, and makes it misbehave.

What a cloud cannot do is stated here, in `CANNOT`, and nowhere else; the suite runs all the rest.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fakes.fake_cloud import AmbiguousAfter, FailsLater, FakeClock, FakeCloud
from spothop.wire import AgentConfig, Dialect, Pool
from spothop_master.clouds.base import (
    OWNER_TAG,
    Ambiguous,
    AuthFailed,
    Cloud,
    LaunchSpec,
    NoCapacity,
    Throttled,
)
from spothop_master.clouds.local.config import LocalConfig
from spothop_master.clouds.local.driver import LocalCloud
from spothop_master.core.refusals import Scope
from support.waiting import WITHIN_S

CANNOT: Mapping[str, Mapping[str, str]] = {
    "local": {
        "throttle": "nobody counts its calls",
        "expire": "it has no credentials",
        "lose_answer": "its calls are calls of functions; what a crash in the midst of one leaves"
        " is tested in tests/integration/test_local_cloud.py",
        "lose_request": "as above",
        "hide": "its listing is the folder in which a launch makes the VM",
    },
    "fake": {
        "stray": "it has one way to launch only",
    },
    "aws": {
        "short_notice": "its eviction test gives the two minutes that EC2 promises",
        "relaunch_ended": "EC2 answers IdempotentInstanceTerminated; the listing tells",
    },
    "gcp": {
        "short_notice": "its eviction test gives the notice that the VM was launched with",
        "relaunch_ended": "the operation of the first launch answers; the listing tells",
    },
    "azure": {
        "short_notice": "Azure's eviction test gives its own notice",
        "hide": "what a launch made is looked for by its name, which Azure answers for at once:"
        " tests/integration/test_azure_driver.py",
    },
    "aws-live": {
        **dict.fromkeys(
            ("refuse", "refuse_later", "throttle", "expire", "lose_answer", "lose_request", "hide"),
            "nobody can make a real account do that",
        ),
        "vanish_preempted": "EC2 lists what ended for about an hour",
        "stray": "the emulator shows it",
        "short_notice": "as aws",
        "relaunch_ended": "as aws",
    },
    "gcp-live": {
        **dict.fromkeys(
            ("refuse", "refuse_later", "throttle", "expire", "lose_answer", "lose_request", "hide"),
            "nobody can make a real project do that",
        ),
        "vanish_preempted": "operations tell of it for two weeks",
        "stray": "the fake shows it",
        "short_notice": "as gcp",
        "relaunch_ended": "as gcp",
    },
}
"""Cloud -> a method of its rig, or a mark of the suite -> why not."""


class Rig(Protocol):
    """One implementation under test. Each fault strikes once, or as it says."""

    cloud: Cloud
    spot: Pool
    on_demand: Pool
    us: str
    them: str
    """Owners; of this test alone, because a cloud remembers those before."""
    within_s: float
    """So long may anything take, in seconds of this machine."""
    throttled: str
    throttled_scope: Scope = Scope.ACCOUNT
    """The provider's code for one call too many."""

    def token(self, name: str) -> str:
        """Of this test alone, too."""

    def spec(
        self, pool: Pool, *, owner: str | None = None, max_price: float | None = None
    ) -> LaunchSpec: ...

    def pass_time(self) -> None:
        """A little of the cloud's time: waits for a real one, moves a fake one's clock."""

    def refuse(self) -> None:
        """The next launch of `spot` is refused for lack of capacity."""

    def refuse_later(self) -> None:
        """The next launch of `spot` is accepted, and refused for lack of capacity then."""

    def hide(self) -> None:
        """New VMs are missing from listings for a while."""

    def throttle(self) -> None:
        """The next call is one too many."""

    def expire(self) -> None:
        """Credentials have expired, for every call until `renew`."""

    def renew(self) -> None: ...

    def lose_answer(self) -> None:
        """The answer of the next launch is lost, and the VM is made."""

    def lose_request(self) -> None:
        """The next launch does not reach the cloud, and looks the same from here."""

    def vanish_preempted(self) -> None:
        """VMs that are preempted are listed no more."""

    def stray(self) -> str:
        """Somebody launched a VM with our tag of whom our configuration knows nothing; its id."""

    def left(self) -> list[str]:
        """What the account still holds of VMs, disks and addresses with the tag."""

    def close(self) -> None: ...


class Named:
    """What all rigs have: names of their own."""

    within_s: float = WITHIN_S
    throttled = "RequestLimitExceeded"
    throttled_scope = Scope.ACCOUNT

    def __init__(self) -> None:
        self._run = uuid.uuid4().hex[:12]
        self.us, self.them = f"us-{self._run}", f"them-{self._run}"

    def token(self, name: str) -> str:
        return f"{name}-{self._run}"

    def spec(
        self, pool: Pool, *, owner: str | None = None, max_price: float | None = None
    ) -> LaunchSpec:
        user_data = AgentConfig(
            master="http://127.0.0.1:9", token="join", vm="v", dialect=Dialect.GCP, directory="/x"
        )
        return LaunchSpec(
            pool=pool,
            user_data=user_data,
            script="#!/bin/sh\nshutdown -P +10\n",  # wherever it really runs
            tags={OWNER_TAG: owner or self.us, "job": "j1"},
            max_price=max_price,
        )


class LocalRig(Named):
    """The local cloud with agents that do nothing."""

    name = "local"

    def __init__(self, folder: Path, make: Callable[[str], Any]) -> None:
        super().__init__()
        self._folder = folder
        self._pool: dict[str, Any] = {}
        self._all: dict[str, Any] = {}
        self.spot = Pool(cloud="local", region="r", zone="z", vm="small")
        self.on_demand = self.spot.model_copy(update={"spot": False})
        self.cloud: Cloud = self._make()

    def _make(self, *, zone: str = "z") -> LocalCloud:
        config = LocalConfig.model_validate(
            {
                "directory": self._folder / "cloud",
                "isolation": "processes",
                "agent_command": ["/bin/sh", "-c", "sleep 600"],
                "pools": [
                    {
                        "region": "r",
                        "zone": zone,
                        "vm": "small",
                        "dialect": "gcp",
                        "price": 0.2,
                        "on_demand_price": 0.6,
                        "grace_s": 0.5,
                        "allocation_s": [0, 0.05],
                        "boot_s": [0, 0.05],
                        **self._pool,
                    }
                ],
                **self._all,
            }
        )
        return LocalCloud(config)

    def pass_time(self) -> None:
        time.sleep(0.01)

    def refuse(self) -> None:
        self._pool["refuse"] = 1
        self.cloud = self._make()

    def refuse_later(self) -> None:
        self._pool["fail"] = 1
        self.cloud = self._make()

    def vanish_preempted(self) -> None:
        self._all["list_preempted"] = False
        self.cloud = self._make()

    def stray(self) -> str:
        elsewhere = self._make(zone="other")
        pool = self.spot.model_copy(update={"zone": "other"})
        return elsewhere.launch(self.spec(pool), self.token("stray")).id

    def left(self) -> list[str]:
        return [vm.id for vm in self.cloud.list(self.us) if vm.ended_at is None]

    def hide(self) -> None:
        raise NotImplementedError

    throttle = expire = renew = lose_answer = lose_request = hide

    def close(self) -> None:
        living = [vm for owner in (self.us, self.them) for vm in self.cloud.list(owner)]
        for vm in living:
            self.cloud.terminate(vm.id)
        while any(
            not vm.ended_at for owner in (self.us, self.them) for vm in self.cloud.list(owner)
        ):
            self.pass_time()


class FakeRig(Named):
    """The cloud in memory that the tests of the loops use."""

    name = "fake"

    def __init__(self, folder: Path, make: Callable[[str], Any]) -> None:
        super().__init__()
        self.fake = FakeCloud(clock=FakeClock(), on_demand=True)
        self.cloud: Cloud = self.fake
        self.spot = self.fake.pool("a")
        self.on_demand = self.spot.model_copy(update={"spot": False})

    def pass_time(self) -> None:
        self.fake.clock.advance(0.5)

    def refuse(self) -> None:
        self.fake.script.append(NoCapacity("a: none left"))

    def refuse_later(self) -> None:
        self.fake.script.append(FailsLater(NoCapacity("a: none left")))

    def hide(self) -> None:
        self.fake.hidden_s = 3.0

    def throttle(self) -> None:
        self.fake.script.append(Throttled("slow down", code="RequestLimitExceeded"))

    def expire(self) -> None:
        self.fake.away = AuthFailed("expired", code="RequestExpired")
        self.fake.refusing["a"] = self.fake.away

    def renew(self) -> None:
        self.fake.away = None
        self.fake.refusing.clear()

    def lose_answer(self) -> None:
        self.fake.script.append(AmbiguousAfter())

    def lose_request(self) -> None:
        self.fake.script.append(Ambiguous("connection lost"))

    def vanish_preempted(self) -> None:
        self.fake.lists_preempted = False

    def stray(self) -> str:
        raise NotImplementedError

    def left(self) -> list[str]:
        return [vm.id for vm in self.fake.list(self.us) if vm.ended_at is None]

    def close(self) -> None: ...


def _aws(folder: Path, make: Callable[[str], Any]) -> Rig:
    from fakes.aws_rig import AwsRig

    return AwsRig(folder, lambda: make("aws"))


def _gcp(folder: Path, make: Callable[[str], Any]) -> Rig:
    from fakes.gcp_rig import GcpRig

    return GcpRig(folder, lambda: None)


def _azure(folder: Path, make: Callable[[str], Any]) -> Rig:
    from fakes.azure_rig import AzureRig

    return AzureRig(folder, lambda: make("azure"))


def _live(folder: Path, make: Callable[[str], Any]) -> Rig:
    from fakes.aws_rig import LiveRig

    return LiveRig(folder, lambda: None)


def _gcp_live(folder: Path, make: Callable[[str], Any]) -> Rig:
    from fakes.gcp_rig import LiveRig

    return LiveRig(folder, make)


_Make = Callable[[Path, Callable[[str], Any]], Rig]
_LIVE: dict[str, _Make] = {"AWS": _live, "GCP": _gcp_live}
LIVE: dict[str, _Make] = {
    f"{cloud.lower()}-live": make
    for cloud, make in _LIVE.items()
    if os.environ.get(f"SPOTHOP_{cloud}_LIVE") == "1"  # noqa: TID251  the tests' own switch
}
RIGS: dict[str, _Make] = LIVE or {
    "local": LocalRig,
    "fake": FakeRig,
    "aws": _aws,
    "azure": _azure,
    "gcp": _gcp,
}
