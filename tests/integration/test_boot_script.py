"""The user data, really run: by dash, against a real master with TLS, until the agent joins."""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from fakes.azure import Emulator
from fakes.azure.group import GROUP_ID, vm_body
from fakes.azure_rig import DEPLOY
from fakes.fake_azure_metadata import FakeAzureMetadata
from fakes.http_master import BUNDLE, BUNDLE_SHA256
from fakes.served_master import ServedMaster, served_master
from spothop.wire import AgentConfig, Dialect
from spothop_agent.agent import STOPPED
from spothop_master.boot import user_data
from spothop_master.boot.agent_zip import PORTABLE, native_tag
from spothop_master.clouds.azure.driver import VMS
from spothop_master.store.schema import VmRow
from support.waiting import until

SHELLS = [name for name in ("dash", "busybox") if shutil.which(name)]
TOOLS = (
    "cat",
    "chmod",
    "cp",
    "date",
    "grep",
    "kill",
    "mkdir",
    "mv",
    "nohup",
    "rm",
    "sleep",
    "touch",
    "tr",
)
"""Of POSIX, as every image has them; dash has echo, printf, read, test and command built in."""


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedMaster]:
    with served_master(tmp_path_factory.mktemp("home")) as served:
        served.services.agent_zips.current()
        yield served


class BootedVm:
    """What a cloud makes of user data; its processes are ended with it."""

    def __init__(self, folder: Path, config: AgentConfig, zips: dict[str, str]) -> None:
        self.directory = folder / "spothop"
        self.config = config.model_copy(update={"directory": str(self.directory)})
        self.script = folder / "user-data"
        self.script.write_text(user_data.render(self.config, zips))
        self.cloud_init = folder / "cloud"
        self.bin = folder / "bin"
        self.bin.mkdir()
        for tool in TOOLS:
            self.give(tool, str(shutil.which(tool)))
        self.give("python3", sys.executable)
        self.tell("shutdown", "poweroff")

    def give(self, name: str, path: str) -> None:
        (self.bin / name).symlink_to(path)

    def tell(self, *names: str, code: int = 0) -> None:
        """Programs that only write down how they were called."""
        for name in names:
            program = self.bin / name
            program.unlink(missing_ok=True)  # a link: its target is the machine's own
            program.write_text(f'#!/bin/sh\necho {name} "$@" >>"{self.bin}/told"\nexit {code}\n')
            program.chmod(0o755)

    @property
    def told(self) -> str:
        told = self.bin / "told"
        return told.read_text() if told.exists() else ""

    @property
    def log(self) -> str:
        log = self.directory / "boot.log"
        return log.read_text() if log.exists() else ""

    def boot(
        self, shell: str = "dash", *, inside: tuple[str, ...] = (), **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """With the tools in `bin` alone: the script adds the usual folders to PATH, so it is
        given another place for them, and for cloud-init's: this machine may have one. `inside`:
        a command that runs the one after it."""
        text = self.script.read_text().replace(":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "")
        text = text.replace("/var/lib/cloud/", f"{self.cloud_init}/")
        self.script.write_text(text)
        command = [str(shutil.which(shell)), *(["sh"] if shell == "busybox" else [])]
        return subprocess.run(
            [*inside, *command, str(self.script)],
            env={"PATH": str(self.bin), **environ},
            capture_output=True,
            text=True,
            check=False,
        )

    def pid(self) -> int:
        return int((self.directory / "run.pid").read_text())

    def end(self) -> None:
        """The loop first, or it would start the agent again; then all that has our folder in its
        command line."""
        ours = str(self.directory)
        for _ in range(3):
            for entry in Path("/proc").iterdir():
                try:
                    if entry.name.isdecimal() and ours in (entry / "cmdline").read_text():
                        os.kill(int(entry.name), signal.SIGKILL)
                except (OSError, UnicodeDecodeError):
                    continue


@pytest.fixture
def booted(master: ServedMaster, tmp_path: Path) -> Iterator[Callable[..., BootedVm]]:
    """A VM that the supervise loop has asked for."""
    made: list[BootedVm] = []

    def boot(zips: dict[str, str] | None = None, **config: object) -> BootedVm:
        current = dict(master.services.agent_zips.current().by_tag)
        spec = AgentConfig(
            master=master.url,
            token="t",
            vm="vm-1",
            dialect=Dialect.AWS,
            directory="/",
            ca=master.ca,
        )
        vm = BootedVm(tmp_path, spec.model_copy(update=config), zips or current)
        made.append(vm)
        return vm

    yield boot
    for vm in made:
        vm.end()


def config_of_a_launch(master: ServedMaster) -> dict[str, object]:
    """A job is submitted, and its VM asked for: token and name of it."""
    token = (master.settings.home / "admin.token").read_text().strip()
    with httpx.Client(
        base_url=f"{master.url}/api/v1",
        headers={"Authorization": f"Bearer {token}"},
        verify=ssl.create_default_context(cadata=master.ca),
    ) as client:
        client.put(f"/bundles/{BUNDLE_SHA256}", content=BUNDLE).raise_for_status()
        spec, token = {"name": "n", "run": "true"}, os.urandom(8).hex()
        body = {"spec": spec, "bundle": BUNDLE_SHA256, "token": token}
        client.post("/jobs", json=body).raise_for_status()
    until(
        lambda: master.services.supervisor.run_once() or master.cloud.launches,
        what="a VM is asked for",
    )
    launched = master.cloud.launches[-1].user_data
    return {"token": launched.token, "vm": launched.vm}


def joined(master: ServedMaster, vm: str) -> bool:
    with master.services.db.read() as session:
        return session.get_one(VmRow, vm).joined_at is not None


@pytest.mark.parametrize("shell", SHELLS)
def test_a_vm_boots_until_its_agent_joins(
    master: ServedMaster, booted: Callable[..., BootedVm], shell: str
) -> None:
    vm = booted(**config_of_a_launch(master))
    vm.give("curl", str(shutil.which("curl")))
    done = vm.boot(shell)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), vm.log
    until(lambda: joined(master, vm.config.vm), what="the agent joins", details=lambda: vm.log)
    assert vm.log.splitlines()[0].endswith(f"boot: VM {vm.config.vm}, master {master.url}")
    for name in ("agent.json", "boot.log", "over.sh", "run.sh"):
        assert stat.S_IMODE((vm.directory / name).stat().st_mode) == 0o600, name
    runs = vm.pid()
    again = vm.boot(shell)  # as after a restart of the VM
    assert (again.returncode, vm.pid()) == (0, runs)
    assert "it runs already" in vm.log


# --- with an agent that does nothing, so that a case is over at once ------------------------------

STANDIN = """
import os, pathlib, sys
if sys.argv[1:] == ["--help"]:
    sys.exit(BROKEN)
folder = pathlib.Path(sys.argv[2]).parent
runs = folder / "runs"
with open(runs, "a") as file:
    file.write(os.environ["NO_PROXY"] + " " + os.environ["HOME"] + "\\n")
assert os.environ["no_proxy"] == os.environ["NO_PROXY"]
codes = CODES
os._exit(codes[min(len(runs.read_text().splitlines()), len(codes)) - 1])
"""


def stand_in(master: ServedMaster, *codes: int, broken: int = 0, **more: str) -> str:
    """A zip that the master serves, whose agent ends with these codes one after the other; its
    SHA-256."""
    folder = master.settings.home / "agents"
    aside = folder / "aside"
    text = STANDIN.replace("CODES", repr(codes)).replace("BROKEN", str(broken))
    with zipfile.ZipFile(aside, "w") as archive:
        for name, content in {"__main__.py": text, **more}.items():
            archive.writestr(name, content)
    found = sha256(aside.read_bytes()).hexdigest()
    aside.replace(folder / f"{found}.zip")
    return found


def home_of(vm: BootedVm) -> str:
    """Where nobody has set one."""
    return "/root" if os.access("/root", os.W_OK) else f"{vm.directory}/home"


def over(vm: BootedVm) -> str:
    """What was done when the agent was not started again."""
    return until(lambda: vm.told, what="the VM ends itself", details=lambda: vm.log)


@pytest.mark.parametrize("tool", ["curl", "wget", "python3"])
def test_one_tool_is_enough(
    master: ServedMaster, booted: Callable[..., BootedVm], tool: str
) -> None:
    vm = booted({native_tag(): stand_in(master, 3)})
    if tool != "python3":
        vm.give(tool, str(shutil.which(tool)))
    assert (
        vm.boot(http_proxy="http://127.0.0.1:1", https_proxy="http://127.0.0.1:1").returncode == 0
    )
    assert "no answer" not in vm.log
    assert over(vm) == "shutdown -h +10\n"  # refused: its master ends it, or it ends itself
    runs = (vm.directory / "runs").read_text()
    assert runs == f"169.254.169.254,metadata.google.internal {home_of(vm)}\n"


def test_a_list_with_spaces_of_what_needs_no_proxy_keeps_no_agent_from_its_start(
    master: ServedMaster, booted: Callable[..., BootedVm]
) -> None:
    vm = booted({native_tag(): stand_in(master, 3)})
    assert vm.boot(NO_PROXY="localhost, 10.0.0.1").returncode == 0
    over(vm)
    runs = (vm.directory / "runs").read_text()
    told = "169.254.169.254,metadata.google.internal,localhost,10.0.0.1"
    assert runs == f"{told} {home_of(vm)}\n"


HOSTILE = """a;touch hacked,$(touch${IFS}hacked),`touch hacked`,'b',"c",\\,%n,*,\xe4|x&y#z"""


@pytest.mark.parametrize("shell", SHELLS)
def test_no_value_of_the_vms_own_runs_as_a_program(
    master: ServedMaster, booted: Callable[..., BootedVm], shell: str
) -> None:
    vm = booted({native_tag(): stand_in(master, 3)})
    programs = vm.bin / "my $PATH's; touch hacked" / "bin"
    programs.mkdir(parents=True)
    (vm.bin / "python3").rename(programs / "python3")
    home = f"/no such;home {HOSTILE}"
    done = vm.boot(shell, NO_PROXY=HOSTILE, HOME=home, PATH=f"{vm.bin}:{programs}")
    assert (done.returncode, done.stderr) == (0, ""), vm.log
    over(vm)
    (runs,) = (vm.directory / "runs").read_text().splitlines()
    told = "".join(HOSTILE.split())
    assert runs == f"169.254.169.254,metadata.google.internal,{told} {home}"
    assert not [*vm.directory.rglob("hacked*"), *Path.cwd().glob("hacked*")]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_a_full_disk_is_told_on_the_console_and_starts_nothing(
    master: ServedMaster, booted: Callable[..., BootedVm]
) -> None:
    vm = booted({native_tag(): stand_in(master, 3)})
    vm.directory.mkdir()
    console = vm.bin / "console"
    console.touch()
    mounts = (
        f"mount --bind {console} /dev/console && "
        f"mount -t tmpfs -o size=4k none {vm.directory} && "
        f'head -c 4096 /dev/zero >{vm.directory}/full; exec "$@"'
    )
    inside = (str(shutil.which("unshare")), "-m", "/bin/sh", "-c", mounts, "-")
    done = vm.boot(
        inside=(*inside, "/usr/bin/env", f"PATH={vm.bin}"), PATH=os.defpath + ":/usr/sbin:/sbin"
    )
    assert done.returncode == 1
    assert "cannot be written: is the disk full, or read-only?" in console.read_text()
    assert vm.told == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_a_hardened_image_boots(master: ServedMaster, booted: Callable[..., BootedVm]) -> None:
    """No program starts from /tmp, /root is read-only, and nobody has set HOME."""
    vm = booted(**config_of_a_launch(master))
    vm.give("curl", str(shutil.which("curl")))
    root = str(vm.directory.parent)  # the VM's disk, which may be in /tmp here
    mounts = (
        f"mount --bind /tmp /tmp && mount --bind {root} {root} && "
        "mount -o remount,bind,noexec,nosuid,nodev /tmp && "
        "mount --bind /root /root && mount -o remount,bind,ro /root && "
        'unset HOME; exec "$@"'
    )
    inside = (str(shutil.which("unshare")), "-m", "/bin/sh", "-c", mounts, "-")
    done = vm.boot(
        inside=(*inside, "/usr/bin/env", f"PATH={vm.bin}"), PATH=os.defpath + ":/usr/sbin:/sbin"
    )
    assert (done.returncode, done.stderr) == (0, ""), vm.log
    until(lambda: joined(master, vm.config.vm), what="the agent joins", details=lambda: vm.log)
    assert f"HOME={vm.directory}/home" in (vm.directory / "agent.sh").read_text()
    assert (vm.directory / "home").is_dir()


def test_an_agent_that_was_only_stopped_is_started_again_and_ends_no_vm(
    master: ServedMaster, booted: Callable[..., BootedVm]
) -> None:
    vm = booted({native_tag(): stand_in(master, STOPPED, 3)})
    vm.tell("sleep")
    assert vm.boot().returncode == 0
    until(lambda: "shutdown" in vm.told, what="the VM ends itself")
    assert len((vm.directory / "runs").read_text().splitlines()) == 2


def test_an_agent_that_dies_is_started_again_until_it_is_released(
    master: ServedMaster, booted: Callable[..., BootedVm]
) -> None:
    vm = booted({native_tag(): stand_in(master, 1, 137, 0)})
    vm.tell("sleep")
    assert vm.boot().returncode == 0
    until(lambda: "shutdown" in vm.told, what="the VM ends itself")
    assert len((vm.directory / "runs").read_text().splitlines()) == 3
    assert "it is started again" in (vm.directory / "agent.log").read_text()


def test_cloud_init_starts_the_agent_at_the_next_start_of_the_vm(
    master: ServedMaster, booted: Callable[..., BootedVm]
) -> None:
    """Where there is no systemd: cloud-init runs user data at the first start only."""
    vm = booted({native_tag(): stand_in(master, 3)})
    starts = vm.cloud_init / "scripts" / "per-boot"
    starts.mkdir(parents=True)
    assert vm.boot().returncode == 0
    over(vm)
    program = starts / "spothop-agent"
    assert stat.S_IMODE(program.stat().st_mode) == 0o700
    again = subprocess.run([str(program)], env={"PATH": str(vm.bin)}, check=False)
    assert again.returncode == 0
    runs = vm.directory / "runs"
    until(lambda: len(runs.read_text().splitlines()) == 2, what="the agent is started again")
    until(lambda: vm.told.count("shutdown") == 2, what="the VM ends itself again")


def test_a_dead_mans_switch_ends_the_vm_now(
    master: ServedMaster, booted: Callable[..., BootedVm]
) -> None:
    vm = booted({native_tag(): stand_in(master, 4)})
    assert vm.boot().returncode == 0
    assert over(vm) == "shutdown -h now\n"


@pytest.mark.parametrize("code", [0, 4])
def test_a_vm_of_azure_deletes_itself_because_a_shutdown_goes_on_costing(
    master: ServedMaster, booted: Callable[..., BootedVm], azure: Emulator, code: int
) -> None:
    """With its own identity, whose role is that of deploy/azure; released, after nine minutes."""
    azure.clock.real = True
    azure.group.make("spothop-1", vm_body("spothop-1"))
    azure.roles = {"the VM's": [json.loads((DEPLOY / "vm.json").read_text("utf-8"))]}
    with FakeAzureMetadata() as metadata:
        metadata.compute = {"resourceId": f"{GROUP_ID}/providers/{VMS}/spothop-1"}
        metadata.tokens = {f"{azure.endpoint}/": "the VM's"}
        vm = booted({native_tag(): stand_in(master, code)}, dialect=Dialect.AZURE)
        text = vm.script.read_text()
        for there, here in (
            ("http://169.254.169.254/metadata", f"{metadata.url}/metadata"),
            ("https://management.azure.com", azure.endpoint),
        ):
            assert there in text
            text = text.replace(there, here)
        vm.script.write_text(text)
        vm.tell("sleep")
        assert vm.boot().returncode == 0
        until(
            lambda: azure.group.lives["spothop-1"].deleted_at,
            what="the VM is deleted",
            details=lambda: vm.log,
        )
        until(lambda: "Azure answers 202" in vm.log, what="it is told")
    assert ("sleep 540" in vm.told) is (code == 0)
    assert "shutdown -h +10" in vm.told, "for the case that Azure does not take it"


def test_bytes_with_another_hash_are_never_run(
    master: ServedMaster, booted: Callable[..., BootedVm]
) -> None:
    right = stand_in(master, 0)
    wrong = right[:-1] + ("0" if right[-1] != "0" else "1")
    folder = master.settings.home / "agents"
    shutil.copy(folder / f"{right}.zip", folder / f"{wrong}.zip")
    vm = booted({native_tag(): wrong}, away_s=2.0)
    vm.tell("sleep")
    assert vm.boot().returncode == 1
    assert f"what came has not the SHA-256 {wrong}" in vm.log
    assert "giving up" in vm.log
    assert "shutdown -h now" in vm.told
    assert not (vm.directory / "runs").exists()


def test_a_master_that_is_away_is_asked_again_and_not_for_ever(
    master: ServedMaster, booted: Callable[..., BootedVm]
) -> None:
    vm = booted(master="https://127.0.0.1:1", away_s=70.0)
    vm.give("curl", str(shutil.which("curl")))
    vm.tell("sleep")
    assert vm.boot().returncode == 1
    pauses = [line.split()[-2] for line in vm.log.splitlines() if "again in" in line]
    assert pauses == ["1", "2", "4", "8", "16", "30"]
    assert "shutdown -h now" in vm.told


def test_a_vm_with_another_python_installs_what_the_list_says(
    master: ServedMaster, booted: Callable[..., BootedVm]
) -> None:
    """And so does one whose own cannot run what was built for it."""
    there = user_data.__file__.replace("user_data.py", "setup_portable.py")
    portable = stand_in(
        master, 3, **{"setup_portable.py": Path(there).read_text(), "agent.txt": "", "uv.txt": ""}
    )
    vm = booted({native_tag(): stand_in(master, broken=1), PORTABLE: portable})
    vm.tell("uv")
    assert vm.boot().returncode == 0, vm.log
    assert "installing from the package index" in vm.log
    assert "--require-hashes" in vm.told
    until(lambda: "shutdown" in vm.told, what="the VM ends itself")


def test_an_image_without_python_is_told(
    master: ServedMaster, booted: Callable[..., BootedVm]
) -> None:
    vm = booted()
    (vm.bin / "python3").unlink()
    assert vm.boot().returncode == 1
    assert "this image has no python3" in vm.log


def test_a_second_run_beside_the_first_does_nothing(
    master: ServedMaster, booted: Callable[..., BootedVm]
) -> None:
    vm = booted()
    vm.directory.mkdir()
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (vm.directory / "boot.pid").write_text(f"{boot_id} {os.getpid()}\n")
    assert vm.boot().returncode == 0
    assert "another run of this script is at it" in vm.log
    assert not (vm.directory / "agent.json").exists()
    (vm.directory / "boot.pid").write_text(f"of-another-start {os.getpid()}\n")
    vm.tell("sleep")
    (vm.bin / "python3").unlink()
    assert vm.boot().returncode == 1  # at work again


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_where_there_is_systemd_it_keeps_the_agent(
    master: ServedMaster, booted: Callable[..., BootedVm], tmp_path: Path
) -> None:
    vm = booted({native_tag(): stand_in(master, 3)})
    vm.tell("systemctl")
    units = tmp_path / "units"
    units.mkdir()
    mounts = (
        "mount -t tmpfs none /run && mkdir -p /run/systemd/system /etc/systemd/system && "
        f'mount --bind {units} /etc/systemd/system && exec "$@"'
    )
    inside = (
        str(shutil.which("unshare")),
        "-m",
        "/bin/sh",
        "-c",
        f"PATH=/usr/bin:/bin:/usr/sbin; {mounts}",
        "-",
    )
    done = vm.boot(inside=(*inside, "/usr/bin/env", f"PATH={vm.bin}"))
    assert (done.returncode, done.stderr) == (0, ""), vm.log
    assert vm.told.splitlines() == [
        "systemctl daemon-reload",
        "systemctl enable --now spothop-agent.service",
    ]
    unit = (units / "spothop-agent.service").read_text()
    assert f"ExecStart=/bin/sh {vm.directory}/agent.sh\n" in unit
    assert "RestartPreventExitStatus=3 4\n" in unit
    assert f'{vm.directory}/over.sh "$EXIT_STATUS"\'\n' in unit
    assert "KillMode=process\n" in unit  # the training process outlives its agent
    assert not (vm.directory / "run.sh").exists()
