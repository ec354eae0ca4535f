"""Azurite, Microsoft's emulator of Azure Blob Storage: one a process, started when the first test
needs it, over TLS, because only so it takes tokens. It keeps everything in memory.

`npm ci` in tests/azurite installs it (tests/azurite/README.md).
"""

from __future__ import annotations

import base64
import functools
import json
import re
import ssl
import subprocess
import tempfile
import threading
import time
import uuid
from datetime import datetime, timezone
from pathlib import Path
from shutil import which

import httpx

from spothop.wire import StorageSpec
from spothop_master import tls
from support.require import missing
from support.waiting import until

FOLDER = Path(__file__).parents[1] / "azurite"
PROGRAM = FOLDER / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of that account, the same in every Azurite: https://learn.microsoft.com/azure/storage/common/storage-use-azurite"""
VERSION = {"x-ms-version": "2021-12-02"}
_LISTENS = re.compile(r"listens on https://127\.0\.0\.1:(\d+)")


def need() -> None:
    """Skip, or fail in CI, where it cannot run."""
    if which("node") is None:
        missing("Node.js", hint="install nodejs and npm, then run npm ci in tests/azurite")
    if not PROGRAM.exists():
        missing("Azurite", hint="run npm ci --ignore-scripts in tests/azurite")


def token(*, valid_s: float = 3600) -> str:
    """One that Azurite takes: it looks at what a token claims, and not at its signature."""
    now = int(time.time())
    claims = {
        "aud": "https://storage.azure.com",
        "iss": f"https://sts.windows.net/{uuid.UUID(int=0)}/",
        "iat": now - 3600,
        "nbf": now - 3600,
        "exp": int(now + valid_s),
    }
    return ".".join([_part({"alg": "none", "typ": "JWT"}), _part(claims), _encoded(b"none")])


def _part(claims: object) -> str:
    return _encoded(json.dumps(claims).encode())


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Azurite:
    """A running server. `new_container()` gives each test a place of its own."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="azurite-")
        pems = tls.ensure(
            Path(self._folder.name) / "tls", ["127.0.0.1"], now=datetime.now(timezone.utc)
        )
        self.ca = pems.ca_pem
        self.log = Path(self._folder.name) / "log"
        chain = str(pems.chain)
        flags = ["--disableTelemetry", "--skipApiVersionCheck", "--inMemoryPersistence", "--silent"]
        secured = ["--oauth", "basic", "--cert", chain, "--key", chain]
        where = ["--blobHost", "127.0.0.1", "--blobPort", "0"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                ["node", str(PROGRAM), *where, *flags, *secured],
                stdout=log,
                stderr=log,
                cwd=self._folder.name,
            )
        until(self._listening, what="Azurite listens", details=self._told)
        found = _LISTENS.search(self._told())
        assert found is not None
        self.port = int(found.group(1))
        self.http = httpx.Client(
            base_url=f"{self.endpoint}/",
            verify=ssl.create_default_context(cadata=self.ca),
            trust_env=False,
            timeout=30,
        )

    @property
    def endpoint(self) -> str:
        return f"https://127.0.0.1:{self.port}/{ACCOUNT}"

    def _listening(self) -> bool:
        assert self._process.poll() is None, self._told()
        return _LISTENS.search(self._told()) is not None

    def _told(self) -> str:
        return self.log.read_text(errors="replace")

    def close(self) -> None:
        self.http.close()
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def ask(self, method: str, path: str) -> httpx.Response:
        """With a good token."""
        bearer = {"Authorization": f"Bearer {token()}", **VERSION}
        answer = self.http.request(method, path, headers=bearer)
        answer.raise_for_status()
        return answer

    def new_container(self) -> str:
        name = f"c{uuid.uuid4().hex}"
        self.ask("PUT", f"{name}?restype=container")
        return name

    def delete_container(self, name: str) -> None:
        self.ask("DELETE", f"{name}?restype=container")

    def uncommitted(self, container: str) -> list[str]:
        """Names of blobs that are nothing but blocks of an upload that did not end."""
        listed = self.ask(
            "GET", f"{container}?restype=container&comp=list&include=uncommittedblobs"
        )
        there = self.ask("GET", f"{container}?restype=container&comp=list")
        names = re.compile(r"<Name>([^<]+)</Name>")
        return sorted({*names.findall(listed.text)} - {*names.findall(there.text)})

    def spec(self, container: str, path: str = "runs", **options: str) -> StorageSpec:
        """With the account's key, unless `options` say who asks."""
        who = options or {"account_key": KEY}
        url = f"az://{ACCOUNT}/{container}/{path}"
        return StorageSpec(url=url, options={**self.reach(), **who})

    def reach(self) -> dict[str, str]:
        return {"endpoint": self.endpoint, "root_certificate": self.ca}


_lock = threading.Lock()


@functools.cache
def _start() -> Azurite:
    return Azurite()


def server() -> Azurite:
    """The one of this process; `close` ends it."""
    need()
    with _lock:
        return _start()


def close() -> None:
    if _start.cache_info().currsize:
        _start().close()
        _start.cache_clear()


class Container:
    """A new container, and `spec()`, as the other servers of the contract suite have it."""

    def __enter__(self) -> Container:
        self._azurite = server()
        self.name = self._azurite.new_container()
        return self

    def __exit__(self, *_: object) -> None:
        self._azurite.delete_container(self.name)

    def who(self) -> dict[str, str]:
        return {"account_key": KEY}

    def spec(self) -> StorageSpec:
        return self._azurite.spec(self.name, **self.who())


class ContainerByToken(Container):
    """The same as an identity sees it."""

    def who(self) -> dict[str, str]:
        return {"token": token()}
