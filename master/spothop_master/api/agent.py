"""`/agent/v1`: what a VM's agent calls. Its session token is its only right, and for its own VM."""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse
from sqlalchemy import select

from spothop.wire import (
    LOGS_RIDE,
    SPEAKS,
    SPOKEN,
    JoinReply,
    JoinRequest,
    LogReply,
    SyncReply,
    SyncRequest,
    Wanted,
)
from spothop_master.agents import protocol
from spothop_master.agents.sessions import VmSession
from spothop_master.agents.syncs import LOG_SLOWED
from spothop_master.api import errors, openapi, sync_calls
from spothop_master.api.bundles import no_such_bundle
from spothop_master.api.deps import MAX_INTEGER, Bearer, Count, ServicesDep
from spothop_master.problems import ApiError
from spothop_master.security import new_session_token, token_hash, trust
from spothop_master.services import Services
from spothop_master.store import jobs, sealing
from spothop_master.store.schema import Job, VmRow

log = logging.getLogger(__name__)

router = APIRouter(prefix="/agent/v1", tags=["agent"])

TAKEN = (JoinRequest, SyncRequest)
"""Messages that routes here read by themselves; see `openapi.takes`."""


@router.post(
    "/join",
    responses=errors.answers(400, 401, 403, 409, 413, 422),
    openapi_extra=openapi.takes(JoinRequest),
)
async def join(request: Request, services: ServicesDep, response: Response) -> JoinReply:
    """The one-time token of the VM becomes its session. 401 when the token is unknown or used."""
    protocol = sync_calls.protocol_of(request.headers.get(SPEAKS))
    response.headers[SPOKEN] = str(protocol)
    message = sync_calls.read(await request.body(), JoinRequest)
    address = request.client.host if request.client else None
    reply = await services.agent_threads.urgent.run(_join, services, message, address, protocol)
    trust(request.scope, reply.vm)
    return reply


@router.post(
    "/sync",
    response_model=SyncReply,
    responses=errors.answers(400, 401, 403, 410, 413, 422),
    openapi_extra=openapi.takes(SyncRequest),
)
async def sync(request: Request, services: ServicesDep, token: Bearer) -> Response:
    """Reports in order, answered when they are committed; a plain heartbeat from memory."""
    known = await _session(request, services, token)
    rides = LOGS_RIDE in request.headers
    content = await sync_calls.answer(services.syncs, known, await request.body(), rides=rides)
    return Response(content, media_type="application/json")


@router.get(
    "/bundles/{sha256}",
    response_class=FileResponse,
    responses=openapi.gives_bytes("application/gzip") | errors.answers(401, 404, 410, 422),
)
async def get_bundle(
    sha256: str, request: Request, services: ServicesDep, token: Bearer
) -> FileResponse:
    """The bundle of the VM's own job."""
    known = await _session(request, services, token)
    path = await services.agent_threads.bulk.run(_own_bundle, services, known, sha256)
    return FileResponse(path, media_type="application/gzip")


@router.get(
    "/zips/{sha256}",
    response_class=FileResponse,
    responses=openapi.gives_bytes("application/zip") | errors.answers(404, 422),
)
async def get_zip(sha256: str, services: ServicesDep) -> FileResponse:
    """The agent, by its content. For everyone who reaches the master: a VM that boots has nothing
    to show yet, and these are the bytes of public packages."""
    path = await services.agent_threads.bulk.run(services.agent_zips.path, sha256)
    if path is None:
        raise ApiError(
            404,
            "no_such_zip",
            f"the master has no agent {sha256[:64]}",
            "end this VM; the master makes new ones",
        )
    return FileResponse(path, media_type="application/zip")


@router.post(
    "/logs",
    responses=errors.answers(401, 403, 410, 413, 422, 429, 507),
    openapi_extra=openapi.takes_bytes("application/octet-stream"),
)
async def post_log(
    request: Request,
    services: ServicesDep,
    token: Bearer,
    attempt: Annotated[int, Query(ge=1, le=MAX_INTEGER)],
    offset: Count,
) -> LogReply:
    """Raw bytes that begin at `offset`; the answer says where the next chunk has to begin."""
    known = await _session(request, services, token)
    data = await request.body()
    wait_s = services.limits.logs.take(known.vm, len(data), now=services.clock())
    if wait_s > 0.0:
        await services.syncs.tell_slowed(known, LOG_SLOWED)
        hint = "send it later; max_log_bytes_per_s is a setting of the master"
        raise ApiError(429, "too_much_log", LOG_SLOWED, hint, retry_after_s=wait_s)
    append = services.agent_logs.append
    size = await services.agent_threads.bulk.run(append, known, attempt, offset, data)
    return LogReply(next_offset=size)


async def _session(request: Request, services: Services, token: str) -> VmSession:
    known = await services.syncs.session(token)
    trust(request.scope, known.vm)
    return known


def _join(services: Services, message: JoinRequest, address: str | None, spoken: int) -> JoinReply:
    session_token, join_hash = new_session_token(), token_hash(message.token)
    now = services.clock()
    try:
        with services.db.read() as session:
            protocol.refuse_unknown(session, join_hash)
        with services.db.begin() as session:
            vm, assignment = protocol.join(
                session,
                join_hash=join_hash,
                session_hash=token_hash(session_token),
                now=now,
                boot_s=message.boot_s,
                address=address,
                statistics=services.statistics,
                spoken=spoken,
            )
            vm_id = vm.id
    except protocol.BadToken as error:
        raise ApiError(
            401, "bad_join_token", str(error), "end this VM; the master makes new ones"
        ) from None
    except sealing.Unreadable as error:
        fact, _, hint = str(error).partition("; ")
        log.error("VM of a job that cannot go on: %s", error)
        _pause(services, join_hash, f"{error}; `spothop resume` goes on with the key", now)
        raise ApiError(409, "secrets_unreadable", fact, hint) from None
    services.sessions.forget(vm_id)  # an earlier answer that got lost
    services.heartbeats.heard(vm_id, now)
    services.directives.forget(vm_id)
    return JoinReply(
        vm=vm_id,
        session=session_token,
        sync_every_s=services.settings.sync_every_s,
        assignment=assignment,
    )


def _pause(services: Services, join_hash: str, why: str, now: datetime) -> None:
    """The job whose VM this is: each further VM would cost money and be told the same."""
    with services.db.begin() as session:
        job_id = session.scalar(select(VmRow.job_id).where(VmRow.join_hash == join_hash))
        with suppress(jobs.JobIsOver):
            if job_id is not None:
                jobs.want(session, job_id, Wanted.PAUSED, now=now, why=why)


def _own_bundle(services: Services, known: VmSession, sha256: str) -> Path:
    with services.db.read() as session:
        services.syncs.refuse_over(session, known.vm)
        own = session.scalar(select(Job.bundle).where(Job.id == known.job))
    path = services.bundles.path(sha256) if sha256 == own else None
    if path is None:
        raise no_such_bundle(sha256)
    return path
