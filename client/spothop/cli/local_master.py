"""`spothop master` and `spothop bootstrap`: replace themselves by programs of the master."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from spothop.cli.session import Session
from spothop.sdk.errors import ClientError

NEEDED = ("alembic", "apscheduler", "fastapi", "jinja2", "sqlalchemy", "uvicorn")
"""Of the extra `master`, which installs dependencies; the code itself is always there."""
BOOTSTRAP_NEEDED = ("boto3",)
"""Of the extra `aws`."""


def start(
    session: Session,
    *,
    host: str | None,
    port: int | None,
    home: Path | None,
    others: Sequence[str] = (),
    needed: Sequence[str] = NEEDED,
) -> None:
    """Replace this process; raises `ClientError` when the extra is not installed."""
    _require(needed, what="the master", extra="master")
    command = [sys.executable, "-m", "spothop_master"]
    command += ["--home", str(home or session.settings.master_home)]
    if host is not None:
        command += ["--host", host]
    if port is not None:
        command += ["--port", str(port)]
    session.become([*command, *others])


def bootstrap(
    session: Session, options: Sequence[str], *, needed: Sequence[str] = BOOTSTRAP_NEEDED
) -> None:
    """Replace this process; raises `ClientError` when the extra is not installed."""
    _require(needed, what="bootstrap", extra="aws")
    session.become([sys.executable, "-m", "spothop_master.bootstrap", *options])


def _require(needed: Sequence[str], *, what: str, extra: str) -> None:
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise ClientError(
            f"{what} needs packages that are not installed: {', '.join(missing)}",
            f"pip install 'spothop[{extra}]'",
        )
