"""What a VM is given to boot with, and that it stays the same while its launch is under way.

A launch may be repeated with its client token, by this master or by the next one, and providers
compare: other user data under an old token is an error (AWS: IdempotentParameterMismatch). So:

1. The token of the join is derived from the master key and the VM's id, not drawn.
2. Whatever else goes into the user data is written into the VM's row before the cloud is called
   (I3): the agent's configuration with the authority of that moment, the hashes of the zips, and
   the SHA-256 of the script. Whoever writes first is right.
3. The script is always made from the row. After an upgrade it may come out otherwise; then nothing
   is sent, and the cloud's listing tells what came of the launch. An authority or an address that
   is new since then changes nothing, because the row has the old one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlalchemy import update

from spothop.wire import AgentConfig
from spothop_master.boot import user_data
from spothop_master.security import token_hash
from spothop_master.store.db import Database
from spothop_master.store.schema import VmRow


class ScriptChanged(Exception):
    """The user data of a launch cannot be made again as it was; the message names the VM."""


@dataclass(frozen=True, kw_only=True)
class Booting:
    """What this master gives its VMs."""

    join_token: Callable[[str], str]
    """Of a VM, by its id: always the same."""
    zips: Callable[[], Mapping[str, str]]
    """The agent's zips, as `user_data.render` takes them. Slow the first time."""
    ca: str = ""
    """In PEM, who vouches for this master."""


def script_of(db: Database, config: AgentConfig, booting: Booting) -> str:
    """The user data of a VM whose row is committed; the same at every call. Raises ScriptChanged,
    `user_data.TooLong`, and what `booting.zips` raises."""
    with db.read() as session:
        kept = _kept(session.get_one(VmRow, config.vm))
    if kept is None:
        zips = dict(booting.zips())
        script = user_data.render(config, zips)
        public = config.model_dump(mode="json", exclude={"token"})
        values = {
            "boot": json.dumps({"config": public, "zips": zips}),
            "user_data_sha256": user_data.sha256_of(script),
        }
        first = VmRow.id == config.vm, VmRow.boot.is_(None)
        with db.begin() as session:
            session.execute(update(VmRow).where(*first).values(values))
        with db.read() as session:
            kept = _kept(session.get_one(VmRow, config.vm))
    assert kept is not None
    return _again(kept, booting)


@dataclass(frozen=True)
class _Kept:
    vm: str
    boot: Mapping[str, object]
    sha256: str | None
    join_hash: str | None


def _kept(row: VmRow) -> _Kept | None:
    if row.boot is None:
        return None
    return _Kept(row.id, json.loads(row.boot), row.user_data_sha256, row.join_hash)


def _again(kept: _Kept, booting: Booting) -> str:
    token = booting.join_token(kept.vm)
    if kept.join_hash is not None and token_hash(token) != kept.join_hash:
        raise ScriptChanged(f"{kept.vm} was asked for with another master key; its listing tells")
    public, zips = kept.boot["config"], kept.boot["zips"]
    assert isinstance(public, dict)
    assert isinstance(zips, dict)
    script = user_data.render(AgentConfig.model_validate({**public, "token": token}), zips)
    if user_data.sha256_of(script) != kept.sha256:
        raise ScriptChanged(
            f"{kept.vm} was asked for by another version of this master; its listing tells"
        )
    return script
