"""`GET /jobs/{ref}/logs`: one attempt's log from a byte offset on, with a long poll."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from fastapi import APIRouter, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from spothop.wire import VmState
from spothop_master.api import errors, openapi
from spothop_master.api.deps import Count, Reader, ServicesDep
from spothop_master.api.jobs import Wait
from spothop_master.api.lookup import job_for
from spothop_master.logs import Piece
from spothop_master.notifier import News
from spothop_master.polling import poll
from spothop_master.problems import ApiError
from spothop_master.security import Principal
from spothop_master.services import Services
from spothop_master.store.schema import Attempt, Job, Place, VmRow

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

LATE = timedelta(seconds=10)
"""How long after its end an attempt's last lines may still come from a VM that is not gone."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """What one look found. `complete`: nothing follows after this piece."""

    job: str
    attempt: int
    piece: Piece
    complete: bool


@router.get(
    "/{ref}/logs",
    response_class=Response,
    responses=openapi.gives_bytes("text/plain") | errors.answers(401, 404, 409, 422),
)
async def get_logs(
    ref: str,
    services: ServicesDep,
    user: Reader,
    attempt: Count = 0,
    node: Count = 0,
    offset: Count = 0,
    wait_s: Wait = 0,
) -> Response:
    """Plain text from `offset` (bytes) on. `attempt` 0 is the newest one that wrote anything;
    each of its nodes has a log of its own.

    Headers: X-Next-Offset, X-Attempt, X-Complete (true when nothing more will come).
    """

    def ask() -> Chunk:
        return _look(services, user, ref, attempt, node, offset)

    chunk = await poll(
        services,
        ask,
        enough=lambda c: bool(c.piece.data) or c.complete,
        topics=lambda c: [(News.LOG, c.job), (News.ROWS, c.job)],
        wait_s=wait_s,
    )
    return Response(
        chunk.piece.data,
        media_type="text/plain; charset=utf-8",
        headers={
            "X-Next-Offset": str(chunk.piece.next_offset),
            "X-Attempt": str(chunk.attempt),
            "X-Complete": "true" if chunk.complete else "false",
            "X-Content-Type-Options": "nosniff",
        },
    )


def _look(
    services: Services, user: Principal, ref: str, number: int, node: int, offset: int
) -> Chunk:
    with services.db.read() as session:
        job = job_for(session, user, ref)
        found = ends_of(services, session, job, number, node)
    return chunk_of(services, found, number, offset)


@dataclass(frozen=True, kw_only=True)
class Ends:
    """Which attempts of a job have this node, and whether nothing follows in their logs."""

    job: str
    job_is_over: bool
    node: int
    over: dict[int, bool]


def ends_of(services: Services, session: Session, job: Job, number: int, node: int = 0) -> Ends:
    """Of attempt `number` if there is one with this node, else of all that have it."""
    found = _places(session, job.id, node, number) or _places(session, job.id, node)
    now = services.clock()
    over = {attempt: _is_over(ended_at, state, now) for attempt, ended_at, state in found}
    return Ends(job=job.id, job_is_over=job.ended_at is not None, node=node, over=over)


def chunk_of(services: Services, ends: Ends, number: int, offset: int) -> Chunk:
    """From `offset` on; `number` 0 is the newest that wrote anything. Reads files: never inside a
    session. Raises ApiError."""
    job_id, node, over, job_is_over = ends.job, ends.node, ends.over, ends.job_is_over
    if number == 0:
        number = _newest_with_log(services, job_id, node, sorted(over, reverse=True))
    elif number not in over:
        raise _no_such_attempt(job_id, number, node, over)
    if gone := services.logs.removed(job_id):
        return _instead(job_id, number, f"{gone}\n".encode(), offset)
    services.followers.looked(job_id, services.clock())
    piece = services.logs.read(job_id, number, node, offset=offset)
    at_end = piece.next_offset >= services.logs.size(job_id, number, node)
    return Chunk(
        job=job_id, attempt=number, piece=piece, complete=at_end and over.get(number, job_is_over)
    )


def _instead(job: str, number: int, text: bytes, offset: int) -> Chunk:
    """What stands in the place of a log that was deleted."""
    end = max(offset, len(text))  # who followed the log up to there does not begin anew
    piece = Piece(data=text[offset:], next_offset=end)
    return Chunk(job=job, attempt=number, piece=piece, complete=True)


def _no_such_attempt(job_id: str, number: int, node: int, known: Iterable[int]) -> ApiError:
    newest = max(known, default=0)
    which = f"attempt {number}" if node == 0 else f"node {node} in attempt {number}"
    return ApiError(
        404,
        "no_such_attempt",
        f"job {job_id!r} has no {which}",
        f"its attempts: {f'1 to {newest}' if newest else 'none yet'}",
        field="attempt",
    )


def _places(
    session: Session, job_id: str, node: int, number: int = 0
) -> list[tuple[int, datetime | None, str]]:
    """Every attempt that has this node, or this one: its number, its end, the state of the VM."""
    query = (
        select(Attempt.number, Attempt.ended_at, VmRow.state)
        .join(Place, Place.attempt_id == Attempt.id)
        .join(VmRow, VmRow.id == Place.vm_id)
        .where(Attempt.job_id == job_id, Place.node == node)
    )
    if number:
        query = query.where(Attempt.number == number)
    return [(row[0], row[1], row[2]) for row in session.execute(query)]


def _is_over(ended_at: datetime | None, state: str, now: datetime) -> bool:
    if ended_at is None:
        return False
    return state == VmState.TERMINATED.value or now - ended_at > LATE


def _newest_with_log(services: Services, job_id: str, node: int, numbers: list[int]) -> int:
    for number in numbers:
        if services.logs.size(job_id, number, node):
            return number
    return numbers[0] if numbers else 0
