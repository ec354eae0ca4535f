"""On a VM whose Python is another one than the master's: what the agent imports, from an index.

Runs there, beside the agent's packages, on whatever `python3` there is (3.6 or newer): standard
library only. It uses the VM's uv, or fetches the one of `uv.txt` from the index; that installs
`agent.txt` into `site/`. Every file has its hash in one of the two lists, so the index is trusted
with nothing. A Python older than 3.10 is left alone: uv gets its own. What this needs beside the
master is the index (`UV_DEFAULT_INDEX`, by default the Python Package Index), and, for such an old
Python, uv's own place for interpreters.
"""

import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from html import unescape
from typing import Mapping  # noqa: UP035 - the one of collections.abc takes no parameters before 3.9
from urllib.parse import urljoin, urlsplit
from urllib.request import urlopen

OLDEST = (3, 10)
OWN_PYTHON = "3.12"
INDEX = "https://pypi.org/simple"
TIMEOUT_S = 60
SYSTEM_TRUST = {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"}
"""uv believes whom this program believes, and not its own list: an image may name an authority of
its company. Older versions know the second name."""

_LINK = re.compile(r'href="([^"#]+)#sha256=([0-9a-f]{64})')


def main(folder: str, environ: Mapping[str, str]) -> None:
    """Leaves `python`, the path of the interpreter to use."""
    uv = shutil.which("uv") or fetch_uv(folder, environ.get("UV_DEFAULT_INDEX", INDEX))
    python = sys.executable
    if sys.version_info < OLDEST:
        venv = os.path.join(folder, "venv")
        _run(uv, "venv", "--quiet", "--clear", "--python", OWN_PYTHON, venv)
        python = os.path.join(venv, "bin", "python")
    wanted, site = os.path.join(folder, "agent.txt"), os.path.join(folder, "site")
    how = ["--require-hashes", "--only-binary", ":all:", "--no-deps", "--no-cache"]
    _run(uv, "pip", "install", "--python", python, "--target", site, *how, "-r", wanted)
    with open(os.path.join(folder, "python"), "w") as file:
        file.write(python + "\n")


def fetch_uv(folder: str, index: str) -> str:
    """The uv that `uv.txt` names; its path. Raises SystemExit and OSError."""
    with open(os.path.join(folder, "uv.txt")) as file:
        hashes = set(re.findall(r"sha256:([0-9a-f]{64})", file.read()))
    page = index.rstrip("/") + "/uv/"
    with urlopen(page, timeout=TIMEOUT_S) as answer:
        links = _LINK.findall(answer.read().decode("utf-8", "replace"))
    fitting = [(url, sha256) for url, sha256 in links if sha256 in hashes and _fits(url)]
    if not fitting:
        raise SystemExit(f"{page} has no uv of uv.txt for {platform.machine()}")
    url, sha256 = fitting[0]
    with urlopen(urljoin(page, unescape(url)), timeout=TIMEOUT_S) as answer:
        wheel = answer.read()
    if hashlib.sha256(wheel).hexdigest() != sha256:
        raise SystemExit(f"{url} has not the SHA-256 {sha256}")
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
        target = os.path.join(folder, "uv")
        with open(target, "wb") as file:
            file.write(archive.read(name))
    os.chmod(target, 0o755)
    return target


def _fits(url: str) -> bool:
    """Its name says the C library and the architecture (PEP 600, PEP 656)."""
    libc = "manylinux" if platform.libc_ver()[0] == "glibc" else "musllinux"
    name = os.path.basename(urlsplit(url).path)
    return libc in name and name.endswith(f"_{platform.machine()}.whl")


def _run(*command: str) -> None:
    sys.stdout.write("+ {}\n".format(" ".join(command)))
    sys.stdout.flush()
    environ = {**os.environ, **SYSTEM_TRUST}  # noqa: TID251  uv's own settings stay
    code = subprocess.run(command, stdin=subprocess.DEVNULL, env=environ).returncode
    if code != 0:
        raise SystemExit(f"{command[0]} ended with {code}")


if __name__ == "__main__":
    main(os.path.dirname(os.path.abspath(__file__)), os.environ)  # noqa: TID251  its one reader
