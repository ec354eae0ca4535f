"""The user data as a cloud's image runs it: by the real cloud-init of Debian, with Debian's Python.

Needs root, and an image that is made once (support/debian.py): two minutes, and Debian's mirror.

The script is the very one that the master gives a cloud. cloud-init gets it from a metadata
service at 169.254.169.254 that wants sessions (IMDSv2), through its data source for EC2. There is
no systemd here: the script's other way to keep the agent running is what runs, cloud-init itself
starts it again after a reboot, and its stages are called in the order of its units.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fakes.aws.cloud_init_vm import CloudInitVm
from fakes.served_master import ServedMaster, served_master
from spothop.sdk import bundle
from spothop.sdk.client import Client
from spothop.wire import JOB_ENDED
from support import debian
from support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.thorough, pytest.mark.timeout(1800)]

RUN = """\
echo "proxies are not for $NO_PROXY; home is $HOME"
until [ -e /go ]; do sleep 0.2; done
"""
SEEN = "proxies are not for 169.254.169.254,metadata.google.internal; home is /root"
HERE = "/var/lib/spothop"


@pytest.fixture(scope="module")
def image() -> Path:
    return debian.image()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[ServedMaster]:
    with served_master(tmp_path / "home") as served:
        served.cloud.boots_images = True
        yield served


@pytest.fixture
def client(master: ServedMaster) -> Iterator[Client]:
    token = (master.settings.home / "admin.token").read_text().strip()
    with Client(master.url, token, ca=master.ca) as client:
        yield client


def submit(client: Client, folder: Path) -> str:
    code = folder / "code"
    code.mkdir()
    (code / "note.txt").write_text("a job has files\n")
    packed = bundle.pack(code, folder / "code.tar.gz")
    return client.submit({"name": "small", "run": RUN}, client.upload_bundle(packed)).id


def launched(master: ServedMaster) -> tuple[str, str]:
    """The VM that the supervise loop asks for, and its user data as the cloud gets it."""
    ask = master.services.supervisor.run_once
    until(lambda: ask() or master.cloud.launches, what="a VM is asked for")
    launch = master.cloud.launches[-1]
    return launch.user_data.vm, launch.script


def boot(vm: CloudInitVm) -> None:
    code = until(lambda: vm.booted(), what="cloud-init is done", details=vm.told)
    assert code == "0", vm.told()


def test_cloud_init_runs_the_user_data_once_and_the_agent_outlives_a_reboot(
    master: ServedMaster, client: Client, image: Path, tmp_path: Path
) -> None:
    job = submit(client, tmp_path)
    name, script = launched(master)
    turn = master.services.supervisor.run_once
    storage = tmp_path / "home" / "storage"
    storage.mkdir(exist_ok=True)

    def log() -> str:
        turn()
        return "".join(part.text for part in client.logs(job))

    reach = [("127.0.0.1", urlsplit(master.url).port or 0)]
    with CloudInitVm(tmp_path / "vm", image, script, reach=reach, shared=[storage]) as vm:
        boot(vm)
        until(lambda: SEEN in log(), what="the job runs", details=vm.told)
        assert f"boot: VM {name}, master {master.url}" in log()
        for file in ("agent.json", "boot.log", "over.sh", "run.sh", "start.sh", "agent.log"):
            assert stat.S_IMODE(vm.path(f"{HERE}/{file}").stat().st_mode) == 0o600, file
        assert stat.S_IMODE(vm.path(HERE).stat().st_mode) == 0o700
        until(lambda: "boot: started, without systemd" in vm.console, what="the console tells")
        assert f"spothop {name} " in vm.console

        vm.power_off()
        vm.put("/go", "")
        vm.power_on()
        boot(vm)
        until(
            lambda: turn() or client.job(job).state in JOB_ENDED,
            what="the job ends",
            details=vm.told,
        )
        done = client.job(job)
        assert (done.state, done.attempt, done.vm) == ("succeeded", 2, name), vm.told()
        assert log().count(SEEN) == 2, "once in each attempt"
        assert vm.read(f"{HERE}/boot.log").count(f"boot: VM {name}") == 1, vm.told()
        assert len(master.cloud.launches) == 1
