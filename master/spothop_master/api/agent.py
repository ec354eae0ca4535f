"""`/agent/v1`: what a VM's agent calls. Its session token is its only right, and for its own VM."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse
from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from spothop.wire import (
    PROTOCOL,
    JoinReply,
    JoinRequest,
    LogReply,
    Strict,
    SyncReply,
    SyncRequest,
    VmState,
)
from spothop_master.agents import protocol
from spothop_master.agents.directive_cache import MAX_AGE
from spothop_master.agents.sessions import VmSession, vm_is_over
from spothop_master.api import errors
from spothop_master.api.bundles import no_such_bundle
from spothop_master.api.deps import MAX_INTEGER, Bearer, Count, ServicesDep
from spothop_master.problems import ApiError
from spothop_master.security import new_session_token, token_hash
from spothop_master.services import Services
from spothop_master.store import attempts
from spothop_master.store.schema import Job, VmRow

router = APIRouter(prefix="/agent/v1", tags=["agent"])

PROGRESS = frozenset({"steps", "metrics"})
"""Reports that most syncs carry and that change no directive at once."""

WAITING_SYNC_S = 0.2
"""Between syncs of a VM that is ready and waits until it may go on."""
DRAINING_SYNC_S = 1.0
"""Between syncs of a VM with a notice: it hears in time that its replacement is ready."""

Message = TypeVar("Message", bound=Strict)


@router.post("/join")
async def join(request: Request, services: ServicesDep) -> JoinReply:
    """The one-time token of the VM becomes its session. 401 when the token is unknown or used."""
    message = await _read(request, JoinRequest)
    address = request.client.host if request.client else None
    return await run_in_threadpool(_join, services, message, address)


@router.post("/sync")
async def sync(request: Request, services: ServicesDep, token: Bearer) -> SyncReply:
    """Reports in order, answered when they are committed; a plain heartbeat from memory."""
    message = await _read(request, SyncRequest)
    known = await _session(services, token)
    if message.vm != known.vm:
        raise ApiError(
            403, "wrong_vm", f"this session is of VM {known.vm!r}, not {message.vm!r}", "join again"
        )
    services.heartbeats.heard(known.vm, services.clock())
    if not message.reports:
        max_age = None if services.db.single_master else MAX_AGE
        if (reply := _from_memory(services, known, max_age)) is not None:
            return reply
    return await run_in_threadpool(_sync, services, known, message)


@router.get("/bundles/{sha256}")
async def get_bundle(sha256: str, services: ServicesDep, token: Bearer) -> FileResponse:
    """The bundle of the VM's own job."""
    known = await _session(services, token)
    path = await run_in_threadpool(_own_bundle, services, known, sha256)
    return FileResponse(path, media_type="application/gzip")


@router.post("/logs")
async def post_log(
    request: Request,
    services: ServicesDep,
    token: Bearer,
    attempt: Annotated[int, Query(ge=1, le=MAX_INTEGER)],
    offset: Count,
) -> LogReply:
    """Raw bytes that begin at `offset`; the answer says where the next chunk has to begin."""
    known = await _session(services, token)
    data = await request.body()
    return await run_in_threadpool(_append_log, services, known, attempt, offset, data)


async def _session(services: Services, token: str) -> VmSession:
    known = services.sessions.remembered(token)
    if known is None:
        return await run_in_threadpool(services.sessions.look_up, token)
    return known


def _join(services: Services, message: JoinRequest, address: str | None) -> JoinReply:
    session_token = new_session_token()
    now = services.clock()
    try:
        with services.db.begin() as session:
            vm, assignment = protocol.join(
                session,
                join_hash=token_hash(message.token),
                session_hash=token_hash(session_token),
                now=now,
                boot_s=message.boot_s,
                address=address,
                statistics=services.statistics,
            )
            vm_id = vm.id
    except protocol.BadToken as error:
        raise ApiError(
            401, "bad_join_token", str(error), "end this VM; the master makes new ones"
        ) from None
    services.sessions.forget(vm_id)  # an earlier answer that got lost
    services.heartbeats.heard(vm_id, now)
    services.directives.forget(vm_id)
    return JoinReply(
        vm=vm_id,
        session=session_token,
        sync_every_s=services.settings.sync_every_s,
        assignment=assignment,
    )


def _from_memory(
    services: Services, known: VmSession, max_age: timedelta | None = None
) -> SyncReply | None:
    directives = services.directives.get(known.vm, now=services.clock(), max_age=max_age)
    acked = services.sessions.acked(known.vm)
    if directives is None or acked is None:
        return None
    return SyncReply(
        ack_seq=acked, directives=directives, next_delay_s=services.settings.sync_every_s
    )


def _sync(services: Services, known: VmSession, message: SyncRequest) -> SyncReply:
    now = services.clock()
    services.statistics.warm(known.pool, now=now)
    kinds = {envelope.report.kind for envelope in message.reports}
    if kinds and kinds <= PROGRESS:
        with services.db.begin() as session:
            row = _refuse_over(services, session, known.vm)
            protocol.apply(session, known.vm, message.reports, now=now)
            acked = row.acked_seq
            trains_on = services.db.single_master or protocol.trains_on(session, row)
        services.sessions.acknowledge(known.vm, acked)
        if trains_on and (reply := _from_memory(services, known)) is not None:
            return reply  # after the commit: a change of states has made the answer void
    return _sync_by_rows(services, known, message, now)


def _sync_by_rows(
    services: Services, known: VmSession, message: SyncRequest, now: datetime
) -> SyncReply:
    """Reports that were applied already change nothing."""
    version = services.directives.version(known.vm, known.job)
    with services.db.begin() if message.reports else services.db.read() as session:
        row = _refuse_over(services, session, known.vm)
        if message.reports:
            protocol.apply(session, known.vm, message.reports, now=now)
        acked = row.acked_seq
        answer = protocol.answer(
            session,
            known.vm,
            now=now,
            statistics=services.statistics,
            writes=bool(message.reports),
        )
    services.sessions.acknowledge(known.vm, acked)
    delay_s = services.settings.sync_every_s
    if answer.waiting:  # every second that it waits is one without training
        delay_s = min(delay_s, WAITING_SYNC_S)
    elif answer.draining:
        delay_s = min(delay_s, DRAINING_SYNC_S)
    else:
        services.directives.keep(version, answer.directives, now=now)
    return SyncReply(ack_seq=acked, directives=answer.directives, next_delay_s=delay_s)


def _refuse_over(services: Services, session: Session, vm_id: str) -> VmRow:
    """The VM's row; 410 once the cloud says that the VM is gone."""
    row = session.get(VmRow, vm_id)
    if row is None or row.state == VmState.TERMINATED.value:
        services.sessions.forget(vm_id)
        services.heartbeats.forget(vm_id)
        services.directives.forget(vm_id)
        raise vm_is_over(vm_id)
    return row


def _own_bundle(services: Services, known: VmSession, sha256: str) -> Path:
    with services.db.read() as session:
        _refuse_over(services, session, known.vm)
        own = session.scalar(select(Job.bundle).where(Job.id == known.job))
    path = services.bundles.path(sha256) if sha256 == own else None
    if path is None:
        raise no_such_bundle(sha256)
    return path


def _append_log(
    services: Services, known: VmSession, attempt: int, offset: int, data: bytes
) -> LogReply:
    node = services.sessions.node_of(known.vm, attempt)
    if node is None:
        with services.db.read() as session:
            row = _refuse_over(services, session, known.vm)
            place = attempts.place_of(session, row.id, attempt)
            if place is None:
                raise ApiError(
                    403,
                    "wrong_attempt",
                    f"VM {known.vm!r} has no attempt {attempt}",
                    "drop its log",
                )
            node = place.node
        services.sessions.allow_log(known.vm, attempt, node)
    size = services.logs.append(known.job, attempt, node, offset=offset, data=data)
    return LogReply(next_offset=size)


async def _read(request: Request, model: type[Message]) -> Message:
    """The body as this message. The protocol is looked at first: a newer agent's other fields are
    unknown to us, and it should learn that its version is the reason."""
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise ApiError(
            422, "invalid_request", f"the body is not JSON: {error}", "send JSON"
        ) from None
    spoken = body.get("protocol", PROTOCOL) if isinstance(body, dict) else PROTOCOL
    if spoken != PROTOCOL:
        raise ApiError(
            400,
            "wrong_protocol",
            f"the agent speaks protocol {spoken!r}, this master {PROTOCOL}",
            "install the agent of the master's version",
            field="protocol",
        )
    try:
        return model.model_validate(body)
    except ValidationError as error:
        found = [{**e, "loc": ("body", *e["loc"])} for e in error.errors(include_url=False)]
        raise errors.invalid(found) from None
