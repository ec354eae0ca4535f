"""The master's VM of `spothop bootstrap`: its first boot, its set-up, its backups. In a folder in
place of the file system's root; what would change the machine is recorded."""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import obstore
import pytest

from spothop.storageoptions import provider_of
from spothop_master.bootstrap import first_boot, software, user_data
from spothop_master.bootstrap.backup import Backups
from spothop_master.bootstrap.on_vm import CA, STATUS, TOKEN, Setup, VmConfig, storage_url
from spothop_master.clouds.aws.config import load
from spothop_master.clouds.base import BadRequest
from spothop_master.settings import read_settings

NOW = datetime(2026, 11, 22, 16, tzinfo=timezone.utc)
KEYS = {"AccessKeyId": "AKIA", "SecretAccessKey": "secret", "Token": "session"}
CONFIG = VmConfig(
    region="us-east-1",
    bucket="b-1",
    owner="spothop-1-us-east-1",
    address="203.0.113.7",
    port=8900,
    software="0" * 64,
    vm_group="sg-1",
)


# --- the first boot -----------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["session", ""])
@pytest.mark.parametrize(("method", "body"), [("GET", b""), ("POST", b'{"a": 1}')])
def test_requests_are_signed_as_the_sdk_does(
    monkeypatch: pytest.MonkeyPatch, method: str, body: bytes, token: str
) -> None:
    url, headers = "https://b-1.s3.eu-west-1.amazonaws.com/master/a.zip", {"X-Amz-Target": "A.B"}
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    signer = S3SigV4Auth(Credentials("AKIA", "secret", token or None), "s3", "eu-west-1")
    request = AWSRequest(method=method, url=url, headers=dict(headers), data=body)
    request.context["client_config"] = None
    request.context["payload_signing_enabled"] = True
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: NOW.replace(tzinfo=None))
    signer.add_auth(request)
    ours = first_boot.signed(
        method,
        url,
        headers,
        body,
        keys={**KEYS, "Token": token},
        region="eu-west-1",
        service="s3",
        now=NOW,
    )
    assert ours["authorization"] == request.headers["Authorization"]
    assert ours["x-amz-content-sha256"] == request.headers["X-Amz-Content-SHA256"]


class Cloud(BaseHTTPRequestHandler):
    """The metadata service, S3 and SSM, as far as a first boot asks them."""

    objects: dict[str, bytes]
    statuses: list[str]
    refused: list[int]

    def do_PUT(self) -> None:
        self._answer(b"imds-token")

    def do_GET(self) -> None:
        if not self.path.startswith("/latest/"):
            assert "AWS4-HMAC-SHA256" in self.headers["authorization"]
            found = self.objects.get(self.path)
            code = self.refused.pop() if self.refused else 200 if found is not None else 404
            self._answer(found or b"", code)
            return
        assert self.headers["X-aws-ec2-metadata-token"] == "imds-token"
        role = "iam/security-credentials/"
        known = {role: b"spothop-master\n", "instance-id": b"i-1"}
        known[f"{role}spothop-master"] = json.dumps(KEYS).encode()
        self._answer(known[self.path.removeprefix("/latest/meta-data/")])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert (body["Name"], body["Type"]) == (STATUS, "String")
        self.statuses.append(body["Value"])
        self._answer(b"{}")

    def _answer(self, body: bytes, code: int = 200) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def cloud() -> Iterator[Any]:
    handler = type("Own", (Cloud,), {"objects": {}, "statuses": [], "refused": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    handler.url = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
    yield handler
    server.shutdown()
    server.server_close()
    thread.join()


UV = """#!/bin/sh
echo "$@" >> {told}
"""


def test_the_user_data_installs_what_the_bucket_has(
    cloud: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The very text that is sent, but for the program that it becomes in the end."""
    told = tmp_path / "told"
    (tmp_path / "bin").mkdir()
    uv = tmp_path / "bin" / "uv"
    uv.write_text(UV.format(told=told))
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    content = software.build()
    sha256 = hashlib.sha256(content).hexdigest()
    cloud.objects[f"/b-1/master/software/{sha256}.zip"] = content
    cloud.refused.append(503)
    config = CONFIG.model_copy(
        update={"software": sha256, "endpoint": cloud.url, "metadata": cloud.url}
    )
    text = user_data.render(config)
    assert text == user_data.render(config)
    assert len(text.encode()) < 16_384
    program: dict[str, Any] = {"__name__": "user_data"}
    exec(compile(text, "user-data", "exec"), program)
    became, slept = [], []
    program["main"](
        json.loads(program["CONFIG"]),
        root=str(tmp_path),
        become=lambda path, words: became.append((path, words)),
        sleep=slept.append,
    )
    folder = tmp_path / "opt" / "spothop" / sha256
    python = f"{folder}/venv/bin/python"
    file = tmp_path / "etc" / "spothop" / "vm.json"
    on_vm = ["-m", "spothop_master.bootstrap.on_vm", "setup", str(file)]
    assert became == [(python, [python, *on_vm])]
    assert VmConfig.model_validate_json(file.read_text()) == config
    venv, hashed, wheel = told.read_text().splitlines()
    assert venv == f"venv --quiet --python {sys.executable} {folder}/venv"
    assert f"--require-hashes --only-binary :all: -r {folder}/requirements.txt" in hashed
    assert wheel.endswith(f"--no-index {folder}/spothop-0.1.0-py3-none-any.whl")
    assert "boto3==" in (folder / "requirements.txt").read_text()
    assert len(slept) == 1
    assert [line.split(":")[0] for line in cloud.statuses] == [
        "i-1 installs the software",
        "i-1 failed",
        "i-1 installs the software",
    ]


def test_software_with_another_hash_is_not_installed(cloud: Any, tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"endpoint": cloud.url, "metadata": cloud.url})
    cloud.objects[f"/b-1/master/software/{config.software}.zip"] = b"something else"
    with pytest.raises(SystemExit):
        first_boot.main(config.model_dump(), root=str(tmp_path), sleep=lambda seconds: None)
    assert "another hash" in cloud.statuses[-1]
    assert not (tmp_path / "opt").exists()


def test_the_wheel_holds_what_is_installed_here_and_is_always_the_same() -> None:
    content = software.build()
    assert content == software.build()
    with zipfile.ZipFile(io.BytesIO(content)) as kit:
        [name] = [name for name in kit.namelist() if name.endswith(".whl")]
        wheel = zipfile.ZipFile(io.BytesIO(kit.read(name)))
    names = wheel.namelist()
    record = wheel.read("spothop-0.1.0.dist-info/RECORD").decode().splitlines()
    assert sorted(line.split(",")[0] for line in record) == sorted(names)
    for needed in (
        "spothop_master/_migrations/env.py",
        "spothop_master/bootstrap/_policies/vm.json",
        "spothop_master/boot/boot.sh",
        "spothop/catalog/vms.csv",
        "spothop_agent/wrapper.py",
        "spothop-0.1.0.dist-info/METADATA",
    ):
        assert needed in names
    assert not [name for name in names if "__pycache__" in name]


# --- set-up and backups -------------------------------------------------------------------------


class Account:
    """S3 and SSM in memory."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.parameters: dict[str, tuple[str, str]] = {}
        self.statuses: list[str] = []

    def call(self, service: str, region: str, operation: str, **params: Any) -> Any:
        assert region == "us-east-1"
        if operation == "put_parameter":
            self.parameters[params["Name"]] = params["Type"], params["Value"]
            if params["Name"] == STATUS:
                self.statuses.append(params["Value"])
        elif operation == "put_object":
            self.objects[params["Key"]] = params["Body"]
        elif params["Key"] not in self.objects:
            raise BadRequest("no such key", code="NoSuchKey")
        else:
            return {"Body": io.BytesIO(self.objects[params["Key"]])}
        return {}

    def pages(self, service: str, region: str, operation: str, **params: Any) -> Iterator[Any]:
        keys = [key for key in sorted(self.objects) if key.startswith(params["Prefix"])]
        yield {"Contents": [{"Key": key} for key in keys]}


def home_of(root: Path) -> Path:
    return root / "var/lib/spothop/master"


def fill(home: Path) -> None:
    """As a master leaves it."""
    for folder in ("tls", "bundles"):
        (home / folder).mkdir(parents=True)
    for name in ("master.key", "owner", "admin.token", "tls/ca.key", "tls/ca.pem", "tls/leaf.pem"):
        (home / name).write_text(f"{name}\n")
    (home / "bundles" / ("a" * 64)).write_bytes(b"code")
    (home / "bundles" / ".aside").write_bytes(b"half")
    with closing(sqlite3.connect(home / "master.db")) as database:
        database.execute("CREATE TABLE jobs (name TEXT)")
        database.execute("INSERT INTO jobs VALUES ('mnist')")
        database.commit()


def content_of(home: Path) -> dict[str, bytes]:
    files = (path for path in sorted(home.rglob("*")) if path.is_file())
    return {str(p.relative_to(home)): p.read_bytes() for p in files if p.name != "master.db"}


def test_another_vm_has_what_this_one_had(tmp_path: Path) -> None:
    account, here, there = Account(), tmp_path / "here", tmp_path / "there"
    fill(here)
    how: dict[str, Any] = {"region": "us-east-1", "bucket": "b-1"}
    Backups(account, home=here, **how).save(NOW)
    assert {key for key in account.objects if "backup" in key} == {
        "master/backup/newest.zip",
        "master/backup/sun.zip",
    }
    Backups(account, home=here, **how).save(NOW + timedelta(days=1))
    assert "master/backup/mon.zip" in account.objects
    assert Backups(account, home=there, **how).restore()
    (here / "bundles" / ".aside").unlink()
    assert content_of(there) == content_of(here)
    with closing(sqlite3.connect(there / "master.db")) as database:
        assert database.execute("SELECT name FROM jobs").fetchall() == [("mnist",)]
    assert {path.stat().st_mode & 0o077 for path in there.rglob("*")} == {0}


def test_a_home_with_a_database_is_not_restored_over(tmp_path: Path) -> None:
    account = Account()
    fill(tmp_path)
    backups = Backups(account, region="us-east-1", bucket="b-1", home=tmp_path)
    assert not Backups(account, region="us-east-1", bucket="b-1", home=tmp_path / "n").restore()
    backups.save(NOW)
    (tmp_path / "owner").write_text("changed\n")
    assert not backups.restore()
    assert (tmp_path / "owner").read_text() == "changed\n"


class Machine:
    """Runs commands, and starts the master when systemd is told to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commands: list[str] = []

    def run(self, command: Sequence[str]) -> None:
        self.commands.append(" ".join(command))
        if command[0] == "id":
            raise subprocess.CalledProcessError(1, list(command))
        master = command[-1] == "spothop-master.service" and command[1] == "restart"
        if master and not (home_of(self.root) / "master.db").exists():
            fill(home_of(self.root))


def set_up(root: Path, account: Account) -> Machine:
    machine = Machine(root)
    Setup(
        CONFIG,
        account,
        vm="i-1",
        python="/opt/python",
        root=root,
        run=machine.run,
        answers=lambda config, ca: ca.exists(),
        sleep=lambda seconds: None,
    ).setup()
    return machine


def test_a_first_boot_starts_the_master_and_says_where_the_token_is(tmp_path: Path) -> None:
    account = Account()
    machine = set_up(tmp_path, account)
    assert account.statuses[-1] == "i-1 ready"
    assert account.parameters[CA] == ("String", "tls/ca.pem\n")
    assert account.parameters[TOKEN] == ("SecureString", "admin.token")
    assert "master/backup/newest.zip" in account.objects
    done = machine.commands
    assert done.index("systemctl start spothop-last-backup.service") < done.index(
        "systemctl restart spothop-master.service"
    )
    assert any(command.startswith("useradd") for command in done)
    environment = (tmp_path / "etc/spothop/master.env").read_text()
    given = dict(line.split("=", 1) for line in environment.splitlines())
    settings = read_settings(given, {})
    assert (settings.public_url, settings.tls) == ("https://203.0.113.7:8900", "auto")
    assert (settings.clouds, settings.storage_url) == (("aws",), "s3://b-1/runs")
    assert settings.aws_cloud is not None
    assert load(settings.aws_cloud).regions["us-east-1"].security_groups == ["sg-1"]
    units = tmp_path / "etc/systemd/system"
    assert "ExecStart=/opt/python -m spothop_master\n" in (
        units / "spothop-master.service"
    ).read_text("utf-8")
    assert "OnUnitActiveSec=300" in (units / "spothop-backup.timer").read_text("utf-8")


@pytest.mark.parametrize(("region", "told"), [("us-east-1", None), ("eu-west-1", "eu-west-1")])
def test_the_storage_url_tells_the_region_to_whoever_opens_it(
    region: str, told: str | None
) -> None:
    store = obstore.store.from_url(storage_url("b-1", region))
    assert isinstance(store, obstore.store.S3Store)
    assert (store.config.get("bucket"), store.prefix) == ("b-1", "runs")
    assert store.config.get("region") == told
    assert provider_of(storage_url("b-1", region)) == "S3"


def test_the_vm_that_takes_its_place_has_its_jobs(tmp_path: Path) -> None:
    account = Account()
    set_up(tmp_path / "one", account)
    (home_of(tmp_path / "one") / "owner").write_text("the first one\n")
    Backups(account, region="us-east-1", bucket="b-1", home=home_of(tmp_path / "one")).save(NOW)
    set_up(tmp_path / "two", account)
    assert (home_of(tmp_path / "two") / "owner").read_text() == "the first one\n"
    assert any("from the backup" in status for status in account.statuses)
