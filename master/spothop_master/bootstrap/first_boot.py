"""What the master's VM runs first: its user data. Standard library only, for the Python 3.10 that
the image, Ubuntu 22.04, has: cloud-init is written in it.

It fetches our software from the bucket with the VM's own role, checks its hash, installs it, and
hands over to `spothop_master.bootstrap.on_vm`. What fails is tried again. How far it is stands in
the parameter /spothop/status, which `spothop bootstrap` reads.

It signs its few requests itself (AWS Signature Version 4), because the image has no SDK of AWS.
The alternative, a presigned URL, ends after some hours, and the VM could not be started anew.
Above this text stands `CONFIG`. Nothing in it is secret.
"""

import hashlib
import hmac
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote, urlsplit

METADATA = "http://169.254.169.254"
STATUS = "/spothop/status"
TRIES, PAUSE_S, TIMEOUT_S = 60, 10, 60
INDEX = "https://pypi.org/simple"


def signed(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    keys: Mapping[str, str],
    region: str,
    service: str,
    now: datetime,
) -> dict[str, str]:
    """The headers of a request, signed. `keys`: AccessKeyId, SecretAccessKey, Token."""
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    parts = urlsplit(url)
    payload = hashlib.sha256(body).hexdigest()
    own = {"host": parts.netloc, "x-amz-date": stamp, "x-amz-content-sha256": payload}
    if keys.get("Token"):
        own["x-amz-security-token"] = keys["Token"]
    sent = {**{name.lower(): value for name, value in headers.items()}, **own}
    names = ";".join(sorted(sent))
    lines = "".join(f"{name}:{sent[name]}\n" for name in sorted(sent))
    request = f"{method}\n{parts.path or '/'}\n{parts.query}\n{lines}\n{names}\n{payload}"
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = ("AWS4" + keys["SecretAccessKey"]).encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    sent["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys['AccessKeyId']}/{scope}, SignedHeaders={names}, "
        f"Signature={signature}"
    )
    del sent["host"]  # urllib sends it
    return sent


class Aws:
    """The bucket and the parameters, with the role of this VM."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.metadata = config.get("metadata") or METADATA
        self.direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def about_vm(self, path: str) -> str:
        """Of the metadata service, never through a proxy."""
        asked = urllib.request.Request(self.metadata + "/latest/api/token", method="PUT")
        asked.add_header("X-aws-ec2-metadata-token-ttl-seconds", "300")
        with self.direct.open(asked, timeout=TIMEOUT_S) as answer:
            token = answer.read().decode()
        asked = urllib.request.Request(f"{self.metadata}/latest/meta-data/{path}")
        asked.add_header("X-aws-ec2-metadata-token", token)
        with self.direct.open(asked, timeout=TIMEOUT_S) as answer:
            return str(answer.read().decode())

    def ask(
        self, service: str, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> bytes:
        role = self.about_vm("iam/security-credentials/").split()[0]
        keys = json.loads(self.about_vm(f"iam/security-credentials/{role}"))
        region, now = self.config["region"], datetime.now(timezone.utc)
        how = {"keys": keys, "region": region, "service": service, "now": now}
        sent = signed(method, url, headers, body, **how)
        request = urllib.request.Request(url, data=body or None, headers=sent, method=method)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return bytes(answer.read())

    def fetch(self, key: str) -> bytes:
        bucket, region = self.config["bucket"], self.config["region"]
        place = f"https://{bucket}.s3.{region}.amazonaws.com"
        if self.config.get("endpoint"):
            place = f"{self.config['endpoint']}/{bucket}"
        return self.ask("s3", "GET", f"{place}/{quote(key)}", {}, b"")

    def tell(self, status: str) -> None:
        """How far this VM is; that nobody hears it stops nothing."""
        say(status)
        try:
            vm = self.about_vm("instance-id")
            value = {"Name": STATUS, "Value": f"{vm} {status}"[:4000], "Type": "String"}
            url = (
                self.config.get("endpoint") or f"https://ssm.{self.config['region']}.amazonaws.com"
            )
            headers = {
                "Content-Type": "application/x-amz-json-1.1",
                "X-Amz-Target": "AmazonSSM.PutParameter",
            }
            body = json.dumps({**value, "Overwrite": True}).encode()
            self.ask("ssm", "POST", url + "/", headers, body)
        except (OSError, ValueError, IndexError, KeyError) as error:
            say(f"the status could not be told: {error}")


def say(text: str) -> None:
    sys.stdout.write(f"spothop: {text}\n")
    sys.stdout.flush()


def install(aws: Aws, folder: str) -> str:
    """The software below this folder; the path of its Python. Raises OSError and ValueError."""
    python = os.path.join(folder, "venv", "bin", "python")
    if os.path.exists(os.path.join(folder, "ready")):
        return python
    content = aws.fetch(f"master/software/{aws.config['software']}.zip")
    if hashlib.sha256(content).hexdigest() != aws.config["software"]:
        raise ValueError("the software in the bucket has another hash than this VM was told")
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archive.extractall(folder)
        (wheel,) = (name for name in archive.namelist() if name.endswith(".whl"))
    uv = shutil.which("uv") or setup(folder).fetch_uv(
        folder,
        os.environ.get("UV_DEFAULT_INDEX", INDEX),  # noqa: TID251  the image's own
    )
    run(uv, "venv", "--quiet", "--python", sys.executable, os.path.join(folder, "venv"))
    pip = (uv, "pip", "install", "--quiet", "--no-cache", "--no-deps", "--python", python)
    hashed = ("--require-hashes", "--only-binary", ":all:")
    run(*pip, *hashed, "-r", os.path.join(folder, "requirements.txt"))
    run(*pip, "--no-index", os.path.join(folder, wheel))
    open(os.path.join(folder, "ready"), "w").close()
    return python


def setup(folder: str) -> Any:
    """The module that came with the software."""
    path = os.path.join(folder, "setup_portable.py")
    spec = importlib.util.spec_from_file_location("setup_portable", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*command: str) -> None:
    found = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if found.returncode != 0:
        told = found.stdout.decode(errors="replace").strip()[-2000:]
        raise ValueError(f"{' '.join(command[:3])} ended with {found.returncode}: {told}")


def main(
    config: Mapping[str, Any],
    root: str = "/",
    become: Callable[[str, list[str]], Any] = os.execv,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Ends as the program that goes on; `root` is for tests."""
    os.umask(0o022)
    aws = Aws(config)
    folder = os.path.join(root, "opt", "spothop", config["software"])
    for left in range(TRIES, 0, -1):
        try:
            aws.tell("installs the software")
            python = install(aws, folder)
            break
        except (OSError, ValueError, SystemExit) as error:
            aws.tell(f"failed: {error}; {left - 1} more tries")
            sleep(PAUSE_S)
    else:
        raise SystemExit(1)
    told = os.path.join(root, "etc", "spothop")
    os.makedirs(told, exist_ok=True)
    with open(os.path.join(told, "vm.json"), "w") as file:
        json.dump(config, file)
    become(python, [python, "-m", "spothop_master.bootstrap.on_vm", "setup", file.name])


if __name__ == "__main__":
    main(json.loads(globals()["CONFIG"]))
