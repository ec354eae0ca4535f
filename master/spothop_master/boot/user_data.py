"""The user data of a VM: one shell script, the same for every cloud.

Rules:

1. A pure function: the same configuration and hashes give the same bytes, so that a launch may be
   repeated with its client token. What clouds take for another launch under an old token is an
   error (AWS: IdempotentParameterMismatch).
2. The program is `boot.sh`, which is a file of its own that can be read and checked; here it only
   gets its variables, as words of the shell that nothing in them can leave.
3. Clouds keep user data where whoever is on the VM can read it again: it holds no secret but the
   token, which counts for nothing once the agent has joined.

Limits: AWS takes 16 KiB, Azure and GCP more. A first line `#!/bin/sh` is what cloud-init (AWS,
Azure) and GCP's guest agent run.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from spothop.wire import AgentConfig, Dialect

MOST = 16 * 1024
"""Bytes, the least that one of the clouds takes."""

_PROGRAM = Path(__file__).with_name("boot.sh")
_DELETE_AZURE = Path(__file__).with_name("delete_azure.py")
_PLAIN = re.compile(r"/[A-Za-z0-9._/-]+")
_TAG = re.compile(r"[A-Za-z0-9._-]+")


class TooLong(Exception):
    """The user data has more bytes than clouds take."""


def render(config: AgentConfig, zips: Mapping[str, str]) -> str:
    """The script. `zips`: tag of the Pythons that it fits -> SHA-256 of the agent's zip, the
    portable one's tag included. Raises TooLong, and ValueError for a tag that is no word and for a
    directory that units of systemd and shells would have to quote."""
    if not _PLAIN.fullmatch(config.directory):
        raise ValueError(f"{config.directory!r} is no plain path")
    for tag in zips:
        if not _TAG.fullmatch(tag):
            raise ValueError(f"{tag!r} is no tag of a Python")
    variables = {
        "VM": config.vm,
        "URL": config.master.rstrip("/"),
        "D": config.directory,
        "ZIPS": " ".join(f"{tag}={zips[tag]}" for tag in sorted(zips)),
        "PY3": _python_of(zips),
        "AWAY_S": str(int(config.away_s)),
        "CONFIG": config.model_dump_json(),
        "DELETE": _delete_program() if config.dialect is Dialect.AZURE else "",
    }
    words = "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())
    script = f"#!/bin/sh\n# spothop: installs and starts the agent of this VM\n{words}{_program()}"
    if (size := len(script.encode())) > MOST:
        raise TooLong(f"the user data of {config.vm} has {size} bytes; clouds take {MOST}")
    return script


def sha256_of(script: str) -> str:
    return hashlib.sha256(script.encode()).hexdigest()


def _python_of(zips: Mapping[str, str]) -> str:
    """The program to look for first: `python3.12` for `cpython-312-x86_64-linux-gnu`."""
    for tag in sorted(zips):
        if found := re.match(r"cpython-3(\d+)-", tag):
            return f"python3.{found.group(1)}"
    return "python3"


def _program() -> str:
    return _PROGRAM.read_text("utf-8")


def _delete_program() -> str:
    """With which a VM of Azure deletes itself."""
    return _DELETE_AZURE.read_text("utf-8")
