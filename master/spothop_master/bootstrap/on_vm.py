"""On the master's VM: restore what there is, start the master as a service, say where the token is.

    python -m spothop_master.bootstrap.on_vm setup FILE     at the first boot
    python -m spothop_master.bootstrap.on_vm backup FILE    by timer, and when the VM shuts down

The admin token is made here, by the master's first start, and never in the user data, which
everybody can read who may describe the VM. From here it goes into a SecureString of SSM's
parameter store: encrypted, with a permission and an audit trail of its own, while the bucket is
read by every job. The authority of the TLS goes there too: whoever reads it over AWS's API need not
believe the first who answers at the address.

All is harmless to repeat.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from spothop.tls import trusting
from spothop_master.bootstrap.backup import Backups
from spothop_master.bootstrap.first_boot import Aws
from spothop_master.clouds.aws.calls import AwsCalls, Caller
from spothop_master.clouds.base import CloudError

USER = "spothop"
BACKUP_EVERY_S = 300
ANSWERS_WITHIN_S = 300
STATUS, CA, TOKEN = "/spothop/status", "/spothop/ca", "/spothop/admin-token"
PARAMETERS = (STATUS, CA, TOKEN)
READY = "ready"


class VmConfig(BaseModel):
    """What the user data says; nothing of it is secret."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    region: str
    bucket: str
    owner: str
    """Of the installation, in the tags of its VMs."""
    address: str
    """The elastic one, at which everybody reaches this master."""
    port: int
    software: str
    """SHA-256 of what is installed here."""
    vm_group: str
    """The security group of the VMs that the master launches."""
    endpoint: str = ""
    metadata: str = ""
    """Where AWS's APIs and this VM's metadata are; for tests."""

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.port}"


class Setup:
    """`root` is where the file system begins; `run` runs a command; for tests."""

    def __init__(
        self,
        config: VmConfig,
        calls: Caller,
        *,
        vm: str,
        python: str = sys.executable,
        root: Path = Path("/"),
        run: Callable[[Sequence[str]], None] = lambda command: _run(command),
        answers: Callable[[VmConfig, Path], bool] = lambda config, ca: _answers(config, ca),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.config = config
        self.home = root / "var/lib/spothop/master"
        self._etc = root / "etc/spothop"
        self._units = root / "etc/systemd/system"
        self._calls = calls
        self._vm = vm
        self._python = python
        self._run = run
        self._answers = answers
        self._sleep = sleep

    def setup(self) -> None:
        """Raises CloudError, OSError, CalledProcessError, TimeoutError."""
        self.tell("restores the newest backup, if there is one")
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        restored = self._backups().restore()
        self.tell("starts the master" + (" from the backup" if restored else ""))
        self._write_files()
        self._start()
        self._wait()
        self._backups().save(datetime.now(timezone.utc))
        self._publish()
        self.tell(READY)

    def backup(self) -> None:
        """Raises CloudError and OSError."""
        self._backups().save(datetime.now(timezone.utc))

    def tell(self, status: str) -> None:
        self._put(STATUS, f"{self._vm} {status}"[:4000])

    def _backups(self) -> Backups:
        config = self.config
        return Backups(self._calls, region=config.region, bucket=config.bucket, home=self.home)

    def _write_files(self) -> None:
        config = self.config
        cloud = {"regions": {config.region: {"security_groups": [config.vm_group]}}}
        if config.endpoint:
            cloud["endpoint_url"] = config.endpoint  # type: ignore[assignment]
        files = {
            self._etc / "aws.yaml": json.dumps(cloud, indent=1) + "\n",  # JSON is YAML
            self._etc / "master.env": _environment(config, self._etc, self.home),
            **{self._units / name: text for name, text in self._unit_files().items()},
        }
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")

    def _unit_files(self) -> dict[str, str]:
        environment = f"{self._etc}/master.env"
        backup = f"{self._python} -m spothop_master.bootstrap.on_vm backup {self._etc}/vm.json"
        serve = f"{self._python} -m spothop_master"
        return {
            "spothop-master.service": _MASTER.format(
                user=USER, environment=environment, command=serve
            ),
            "spothop-backup.service": _BACKUP.format(user=USER, command=backup),
            "spothop-backup.timer": _TIMER.format(every=BACKUP_EVERY_S),
            "spothop-last-backup.service": _LAST.format(user=USER, command=backup),
        }

    def _start(self) -> None:
        try:
            self._run(["id", USER])
        except subprocess.CalledProcessError:
            self._run(["useradd", "--system", "--home-dir", str(self.home.parent), USER])
        self._run(["chown", "-R", f"{USER}:", str(self.home.parent)])
        self._run(["systemctl", "daemon-reload"])
        for unit in ("spothop-last-backup.service", "spothop-master.service"):
            self._run(["systemctl", "enable", unit])
            self._run(["systemctl", "restart" if "master.s" in unit else "start", unit])
        self._run(["systemctl", "enable", "--now", "spothop-backup.timer"])

    def _wait(self) -> None:
        for _ in range(ANSWERS_WITHIN_S):
            if self._answers(self.config, self.home / "tls" / "ca.pem"):
                return
            self._sleep(1.0)
        raise TimeoutError("the master does not answer; see `journalctl -u spothop-master`")

    def _publish(self) -> None:
        self._put(CA, (self.home / "tls" / "ca.pem").read_text("ascii"))
        token = self.home / "admin.token"
        if token.exists():  # it is gone once its admin has revoked it
            self._put(TOKEN, token.read_text("utf-8").strip(), kind="SecureString")

    def _put(self, name: str, value: str, kind: str = "String") -> None:
        what = {"Name": name, "Value": value, "Type": kind, "Overwrite": True}
        self._calls.call("ssm", self.config.region, "put_parameter", **what)


def storage_url(bucket: str, region: str) -> str:
    """Of checkpoints, for VMs that know nothing but the URL: without a region in it S3's client
    asks us-east-1, which refuses the buckets of all others."""
    if region == "us-east-1":
        return f"s3://{bucket}/runs"
    return f"https://{bucket}.s3.{region}.amazonaws.com/runs"


def _environment(config: VmConfig, etc: Path, home: Path) -> str:
    settings = {
        "HOME": home,
        "HOST": "0.0.0.0",
        "PORT": config.port,
        "TLS": "auto",
        "PUBLIC_URL": config.url,
        "CLOUDS": "aws",
        "AWS_CLOUD": etc / "aws.yaml",
        "STORAGE_URL": storage_url(config.bucket, config.region),
        "OWNER": config.owner,
    }
    lines = [f"SPOTHOP_MASTER_{name}={value}\n" for name, value in settings.items()]
    return "".join([*lines, f"AWS_REGION={config.region}\n", "NO_PROXY=169.254.169.254\n"])


_MASTER = """[Unit]
Description=spothop master
Wants=network-online.target
After=network-online.target spothop-last-backup.service
StartLimitIntervalSec=0
[Service]
User={user}
UMask=0077
EnvironmentFile={environment}
ExecStart={command}
Restart=always
RestartSec=2
LimitNOFILE=65536
[Install]
WantedBy=multi-user.target
"""
_BACKUP = """[Unit]
Description=backup of the spothop master to its bucket
[Service]
Type=oneshot
User={user}
UMask=0077
ExecStart={command}
"""
_TIMER = """[Unit]
Description=backup of the spothop master every few minutes
[Timer]
OnActiveSec={every}
OnUnitActiveSec={every}
[Install]
WantedBy=timers.target
"""
# Stopped after the master, because it was started before it, and while there is a network.
_LAST = """[Unit]
Description=last backup of the spothop master, at shutdown
Wants=network-online.target
After=network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
User={user}
UMask=0077
ExecStart=/bin/true
ExecStop={command}
TimeoutStopSec=120
[Install]
WantedBy=multi-user.target
"""


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def _answers(config: VmConfig, ca: Path) -> bool:
    import httpx

    url = f"https://127.0.0.1:{config.port}"
    try:
        answer = httpx.get(f"{url}/healthz", verify=trusting(url, ca.read_text("ascii")))
    except (OSError, ValueError, httpx.HTTPError):
        return False
    return answer.status_code == 200


def _vm_id(config: VmConfig) -> str:
    return Aws(config.model_dump()).about_vm("instance-id")


def main(arguments: Sequence[str]) -> None:
    what, file = arguments
    config = VmConfig.model_validate_json(Path(file).read_text("utf-8"))
    calls = AwsCalls(endpoint_url=config.endpoint or None)
    setup = Setup(config, calls, vm=_vm_id(config) if what == "setup" else "")
    actions: dict[str, Callable[[], Any]] = {"setup": setup.setup, "backup": setup.backup}
    try:
        actions[what]()
    except (CloudError, OSError, subprocess.CalledProcessError, ValueError) as error:
        if what == "setup":
            setup.tell(f"failed: {error}")
        raise SystemExit(f"spothop {what}: {error}") from None


if __name__ == "__main__":
    main(sys.argv[1:])
