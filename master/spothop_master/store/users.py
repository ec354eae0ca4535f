"""Users and their hashed tokens."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from spothop_master.security import Principal, Role, token_hash
from spothop_master.store.schema import Token, User

ADMIN = "admin"


class NameTaken(Exception):
    """A user of this name exists."""


def add_user(session: Session, *, name: str, role: Role, now: datetime) -> User:
    """Raises `NameTaken`."""
    if session.scalar(select(User.id).where(User.name == name)) is not None:
        raise NameTaken(f"a user {name!r} exists; choose another name")
    user = User(name=name, role=role.value, created_at=now)
    session.add(user)
    session.flush()
    return user


def add_token(session: Session, *, user_id: int, token: str, name: str, now: datetime) -> None:
    session.add(Token(user_id=user_id, hash=token_hash(token), name=name, created_at=now))
    session.flush()


def has_admin(session: Session) -> bool:
    return session.scalar(select(User.id).where(User.name == ADMIN)) is not None


def ensure_admin(session: Session, *, token: str, now: datetime) -> bool:
    """Make user `admin` with this token where there is none yet; True when one was made."""
    if has_admin(session):
        return False
    user = add_user(session, name=ADMIN, role=Role.ADMIN, now=now)
    add_token(session, user_id=user.id, token=token, name="first start", now=now)
    return True


def whose(session: Session, token: str) -> Principal | None:
    """The user of a token that was not revoked."""
    row = session.execute(
        select(User.id, User.name, User.role)
        .join(Token, Token.user_id == User.id)
        .where(Token.hash == token_hash(token), Token.revoked_at.is_(None))
    ).first()
    return Principal(user_id=row[0], name=row[1], role=Role(row[2])) if row else None


def revoke_tokens(session: Session, *, user_id: int, now: datetime) -> int:
    """Revoke all tokens of a user; how many."""
    tokens = session.scalars(
        select(Token).where(Token.user_id == user_id, Token.revoked_at.is_(None))
    ).all()
    for token in tokens:
        token.revoked_at = now
    return len(tokens)
