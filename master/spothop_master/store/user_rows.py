"""The tables of users and of what lets them in. Part of `schema`, where their users find them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from spothop_master.security import Role
from spothop_master.store.columns import Base, one_of


class User(Base):
    __tablename__ = "users"
    __table_args__ = (one_of("role", Role),)
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    role: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime]
    disabled_at: Mapped[datetime | None]
    """From then on none of the user's tokens counts."""
    max_jobs: Mapped[int | None]
    """This and the next three: the user's own quota (`store/quotas`); None: as the settings say."""
    max_vms: Mapped[int | None]
    max_bundle_bytes: Mapped[int | None] = mapped_column(BigInteger)
    max_log_bytes: Mapped[int | None] = mapped_column(BigInteger)


class Token(Base):
    """An API token; only its SHA-256 is kept."""

    __tablename__ = "tokens"
    __table_args__ = (one_of("role", Role),)
    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    hash: Mapped[str] = mapped_column(String(64), unique=True)
    name: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime]
    role: Mapped[str | None] = mapped_column(String(16))
    """What the token may do at most; None is all that its user may."""
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Login(Base):
    """A browser that logged in with a token; it ends with the token. Only the SHA-256 of the
    secret in its cookie is kept."""

    __tablename__ = "logins"
    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    token_id: Mapped[int] = mapped_column(ForeignKey("tokens.id"), index=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)


class BundleUpload(Base):
    """A user who has sent the bytes of a code bundle, and so may run it."""

    __tablename__ = "bundle_uploads"
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), primary_key=True)
    uploaded_at: Mapped[datetime]
