"""The master's software as one file, which the master's VM fetches from the bucket by its hash.

There is no registry of ours: it is made of the installation that `spothop bootstrap` runs from, as
the agent's zip is. It holds a wheel of our three packages, the list of what they need with the hash
of every file (`requirements/aws.txt`), and what fetches uv. The same installation gives the same
bytes, so that repeating `bootstrap` changes nothing.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path

from spothop_master.boot import setup_portable
from spothop_master.boot.agent_zip import write_zip
from spothop_master.boot.packages import DISTRIBUTION, PackageError

PACKAGES = ("spothop", "spothop_agent", "spothop_master")
_HERE = Path(__file__).parent
_WHEEL = "Wheel-Version: 1.0\nGenerator: spothop\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_KEPT = ("METADATA", "entry_points.txt")


def build() -> bytes:
    """The file. Raises PackageError."""
    name, wheel = _wheel()
    boot = Path(setup_portable.__file__).parent
    return _zip(
        {
            name: wheel,
            "requirements.txt": _HERE / "requirements.txt",
            "setup_portable.py": boot / "setup_portable.py",
            "uv.txt": boot / "uv.txt",
        }
    )


def _wheel() -> tuple[str, bytes]:
    """Its name and content (PyPA: binary distribution format)."""
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise PackageError(
            f"{DISTRIBUTION} is not installed as a package; install it with pip, so that a VM can"
            " be given the same"
        ) from None
    stem = f"{DISTRIBUTION}-{distribution.version}"
    files: dict[str, Path | bytes] = {}
    for package in PACKAGES:
        files |= package_files(package)
    info = f"{stem}.dist-info"
    for each in _KEPT:
        if text := distribution.read_text(each):
            files[f"{info}/{each}"] = text.encode()
    files[f"{info}/WHEEL"] = _WHEEL.encode()
    record = [_record(name, _content(files[name])) for name in sorted(files)]
    files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"]).encode()
    return f"{stem}-py3-none-any.whl", _zip(files)


def package_files(package: str) -> dict[str, Path | bytes]:
    """Name in the wheel -> file. Links to folders are followed: migrations and policies lie outside
    of the package where it was installed from its sources."""
    spec = util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise PackageError(f"{package} cannot be imported; install spothop anew")
    found: dict[str, Path | bytes] = {}
    for root in map(Path, spec.submodule_search_locations):
        for folder, below, names in os.walk(root, followlinks=True):
            below[:] = [name for name in below if name != "__pycache__"]
            for name in names:
                path = Path(folder) / name
                found[f"{package}/{path.relative_to(root).as_posix()}"] = path
    return found


def _record(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def _content(source: Path | bytes) -> bytes:
    return source if isinstance(source, bytes) else source.read_bytes()


def _zip(files: Mapping[str, Path | bytes]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="spothop-") as folder:
        target = Path(folder) / "made.zip"
        write_zip(target, files)
        return target.read_bytes()
