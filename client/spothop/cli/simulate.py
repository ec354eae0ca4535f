"""`spothop simulate`: replaces itself by the simulator, which comes with the extra `simulator`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from spothop.cli.session import Session
from spothop.sdk.errors import ClientError

NEEDED = ("numpy", "scipy", "plotly")


def simulate(session: Session, arguments: Sequence[str], needed: Sequence[str] = NEEDED) -> None:
    """Replace this process; raises `ClientError` when the extra is not installed."""
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise ClientError(
            f"the simulator needs packages that are not installed: {', '.join(missing)}",
            "pip install 'spothop[simulator]'",
        )
    session.become([sys.executable, "-m", "spothop.simulator", *arguments])
