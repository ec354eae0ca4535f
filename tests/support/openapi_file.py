"""Writes docs/openapi.json: the routes as they are now. `make openapi` runs it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # for `fakes`, when run as a program

from fakes.http_master import HttpMaster
from spothop_master.api import openapi

FILE = Path(__file__).parent.parent.parent / "docs" / "openapi.json"


def text(folder: Path) -> str:
    """What the file should hold. `folder` is for a master that is never started."""
    return openapi.text_of(HttpMaster(folder).app)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        FILE.write_text(text(Path(folder)))
