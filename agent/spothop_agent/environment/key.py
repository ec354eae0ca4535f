"""Under which name what `setup:` made is looked for: a hash of all that it may depend on.

The job's variables and secrets are not in it: they are the same for all attempts of a job, and what
is kept is kept for one job only.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_LEVELS = (
    (2, {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"}),
    (3, {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}),
    (4, {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
)
"""Of x86-64, as the names in /proc/cpuinfo (x86-64 psABI, section 3.1.1): what is compiled for the
machine that compiles it may fail with SIGILL on a lesser one."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What of a VM the result of a script depends on."""

    system: str
    """Of its image: name and version."""
    libc: str
    architecture: str
    python: str
    """The one that `python3` is for the script."""
    gpu: str


def of_job(setup: str, bundle: str, folders: Sequence[str], image: str) -> str:
    """What is the same on all VMs of a job; hexadecimal."""
    return _hash([setup, bundle, [*folders], image])


def of_result(job: str, machine: Machine, path: str) -> str:
    """The name of a result: for one `path` of the job's directory, or for all where it is empty."""
    return _hash([job, asdict(machine), path])


def _hash(parts: list[object]) -> str:
    return hashlib.sha256(json.dumps(["spothop environment 1", *parts]).encode()).hexdigest()


def this_machine(env: Mapping[str, str], root: Path = Path("/")) -> Machine:
    """`env` is that of the script. What cannot be read is as if it were empty."""
    release = _fields(_text(root / "etc/os-release"), "=")
    return Machine(
        system=f"{release.get('ID', '')} {release.get('VERSION_ID', '')}",
        libc=" ".join(platform.libc_ver()),
        architecture=_architecture(_text(root / "proc/cpuinfo")),
        python=f"{_python(env)} {sys.version}",
        gpu=_gpus(root / "proc/driver/nvidia"),
    )


def _architecture(cpuinfo: str) -> str:
    machine = platform.machine()
    if machine != "x86_64":
        return machine
    has = set(_fields(cpuinfo, ":").get("flags", "").split())
    level = 1
    for number, needs in _LEVELS:
        if not needs <= has:
            break
        level = number
    return f"{machine}-v{level}"


def _python(env: Mapping[str, str]) -> str:
    """Its version is in the path of the program itself, behind all links (`python3.11`)."""
    found = shutil.which("python3", path=env.get("PATH"))
    if found is None:
        return ""
    real = os.path.realpath(found)
    return f"{found} {real} {_text(Path(found).parent.parent / 'pyvenv.cfg')}"


def _gpus(driver: Path) -> str:
    """Model of each, and the version of the driver."""
    cards = sorted(driver.glob("gpus/*/information"))
    models = sorted({_fields(_text(card), ":").get("Model", "") for card in cards})
    return " ".join([*models, _text(driver / "version").partition("\n")[0]]) if cards else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _fields(text: str, sign: str) -> dict[str, str]:
    """The first value of each name."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(sign)
        found.setdefault(name.strip(), value.strip().strip('"'))
    return found
