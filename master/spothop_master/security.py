"""Tokens and roles. Tokens are random, shown once, and kept only as their SHA-256.

A fast hash is right here: the tokens are 256 random bits, so there is nothing to guess
(passwords, which people choose, would need a slow one).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Role(str, Enum):
    """What a user may do: `admin` everything, `user` their own jobs, `viewer` only look at all."""

    ADMIN = "admin"
    USER = "user"
    VIEWER = "viewer"


RANK = (Role.VIEWER, Role.USER, Role.ADMIN)
"""Each may all that those before it may."""


def lower(one: Role, other: Role) -> Role:
    """The role that may less."""
    return min(one, other, key=RANK.index)


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Who sends a request."""

    user_id: int
    name: str
    role: Role
    """The lower one of the user's and the token's."""

    @property
    def sees_owner(self) -> int | None:
        """The only owner whose jobs this one sees; None means all."""
        return self.user_id if self.role is Role.USER else None

    @property
    def may_write(self) -> bool:
        return self.role is not Role.VIEWER

    def may_see_values(self, owner_id: int | None) -> bool:
        """Of a job's environment: its owner and admins. Viewers see all jobs, but not that."""
        return self.role is Role.ADMIN or self.user_id == owner_id

    @property
    def who(self) -> str:
        """Among all who have tokens."""
        return f"user {self.user_id}"

    def may_see(self, owner_id: int | None) -> bool:
        return self.sees_owner is None or self.sees_owner == owner_id


def new_api_token() -> str:
    """A token of a user; the prefix lets secret scanners find leaked ones."""
    return f"spothop_{secrets.token_urlsafe(32)}"


def new_login_secret() -> str:
    """What the cookie of a browser that logged in holds."""
    return secrets.token_urlsafe(32)


def new_session_token() -> str:
    """The bearer token of one VM."""
    return secrets.token_urlsafe(32)


def token_hash(token: str) -> str:
    """SHA-256 in hexadecimal, the only form that is stored."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


TRUST = "spothop.trust"
"""The ASGI extension of a server that asks to be told whom it may trust (see `front_door`)."""


def trust(scope: Mapping[str, Any], who: str) -> None:
    """The request of this ASGI scope has shown a valid token of this user or VM."""
    tell = (scope.get("extensions") or {}).get(TRUST)
    if tell is not None:
        tell(who)
