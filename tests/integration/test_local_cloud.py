"""The local cloud with real processes: whatever a VM does, nothing of it outlives its end."""

from __future__ import annotations

import dataclasses
import errno
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest

from spothop.wire import AgentConfig, Dialect
from spothop_master.clouds.base import (
    OWNER_TAG,
    BadRequest,
    CloudVmState,
    LaunchSpec,
    NoCapacity,
    PriceTooHigh,
    Unavailable,
    Vm,
)
from spothop_master.clouds.local import driver
from spothop_master.clouds.local.config import LocalConfig
from spothop_master.clouds.local.disk import VmFolder
from spothop_master.clouds.local.driver import LocalCloud
from spothop_master.core.evidence import EndCause
from support import waiting
from support.require import need_namespaces

STANDIN = Path(__file__).with_name("standin_agent.py")
OWNER = "tests"

LONG_S = 3600.0
"""Of a notice: nobody waits for such a deadline, so what ends before did not end by it."""
RUN = uuid.uuid4().hex


def token(name: str) -> str:
    """Of this process alone: VMs of one token have one id, and whoever buries one of them ends the
    processes of all, wherever they were launched."""
    return f"{name}-{RUN}"


def until(condition: Callable[[], Any]) -> Any:
    """The first true value of the condition; fails when there is none in time."""
    return waiting.until(condition, what="what the line says", poll_s=0.01)


class Rig:
    """A local cloud in a folder of its own, and what its agents reported."""

    def __init__(self, folder: Path, isolation: str = "processes") -> None:
        self.folder = folder
        self.isolation = isolation
        self.report = folder / "report.jsonl"
        self.report.touch()
        self.master = "http://127.0.0.1:9"
        self.clouds: list[LocalCloud] = []

    def cloud(self, mode: str = "watch", **settings: Any) -> LocalCloud:
        self.clouds.append(LocalCloud(self.config(mode, **settings)))
        return self.clouds[-1]

    def config(self, mode: str = "watch", *, keep_s: float = 3600.0, **pool: Any) -> LocalConfig:
        settings = {
            "region": "r",
            "zone": "z",
            "vm": "small",
            "dialect": "gcp",
            "price": 0.2,
            "on_demand_price": 0.6,
            "grace_s": 1.0,
            "allocation_s": [0.02, 0.05],
            "boot_s": [0.02, 0.05],
        }
        return LocalConfig.model_validate(
            {
                "directory": self.folder / "cloud",
                "pools": [settings | pool],
                "isolation": self.isolation,
                "environment": ["HF_*"],
                "keep_s": keep_s,
                "agent_command": [sys.executable, str(STANDIN), mode, str(self.report)],
            }
        )

    def spec(self, cloud: LocalCloud, *, spot: bool = True) -> LaunchSpec:
        [info] = [info for info in cloud.pools() if info.pool.spot is spot]
        user_data = AgentConfig(
            master=self.master, token="join", vm="vm-1", dialect=Dialect.AWS, directory="/unset"
        )
        return LaunchSpec(pool=info.pool, user_data=user_data, tags={OWNER_TAG: OWNER})

    def launch(self, cloud: LocalCloud, name: str = "t1", *, spot: bool = True) -> Vm:
        return cloud.launch(self.spec(cloud, spot=spot), token(name))

    def reports(self, event: str) -> list[dict[str, Any]]:
        lines = self.report.read_text(encoding="utf-8").splitlines()
        return [item for item in map(json.loads, lines) if item["event"] == event]

    def processes(self) -> list[int]:
        """Every process of every VM, found by our own means: their arguments name our folder."""
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and str(self.folder).encode() in (
                    entry / "cmdline"
                ).read_bytes().replace(b"\0", b" "):
                    found.append(int(entry.name))
        return found

    def vm_folder(self, vm: Vm) -> VmFolder:
        return VmFolder(self.folder / "cloud" / "vms" / vm.id)

    def ended(self, cloud: LocalCloud, vm: Vm) -> Vm:
        """The VM once it has ended; at that very moment none of its own processes is left."""
        until(lambda: state_of(cloud, vm).state is CloudVmState.TERMINATED)
        assert not [pid for pid in self.processes() if b"standin" in cmdline(pid)]
        assert not self.vm_folder(vm).disk.exists()
        return state_of(cloud, vm)

    def tear_down(self) -> None:
        for cloud in self.clouds:
            for vm in cloud.list(OWNER):
                cloud.terminate(vm.id)
        for cloud in self.clouds:
            until(lambda c=cloud: all(vm.ended_at for vm in c.list(OWNER)))  # type: ignore[misc]
        until(lambda: not self.processes())


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def state_of(cloud: LocalCloud, vm: Vm) -> Vm:
    [found] = [item for item in cloud.list(OWNER) if item.id == vm.id]
    return found


@pytest.fixture(params=["processes", "namespaces"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    if request.param == "namespaces":
        need_namespaces()
    made = Rig(tmp_path, request.param)
    yield made
    made.tear_down()


@pytest.fixture
def plain_rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.tear_down()


@pytest.mark.parametrize("dialect", ["aws", "azure", "gcp"])
def test_a_preemption_is_announced_in_the_dialect_and_ends_everything(
    rig: Rig, dialect: str
) -> None:
    cloud = rig.cloud(dialect=dialect, grace_s=LONG_S)
    vm = rig.launch(cloud)
    assert (vm.state, vm.running_at, vm.token) == (CloudVmState.PENDING, None, token("t1"))
    until(lambda: rig.reports("grandchild") and rig.reports("master"))
    running = state_of(cloud, vm)
    assert running.state is CloudVmState.RUNNING
    assert running.running_at is not None
    asked_at = time.time()
    cloud.preempt(vm.id)
    [notice] = until(lambda: rig.reports("notice"))
    assert_announced(dialect, notice["text"], asked_at + LONG_S)
    cloud.preempt(vm.id, 0.1)
    last = rig.ended(cloud, vm)
    assert last.cause is EndCause.PREEMPTED
    assert last.ended_at is not None
    assert notice["at"] < last.ended_at.timestamp()


def test_a_preempted_vm_lives_to_its_deadline(rig: Rig) -> None:
    cloud = rig.cloud(grace_s=1.0)
    vm = rig.launch(cloud)
    until(lambda: rig.reports("master"))
    asked_at = time.time()
    cloud.preempt(vm.id)
    last = rig.ended(cloud, vm)
    assert last.cause is EndCause.PREEMPTED
    assert last.ended_at is not None
    assert last.ended_at.timestamp() - asked_at >= 1.0


def assert_announced(dialect: str, text: str, deadline: float) -> None:
    """Clouds announce whole seconds; the deadline is the earliest one that can have been meant."""
    if dialect == "gcp":
        assert text == "TRUE"
        return
    content = json.loads(text)
    if dialect == "aws":
        named = datetime.fromisoformat(content["time"].replace("Z", "+00:00"))
    else:
        assert content["Resources"] == ["vm-1"]
        named = parsedate_to_datetime(content["NotBefore"])
    assert -1.0 <= named.timestamp() - deadline <= waiting.WITHIN_S


def test_the_agent_gets_its_configuration_and_an_endpoint(rig: Rig) -> None:
    vm = rig.launch(rig.cloud())
    [up] = until(lambda: rig.reports("up"))
    assert up["cwd"] == str(rig.vm_folder(vm).disk)
    config = AgentConfig.model_validate(up["config"])
    assert config.dialect is Dialect.GCP
    assert config.directory == str(rig.vm_folder(vm).disk / "agent")
    if rig.isolation == "namespaces":
        assert config.metadata == "http://169.254.169.254"
        assert up["ppid"] == 1
    else:
        assert config.metadata.startswith("http://127.0.0.1:")


def test_a_vm_gets_no_variable_that_nobody_named(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "SPOTHOP_MASTER_DATABASE_URL", "LD_PRELOAD_OPTIONS"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("HF_TOKEN", "named by the configuration")
    rig.launch(rig.cloud("release"))
    [up] = until(lambda: rig.reports("up"))
    ours = {"CUDA_VISIBLE_DEVICES", "HF_TOKEN", "PATH", "HOME", "SPOTHOP_LOCAL_VM"}
    assert ours <= set(up["environment"])
    assert not {"AWS_SECRET_ACCESS_KEY", "LD_PRELOAD_OPTIONS"} & set(up["environment"])
    assert not [name for name in up["environment"] if name.startswith("SPOTHOP_MASTER_")]


def test_a_vm_reaches_the_master_on_its_own_address(rig: Rig) -> None:
    class Master(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"the master")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Master) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            rig.master = f"http://127.0.0.1:{server.server_port}"
            rig.launch(rig.cloud())
            [seen] = until(lambda: rig.reports("master"))
        finally:
            server.shutdown()
            thread.join()
    assert seen["answer"] == "the master"


def test_termination_asks_the_agent_first_and_then_kills(rig: Rig) -> None:
    cloud = rig.cloud()
    vm = rig.launch(cloud)
    until(lambda: rig.reports("master"))
    cloud.terminate(vm.id)
    last = rig.ended(cloud, vm)
    assert last.cause is EndCause.TERMINATED
    assert rig.reports("sigterm")
    cloud.terminate(vm.id)


def test_a_dead_agent_is_restarted(rig: Rig) -> None:
    cloud = rig.cloud("crash")
    vm = rig.launch(cloud)
    until(lambda: len(rig.reports("up")) == 3)
    assert state_of(cloud, vm).state is CloudVmState.RUNNING


def test_a_released_agent_is_not_restarted_and_the_vm_stays(plain_rig: Rig) -> None:
    cloud = plain_rig.cloud("release")
    vm = plain_rig.launch(cloud)
    console = plain_rig.vm_folder(vm).console
    until(lambda: "it is released" in console.read_text(encoding="utf-8"))
    assert len(plain_rig.reports("up")) == 1
    assert state_of(cloud, vm).state is CloudVmState.RUNNING
    cloud.terminate(vm.id)
    assert plain_rig.ended(cloud, vm).cause is EndCause.TERMINATED


@pytest.mark.parametrize("killed", [1, 2])
def test_a_vm_whose_supervisor_is_killed_ends_as_failed(rig: Rig, killed: int) -> None:
    """Alone, or together with the VM's first process, so that no ancestor is left to ask."""
    cloud = rig.cloud()
    vm = rig.launch(cloud)
    until(lambda: rig.reports("grandchild"))
    supervisors = [pid for pid in rig.processes() if b"supervisor" in cmdline(pid)]
    for pid in sorted(supervisors)[:killed]:
        os.kill(pid, signal.SIGSTOP)
    for pid in sorted(supervisors)[:killed]:
        os.kill(pid, signal.SIGKILL)
    assert rig.ended(cloud, vm).cause is EndCause.FAILED
    with pytest.raises(BadRequest, match="has ended"):
        cloud.preempt(vm.id)


def test_a_disk_that_cannot_be_wiped_holds_up_no_other_vm(
    plain_rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = plain_rig.cloud()
    vm = plain_rig.launch(cloud)
    until(lambda: plain_rig.reports("master"))

    def refuse(folder: VmFolder) -> None:
        raise OSError(errno.EBUSY, "something is mounted there")

    monkeypatch.setattr(VmFolder, "wipe", refuse)
    for pid in plain_rig.processes():
        if b"supervisor" in cmdline(pid):
            os.kill(pid, signal.SIGKILL)
    until(lambda: state_of(cloud, vm).state is CloudVmState.TERMINATED)
    assert state_of(cloud, vm).cause is EndCause.FAILED
    monkeypatch.undo()


def test_when_only_the_first_process_dies_the_vm_fails(rig: Rig) -> None:
    cloud = rig.cloud()
    vm = rig.launch(cloud)
    until(lambda: rig.reports("grandchild"))
    first = max(pid for pid in rig.processes() if b"supervisor" in cmdline(pid))
    os.kill(first, signal.SIGKILL)
    assert rig.ended(cloud, vm).cause is EndCause.FAILED


def test_an_announced_preemption_may_come_early_and_azure_may_be_told_to_go_on(
    plain_rig: Rig,
) -> None:
    cloud = plain_rig.cloud(dialect="azure", grace_s=LONG_S)
    early = plain_rig.launch(cloud)
    until(lambda: plain_rig.reports("master"))
    asked_at = time.time()
    cloud.preempt(early.id)
    [notice] = until(lambda: plain_rig.reports("notice"))
    assert_announced("azure", notice["text"], asked_at + LONG_S)
    sooner_at = time.time()
    cloud.preempt(early.id, 0.6)
    assert plain_rig.ended(cloud, early).cause is EndCause.PREEMPTED  # not only at its deadline
    assert time.time() - sooner_at > 0.5

    Path(f"{plain_rig.report}.acknowledge").touch()
    acknowledged = plain_rig.launch(cloud, "t2")
    until(lambda: len(plain_rig.reports("master")) == 2)
    cloud.preempt(acknowledged.id)
    assert plain_rig.ended(cloud, acknowledged).cause is EndCause.PREEMPTED


def test_a_preemption_with_a_shorter_notice_announces_that(plain_rig: Rig) -> None:
    cloud = plain_rig.cloud(dialect="aws", grace_s=LONG_S)
    vm = plain_rig.launch(cloud)
    until(lambda: plain_rig.reports("master"))
    asked_at = time.time()
    cloud.preempt(vm.id, LONG_S / 2)
    [notice] = until(lambda: plain_rig.reports("notice"))
    assert_announced("aws", notice["text"], asked_at + LONG_S / 2)
    cloud.preempt(vm.id, 0.05)
    assert plain_rig.ended(cloud, vm).cause is EndCause.PREEMPTED


def test_a_preemption_without_notice_announces_nothing(plain_rig: Rig) -> None:
    cloud = plain_rig.cloud(grace_s=LONG_S)
    vm = plain_rig.launch(cloud)
    until(lambda: plain_rig.reports("master"))
    cloud.preempt(vm.id, 0.0)
    assert plain_rig.ended(cloud, vm).cause is EndCause.PREEMPTED
    assert plain_rig.reports("notice") == []


def test_only_the_scripted_launch_is_preempted_and_never_on_demand(plain_rig: Rig) -> None:
    script = [{"launch": 2, "after_s": 0.1, "notice_s": 0.1}]
    cloud = plain_rig.cloud(grace_s=LONG_S, preemptions=script)
    on_demand = [plain_rig.launch(cloud, f"d{n}", spot=False) for n in range(2)]
    first, second = plain_rig.launch(cloud, "s1"), plain_rig.launch(cloud, "s2")
    assert plain_rig.launch(cloud, "s1").id == first.id
    until(lambda: state_of(cloud, second).cause is EndCause.PREEMPTED)
    for vm in (first, *on_demand):  # these may still be starting
        until(lambda vm=vm: state_of(cloud, vm).state is not CloudVmState.PENDING)
        assert state_of(cloud, vm).state is CloudVmState.RUNNING


def test_capacity_counts_live_spot_vms_and_refusals_come_first(plain_rig: Rig) -> None:
    cloud = plain_rig.cloud(capacity=1, refuse=2)
    for refusal in (1, 2):
        with pytest.raises(NoCapacity, match=f"refusal {refusal} of 2"):
            plain_rig.launch(cloud)
    vm = plain_rig.launch(cloud)
    with pytest.raises(NoCapacity, match="1 of 1 VMs taken"):
        plain_rig.launch(cloud, "t2")
    plain_rig.launch(cloud, "t3", spot=False)
    cloud.terminate(vm.id)
    until(lambda: state_of(cloud, vm).ended_at)
    plain_rig.launch(cloud, "t2")


@pytest.mark.parametrize("stays", [False, True])
def test_a_launch_may_be_accepted_and_refused_later(plain_rig: Rig, stays: bool) -> None:
    cloud = plain_rig.cloud(fail=1, keep_failed=stays)
    vm = plain_rig.launch(cloud)
    assert (vm.state, vm.error) == (CloudVmState.PENDING, None)
    until(lambda: isinstance(state_of(cloud, vm).error, NoCapacity))
    if stays:
        assert state_of(cloud, vm).state is CloudVmState.PENDING
        cloud.terminate(vm.id)
    ended = plain_rig.ended(cloud, vm)
    assert (ended.running_at, type(ended.error)) == (None, NoCapacity)
    assert plain_rig.reports("up") == []
    second = plain_rig.launch(cloud, "t2")
    until(lambda: state_of(cloud, second).state is CloudVmState.RUNNING)
    assert state_of(cloud, second).error is None


def test_a_preempted_vm_may_vanish_and_its_record_stays(plain_rig: Rig) -> None:
    config = plain_rig.config(grace_s=LONG_S).model_copy(update={"list_preempted": False})
    cloud = LocalCloud(config)
    plain_rig.clouds.append(cloud)
    vm, other = plain_rig.launch(cloud), plain_rig.launch(cloud, "t2")
    assert cloud.end_cause(vm.id) is None
    until(lambda: state_of(cloud, vm).state is CloudVmState.RUNNING)
    cloud.preempt(vm.id, 0.0)
    until(lambda: [each.id for each in cloud.list(OWNER)] == [other.id])
    assert cloud.end_cause(vm.id) is EndCause.PREEMPTED
    assert cloud.end_cause("lvm-0000000000000000") is None


def test_a_price_cap_is_kept(plain_rig: Rig) -> None:
    cloud = plain_rig.cloud()
    spec = dataclasses.replace(plain_rig.spec(cloud), max_price=0.1)
    with pytest.raises(PriceTooHigh, match=r"more than 0\.1"):
        cloud.launch(spec, token("t1"))


@pytest.mark.parametrize(
    ("asked", "told"), [({"image": "ami-1"}, "boots no image"), ({"disk_gb": 10**9}, "a disk of")]
)
def test_what_a_process_on_this_machine_cannot_have_is_refused(
    plain_rig: Rig, asked: dict[str, Any], told: str
) -> None:
    cloud = plain_rig.cloud()
    with pytest.raises(BadRequest, match=told):
        cloud.launch(dataclasses.replace(plain_rig.spec(cloud), **asked), token("t1"))
    assert cloud.list(OWNER) == []
    assert cloud.launch(dataclasses.replace(plain_rig.spec(cloud), disk_gb=1), token("t1"))


def test_one_token_makes_one_vm_over_threads_and_drivers(plain_rig: Rig) -> None:
    clouds = [plain_rig.cloud("release") for _ in range(2)]
    with ThreadPoolExecutor(8) as pool:
        vms = list(pool.map(lambda n: plain_rig.launch(clouds[n % 2]), range(16)))
    assert len({vm.id for vm in vms}) == 1
    assert len(clouds[0].list(OWNER)) == 1
    until(lambda: plain_rig.reports("up"))
    assert len(plain_rig.reports("up")) == 1


def test_what_a_full_disk_left_of_a_launch_goes_with_the_next_order(
    plain_rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    cloud = plain_rig.cloud()
    vm = plain_rig.launch(cloud, "kept")
    with monkeypatch.context() as patch:
        patch.setattr(VmFolder, "write_spec", full)
        with pytest.raises(Unavailable):
            plain_rig.launch(cloud, "never asked for again")
    folders = {path.parent.name for path in plain_rig.folder.glob("**/doorbell")}
    assert len(folders) == 2
    cloud.terminate(vm.id)
    assert {path.parent.name for path in plain_rig.folder.glob("**/doorbell")} == {vm.id}


def test_a_driver_that_dies_in_a_launch_leaves_no_vm_or_one_that_failed(
    plain_rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> int:
        raise Killed

    cloud = plain_rig.cloud()
    with monkeypatch.context() as patch:
        patch.setattr(VmFolder, "write_state", die)
        with pytest.raises(Killed):
            plain_rig.launch(cloud, "before")
    with monkeypatch.context() as patch:
        patch.setattr(driver, "_start_supervisor", die)
        with pytest.raises(Killed):
            plain_rig.launch(cloud, "after")
    [left] = plain_rig.cloud().list(OWNER)
    assert (left.token, left.state, left.cause) == (
        token("after"),
        CloudVmState.TERMINATED,
        EndCause.FAILED,
    )
    assert plain_rig.launch(cloud, "after") == left
    assert plain_rig.launch(cloud, "before").state is CloudVmState.PENDING


def test_vms_outlive_the_process_that_launched_them(plain_rig: Rig) -> None:
    cloud = plain_rig.cloud()
    spec = plain_rig.spec(cloud)
    program = (
        "import sys; from spothop.wire import *; from spothop_master.clouds.base import *; "
        "from spothop_master.clouds.local.config import LocalConfig; "
        "from spothop_master.clouds.local.driver import LocalCloud; "
        "config, pool, user, token = sys.argv[1:]; "
        "LocalCloud(LocalConfig.model_validate_json(config)).launch(LaunchSpec("
        "pool=Pool.model_validate_json(pool), "
        "user_data=AgentConfig.model_validate_json(user), tags={OWNER_TAG: 'tests'}), token)"
    )
    arguments = [
        plain_rig.config().model_dump_json(),
        spec.pool.model_dump_json(),
        spec.user_data.model_dump_json(),
        token("t1"),
    ]
    subprocess.run([sys.executable, "-c", program, *arguments], check=True)
    until(lambda: plain_rig.reports("up"))
    [vm] = cloud.list(OWNER)
    assert vm.state is CloudVmState.RUNNING


def test_ended_vms_are_forgotten_but_their_tokens_are_not(plain_rig: Rig) -> None:
    cloud = plain_rig.cloud(keep_s=0.0)
    vm = plain_rig.launch(cloud)
    cloud.terminate(vm.id)
    until(lambda: cloud.list(OWNER) == [])
    assert not plain_rig.vm_folder(vm).path.exists()
    with pytest.raises(BadRequest, match="no longer listed"):
        plain_rig.launch(cloud)


def test_an_unusable_directory_is_unavailable(plain_rig: Rig) -> None:
    (plain_rig.folder / "cloud").touch()
    cloud = plain_rig.cloud()
    plain_rig.clouds.clear()
    with pytest.raises(Unavailable, match="cannot be used"):
        plain_rig.launch(cloud)


def test_the_supervisor_is_small_and_starts_fast(plain_rig: Rig) -> None:
    """Heavy imports would cost every VM; pydantic alone takes longer than all the rest."""
    program = (
        "import sys, spothop_master.clouds.local.vm_supervisor; "
        "sys.exit(bool({'pydantic', 'httpx', 'yaml', 'sqlalchemy', 'fastapi'} & set(sys.modules)))"
    )
    assert subprocess.call([sys.executable, "-c", program]) == 0
