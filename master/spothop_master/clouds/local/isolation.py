"""How far VMs of the local cloud are kept apart on this machine: decided once, at the start.

users        another user id than the master's, and namespaces: a job can read neither the master's
             files nor those of other jobs
namespaces   process ids and a network of their own, as the master's user
processes    plain processes of the master's user
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from spothop_master.clouds.configuration import ConfigError
from spothop_master.clouds.local import namespaces, view
from spothop_master.clouds.local.config import LocalConfig
from spothop_master.clouds.local.vm_processes import master_address

Isolation = Literal["users", "namespaces", "processes"]


@dataclass(frozen=True, kw_only=True)
class Decision:
    isolation: Isolation
    why: str = ""
    """Why it is not `users`."""


def decide(config: LocalConfig, *, master_url: str) -> Decision:
    """What `config.isolation` comes to here. Forks, so call it only while there is one thread.

    Raises ConfigError when it insists on what this machine does not give.
    """
    wanted = config.isolation
    if wanted == "processes":
        return Decision(isolation=wanted, why="the configuration says `isolation: processes`")
    address = f"the master's URL {master_url} names no IPv4 address and not localhost"
    refused = None if master_address(master_url) is not None else address
    if refused is None and wanted != "namespaces":
        refused = namespaces.refusal(partial(view.refusal, config.uid))
        if refused is None:
            return Decision(isolation="users")
    elif refused is None:
        refused = "the configuration says `isolation: namespaces`"
    if wanted == "users":
        raise ConfigError(f"isolation: users is not possible here: {refused}; hint: auto")
    if master_address(master_url) is not None and namespaces.available():
        return Decision(isolation="namespaces", why=refused)
    if wanted == "namespaces":
        raise ConfigError(
            "isolation: namespaces needs root with CAP_SYS_ADMIN, and a master's URL with an IPv4 "
            f"address or localhost (it is {master_url}); hint: isolation: auto"
        )
    return Decision(isolation="processes", why=refused)


def warning(decision: Decision) -> str | None:
    """What whoever starts a master has to know; None where jobs are kept apart."""
    if decision.isolation == "users":
        return None
    return (
        "every submitter is this master's user: VMs of the local cloud run as the user of the "
        f"master, because {decision.why}; a job can read the admin token, the database and all "
        "that the user can read (docs/security.md)"
    )
