"""REST for admins: users and their API tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from spothop.wire.common import Strict

RoleName = Literal["admin", "user", "viewer"]
"""What a user may do: `admin` everything, `user` their own jobs, `viewer` only look at all."""


LONGEST_S = 10 * 365 * 86400.0
"""The farthest expiry that can be asked for: ten years."""


MOST, MOST_BYTES = 2**31 - 1, 2**53 - 1
"""The largest quotas: a number of the database, and one that every reader of JSON keeps."""


class UserRequest(Strict):
    """A new user; its first token is in the answer."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$")
    role: RoleName = "user"


class QuotaRequest(Strict):
    """What a user may take of the master: what is not named stays, None is the master's default."""

    jobs: int | None = Field(default=None, strict=True, ge=0, le=MOST)
    vms: int | None = Field(default=None, strict=True, ge=0, le=MOST)
    bundle_bytes: int | None = Field(default=None, strict=True, ge=0, le=MOST_BYTES)
    log_bytes: int | None = Field(default=None, strict=True, ge=0, le=MOST_BYTES)


class Used(BaseModel):
    used: int
    limit: int | None
    """None: there is none."""


class QuotaView(BaseModel):
    """What a user takes, and may take."""

    jobs: Used
    """That have not ended and are not paused."""
    vms: Used
    """Without those that have a notice."""
    bundle_bytes: Used
    log_bytes: Used


class UserView(BaseModel):
    name: str
    role: RoleName
    created_at: datetime
    disabled_at: datetime | None = None
    """None of its tokens counts since then."""
    tokens: int
    """Those that count."""
    quota: QuotaView | None = None
    """Masters before this field do not tell."""


class TokenRequest(Strict):
    """A new token of a user."""

    user: str = Field(min_length=1, max_length=64)
    name: str = Field(default="", max_length=64)
    """What it is for."""
    role: RoleName | None = None
    """What it may do at most; None is all that its user may."""
    expires_in_s: float | None = Field(default=None, gt=0, le=LONGEST_S, allow_inf_nan=False)


class TokenView(BaseModel):
    id: int
    user: str
    name: str
    role: RoleName
    """The lower one of the token's and its user's."""
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class NewToken(BaseModel):
    """The only answer that ever holds the token itself."""

    token: str
    view: TokenView
