"""A Debian with cloud-init in a folder, as a cloud's image: what a VM boots that is none of ours.

Made once by debootstrap, which takes two minutes, 450 MB and Debian's mirror, and kept in
`$SPOTHOP_TEST_IMAGES`, by default `~/.cache/spothop-tests`. Its Python is Debian's, with neither
venv nor pip, and it has neither curl nor wget, nor systemd. Nobody writes into it: a VM has its own
layer above it.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
from pathlib import Path

from support.require import missing, need_namespaces

RELEASE = "bookworm"
PACKAGES = ("ca-certificates", "cloud-init", "iproute2")
SETTING = "SPOTHOP_TEST_IMAGES"
WITHIN_S = 900.0
HINT = f"run the tests as root, with debootstrap and Debian's mirror, or set {SETTING}"


def image() -> Path:
    """The folder; skips the test where there is none and none can be made."""
    need_namespaces()
    folder = Path(os.environ.get(SETTING) or "~/.cache/spothop-tests").expanduser()  # noqa: TID251  the tests' own switch
    found = folder / f"{RELEASE}-{platform.machine()}-{'-'.join(PACKAGES)}"
    if found.exists():
        return found
    if shutil.which("debootstrap") is None:
        missing("debootstrap", hint=HINT)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run of the tests may be at it
        if not found.exists():
            _make(found)
    return found


def _make(target: Path) -> None:
    """debootstrap does not follow virtual packages, on which cloud-init depends; apt does."""
    aside = target.with_suffix(".new")
    shutil.rmtree(aside, ignore_errors=True)
    _run("debootstrap", "--variant=minbase", RELEASE, str(aside))
    install = f"apt-get install -y --no-install-recommends {' '.join(PACKAGES)} && apt-get clean"
    quiet = "DEBIAN_FRONTEND=noninteractive"
    _run("env", quiet, "chroot", str(aside), "/bin/sh", "-c", f"apt-get update && {install}")
    aside.rename(target)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired:
        missing("Debian's mirror", hint=f"{HINT}; {command[0]} was not done in {WITHIN_S:g} s")
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-300:]
        missing("an image of Debian", hint=f"{HINT}; {command[0]}: {said}")
