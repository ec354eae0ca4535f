"""`/api/v1/users` and `/tokens`: who may use this master. For admins alone."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Path
from sqlalchemy.orm import Session

from spothop.wire import NewToken, QuotaRequest, TokenRequest, TokenView, UserRequest, UserView
from spothop_master import home
from spothop_master.api import errors, quotas
from spothop_master.api.deps import MAX_INTEGER, Reader, ServicesDep
from spothop_master.api.separation import refuse_user
from spothop_master.problems import ApiError
from spothop_master.security import Principal, Role, new_api_token
from spothop_master.services import Services
from spothop_master.store import users
from spothop_master.store.schema import Token, User

router = APIRouter(prefix="/api/v1", tags=["users"], responses=errors.answers(401, 403))

FIRST = "first"
"""Name of the token that a new user gets."""


async def admin(principal: Reader) -> Principal:
    if principal.role is not Role.ADMIN:
        raise ApiError(
            403, "admins_only", f"user {principal.name!r} is no admin", "ask one to do this"
        )
    return principal


Admin = Annotated[Principal, Depends(admin)]
TokenId = Annotated[int, Path(ge=1, le=MAX_INTEGER)]


@router.get("/users")
def list_users(services: ServicesDep, _user: Admin) -> list[UserView]:
    """By name."""
    with services.db.read() as session:
        usage = quotas.Usage(services, session)
        return users.user_views(session, now=services.clock(), quota=usage.view)


@router.post("/users", status_code=201, responses=errors.answers(409, 413, 422))
def add_user(services: ServicesDep, _user: Admin, request: UserRequest) -> NewToken:
    """A new user with a first token, which no other answer ever shows."""
    now, role = services.clock(), Role(request.role)
    refuse_user(services, role)
    try:
        with services.db.begin() as session:
            user = users.add_user(session, name=request.name, role=role, now=now)
            return _new_token(session, user, TokenRequest(user=user.name, name=FIRST), services)
    except users.NameTaken as error:
        fact, _, hint = str(error).partition("; ")
        raise ApiError(409, "user_exists", fact, hint, field="name") from None


@router.post("/users/{name}/disable", responses=errors.answers(404, 409, 422))
def disable_user(name: str, services: ServicesDep, _user: Admin) -> UserView:
    """None of the user's tokens counts any more. Its jobs train on."""
    return _set_disabled(services, name, disabled=True)


@router.post("/users/{name}/enable", responses=errors.answers(404, 422))
def enable_user(name: str, services: ServicesDep, _user: Admin) -> UserView:
    """The user's tokens count again, but for those that were revoked."""
    return _set_disabled(services, name, disabled=False)


@router.patch("/users/{name}/quota", responses=errors.answers(404, 413, 422))
def set_quota(name: str, services: ServicesDep, _user: Admin, request: QuotaRequest) -> UserView:
    """What the user may take; what is not named stays, and null is what the settings say. What is
    over a new limit stays, too: nothing is ended."""
    with services.db.begin() as session:
        user = _find(session, name)
        for field in request.model_fields_set:
            setattr(user, f"max_{field}", getattr(request, field))
        session.flush()
        return _view(services, session, user)


@router.get("/tokens", responses=errors.answers(422))
def list_tokens(services: ServicesDep, _user: Admin, all: bool = False) -> list[TokenView]:
    """Those that count, or `all` that ever were; newest first."""
    with services.db.read() as session:
        return users.token_views(session, now=services.clock(), all=all)


@router.post("/tokens", status_code=201, responses=errors.answers(404, 413, 422))
def create_token(services: ServicesDep, _user: Admin, request: TokenRequest) -> NewToken:
    """The answer is the only one that ever shows the token."""
    with services.db.begin() as session:
        return _new_token(session, _find(session, request.user, field="user"), request, services)


@router.delete("/tokens/{token_id}", responses=errors.answers(404, 409, 422))
def revoke_token(token_id: TokenId, services: ServicesDep, _user: Admin) -> TokenView:
    """It counts no more, nor does a browser that logged in with it."""
    try:
        with services.db.begin() as session:
            token = session.get(Token, token_id)
            if token is None:
                raise ApiError(
                    404,
                    "no_such_token",
                    f"there is no token {token_id}",
                    "`spothop token list` shows them",
                )
            users.revoke(session, token, now=services.clock())
            home.forget_token(services.settings.home, token.hash)
            return users.token_view(token, session.get_one(User, token.user_id))
    except users.LastAdmin as error:
        raise _last_admin(error) from None


def _new_token(
    session: Session, user: User, request: TokenRequest, services: ServicesDep
) -> NewToken:
    now, text = services.clock(), new_api_token()
    lasts_s = request.expires_in_s
    token = users.add_token(
        session,
        user_id=user.id,
        token=text,
        name=request.name,
        role=Role(request.role) if request.role is not None else None,
        expires_at=now + timedelta(seconds=lasts_s) if lasts_s is not None else None,
        now=now,
    )
    return NewToken(token=text, view=users.token_view(token, user))


def _set_disabled(services: ServicesDep, name: str, *, disabled: bool) -> UserView:
    now = services.clock()
    try:
        with services.db.begin() as session:
            user = _find(session, name)
            users.set_disabled(session, user, disabled=disabled, now=now)
            return _view(services, session, user)
    except users.LastAdmin as error:
        raise _last_admin(error) from None


def _view(services: Services, session: Session, user: User) -> UserView:
    usage = quotas.Usage(services, session)
    found = users.user_views(session, now=services.clock(), quota=usage.view)
    return next(view for view in found if view.name == user.name)


def _find(session: Session, name: str, *, field: str | None = None) -> User:
    user = users.find_user(session, name)
    if user is None:
        raise ApiError(
            404,
            "no_such_user",
            f"there is no user {name[:64]!r}",
            "`spothop user list` shows them",
            field=field,
        )
    return user


def _last_admin(error: users.LastAdmin) -> ApiError:
    return ApiError(
        409, "last_admin", str(error), "make another one first: `spothop token create admin`"
    )
