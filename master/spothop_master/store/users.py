"""Users, their hashed tokens, and the browsers that logged in with one.

A token counts until it is revoked or expires, and while its user is not disabled. A log-in counts
while its token does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, case, delete, func, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from spothop.wire import QuotaView, TokenView, UserView
from spothop_master.security import Principal, Role, lower, token_hash
from spothop_master.store import dialects
from spothop_master.store.schema import Login, Token, User

ADMIN = "admin"


class NameTaken(Exception):
    """A user of this name exists."""


class LastAdmin(Exception):
    """Without it nobody could make tokens any more."""


def add_user(session: Session, *, name: str, role: Role, now: datetime) -> User:
    """Raises `NameTaken`."""
    if find_user(session, name) is not None:
        raise NameTaken(f"a user {name!r} exists; choose another name")
    user = User(name=name, role=role.value, created_at=now)
    try:
        with session.begin_nested():
            session.add(user)
    except IntegrityError:  # at the same moment
        raise NameTaken(f"a user {name!r} exists; choose another name") from None
    return user


def find_user(session: Session, name: str) -> User | None:
    return session.scalar(select(User).where(User.name == name))


def set_disabled(session: Session, user: User, *, disabled: bool, now: datetime) -> None:
    """Its browsers are logged out for good: enabled again, its tokens count, and nothing that
    somebody may have kept of a log-in. Raises `LastAdmin`."""
    user.disabled_at = (user.disabled_at or now) if disabled else None
    mine = select(Token.id).where(Token.user_id == user.id)
    session.execute(delete(Login).where(Login.token_id.in_(mine)))
    _keep_an_admin(session, now)


def add_token(
    session: Session,
    *,
    user_id: int,
    token: str,
    name: str,
    now: datetime,
    role: Role | None = None,
    expires_at: datetime | None = None,
) -> Token:
    row = Token(
        user_id=user_id,
        hash=token_hash(token),
        name=name,
        role=role.value if role is not None else None,
        created_at=now,
        expires_at=expires_at,
    )
    session.add(row)
    session.flush()
    return row


def tokens(session: Session, *which: ColumnElement[bool]) -> Sequence[tuple[Token, User]]:
    """Newest first."""
    both = select(Token, User).join(User, Token.user_id == User.id)
    found = session.execute(both.where(*which).order_by(Token.id.desc()))
    return [(token, user) for token, user in found]


def revoke(session: Session, token: Token, *, now: datetime) -> None:
    """Raises `LastAdmin`."""
    token.revoked_at = token.revoked_at or now
    session.execute(delete(Login).where(Login.token_id == token.id))
    _keep_an_admin(session, now)


def user_views(
    session: Session, *, now: datetime, quota: Callable[[User], QuotaView] | None = None
) -> list[UserView]:
    """By name; `quota` says what each takes."""
    valid = case((_counts(now), 1), else_=0)
    found = session.execute(
        select(User, func.coalesce(func.sum(valid), 0))
        .outerjoin(Token, Token.user_id == User.id)
        .group_by(User.id)
        .order_by(User.name)
    )
    return [
        UserView(
            name=user.name,
            role=Role(user.role).value,
            created_at=user.created_at,
            disabled_at=user.disabled_at,
            tokens=count,
            quota=quota(user) if quota is not None else None,
        )
        for user, count in found
    ]


def token_views(session: Session, *, now: datetime, all: bool) -> list[TokenView]:
    """Newest first; without `all` those that count."""
    found = tokens(session) if all else tokens(session, _counts(now))
    return [token_view(token, user) for token, user in found]


def token_view(token: Token, user: User) -> TokenView:
    return TokenView(
        id=token.id,
        user=user.name,
        name=token.name,
        role=_effective(user.role, token.role).value,
        created_at=token.created_at,
        expires_at=token.expires_at,
        revoked_at=token.revoked_at,
    )


def has_admin(session: Session) -> bool:
    return session.scalar(select(User.id).where(User.name == ADMIN)) is not None


def first_id(session: Session) -> int | None:
    """Of the user that the first start made."""
    return session.scalar(select(func.min(User.id)))


def ensure_admin(session: Session, *, token: str, now: datetime) -> bool:
    """Make user `admin` with this token where there is none yet; True when one was made."""
    if has_admin(session):
        return False
    user = add_user(session, name=ADMIN, role=Role.ADMIN, now=now)
    add_token(session, user_id=user.id, token=token, name="first start", now=now)
    return True


def whose(session: Session, token: str, *, now: datetime) -> Principal | None:
    """The user of an API token that counts."""
    return _principal_of(session, Token.hash == token_hash(token), now=now)


def log_in(
    session: Session, token: str, *, secret: str, now: datetime, expires_at: datetime
) -> bool:
    """A browser with this token gets `secret`; False when the token does not count. Log-ins that
    expired go."""
    if (user := whose(session, token, now=now)) is None:
        return False
    session.execute(delete(Login).where(Login.expires_at <= now))
    token_id = session.scalar(
        select(Token.id).where(Token.hash == token_hash(token), Token.user_id == user.user_id)
    )
    login = Login(hash=token_hash(secret), token_id=token_id, created_at=now, expires_at=expires_at)
    session.add(login)
    return True


def logged_in(session: Session, secret: str, *, now: datetime) -> Principal | None:
    """The user of a browser that logged in."""
    mine = select(Login.token_id).where(Login.hash == token_hash(secret), Login.expires_at > now)
    return _principal_of(session, Token.id == mine.scalar_subquery(), now=now)


def log_out(session: Session, secret: str) -> None:
    session.execute(delete(Login).where(Login.hash == token_hash(secret)))


def _principal_of(session: Session, *which: ColumnElement[bool], now: datetime) -> Principal | None:
    """Of the token that counts and to which this applies."""
    row = session.execute(
        select(User.id, User.name, User.role, Token.role)
        .join(Token, Token.user_id == User.id)
        .where(_counts(now), *which)
    ).first()
    if row is None:
        return None
    user_id, name, role, at_most = row
    return Principal(user_id=user_id, name=name, role=_effective(role, at_most))


def _effective(of_user: str, of_token: str | None) -> Role:
    role = Role(of_user)
    return lower(role, Role(of_token)) if of_token is not None else role


def _counts(now: datetime) -> ColumnElement[bool]:
    unexpired = or_(Token.expires_at.is_(None), Token.expires_at > now)
    living = and_(Token.id.is_not(None), User.disabled_at.is_(None))
    return and_(living, Token.revoked_at.is_(None), unexpired)


def _keep_an_admin(session: Session, now: datetime) -> None:
    """A token that expires is none to rely on."""
    session.flush()
    dialects.alone(session, "admins")  # two that take each other out look one after the other
    full = or_(Token.role.is_(None), Token.role == Role.ADMIN.value)
    lasting = Token.expires_at.is_(None)
    if _principal_of(session, User.role == Role.ADMIN.value, full, lasting, now=now) is None:
        raise LastAdmin("no admin would be left with a token that does not expire")
