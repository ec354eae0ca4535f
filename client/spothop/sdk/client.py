"""The SDK: everything that the CLI does, as typed calls. Raises `spothop.sdk.errors.ClientError`.

>>> with Client("http://127.0.0.1:8900", token) as client:
...     job = client.submit(spec, client.upload_bundle(bundle))
...     for piece in client.logs(job.id, follow=True):
...         print(piece.text, end="")
"""

from __future__ import annotations

import codecs
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx

from spothop.jobspec import JobSpec
from spothop.sdk.admin import Admin
from spothop.sdk.bundle import Bundle
from spothop.sdk.errors import ClientError, NotSpothop, Unreachable
from spothop.sdk.http import Http, part
from spothop.wire import (
    JOB_ENDED,
    CancelReply,
    CancelRequest,
    CheckpointPage,
    CheckpointView,
    DiskView,
    EventView,
    InjectionView,
    InjectRequest,
    JobDetail,
    JobNews,
    JobPage,
    JobView,
    ManyJobs,
    ManyReply,
    PlanReply,
    PoolView,
    PreemptRequest,
    SubmitRequest,
    VmPage,
    VmView,
)

if TYPE_CHECKING:
    from spothop.sdk.downloads import Downloaded

WAIT_S = 20.0
"""Long poll of followers."""
PAUSE_S = 1.0
"""Between polls where the master has nothing to hold the answer for."""
PAGE = 50
"""Rows of a page where nobody says how many."""
LONG_PAGE = 500
"""The most that a page may have."""
NO_EVENTS = 2**62
"""Above the id of any."""


@dataclass(frozen=True, kw_only=True)
class LogPiece:
    """A part of one attempt's log."""

    attempt: int
    data: bytes
    next_offset: int
    complete: bool
    """The attempt is over and this is the end of its log."""


@dataclass(frozen=True, kw_only=True)
class LogText:
    attempt: int
    text: str


class Client(Admin):
    """A master, as one user sees it; `Admin` has what only admins may."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        ca: str = "",
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`ca`: certificates in PEM that alone may vouch for the master (`authority.find`)."""
        self._http = Http(url, token, ca=ca, transport=transport)
        self._sleep = sleep

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        type_: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # --- submitting ---

    def plan(self, spec: JobSpec | Mapping[str, Any]) -> PlanReply:
        """Where the job would run, and at what price."""
        answer = self._http.send("POST", "/plan", body={"spec": _mapping(spec)})
        return self._http.read(PlanReply, answer)

    def upload_bundle(self, bundle: Bundle) -> str:
        """Upload unless the master has it already; returns its SHA-256."""
        path = f"/bundles/{bundle.sha256}"
        # A HEAD answer has no body, so the refusal is read from the PUT.
        if self._http.send("HEAD", path, allow=tuple(range(300, 600))).status_code != 200:
            with bundle.path.open("rb") as file:
                self._http.send("PUT", path, content=iter(lambda: file.read(1 << 20), b""))
        return bundle.sha256

    def submit(
        self, spec: JobSpec | Mapping[str, Any], bundle: str, *, token: str | None = None
    ) -> JobView:
        """Make a job of the uploaded bundle. The same `token` never makes a second job."""
        request = SubmitRequest(spec=_mapping(spec), bundle=bundle, token=token or uuid.uuid4().hex)
        try:
            answer = self._http.send("POST", "/jobs", body=request)
        except Unreachable:
            # The request may have arrived; thanks to the token, asking once more is harmless.
            answer = self._http.send("POST", "/jobs", body=request)
        return self._http.read(JobView, answer)

    # --- looking ---

    def me(self) -> dict[str, str]:
        """Name and role of the token's user."""
        return self._http.read(dict[str, str], self._http.send("GET", "/me"))

    def job_page(
        self,
        *,
        state: str | None = None,
        all: bool = False,
        name: str = "",
        owner: str | None = None,
        cursor: str | None = None,
        limit: int = PAGE,
    ) -> JobPage:
        """A page of jobs, newest first, of at most 500; `cursor` is the `next` of another one.

        Those that ended over a day ago only with `all` or by their `state`; `name` is how names
        begin.
        """
        params: dict[str, str | int] = {"all": "true"} if all else {}
        wanted = {"state": state, "name": name or None, "owner": owner, "cursor": cursor}
        params |= {key: value for key, value in wanted.items() if value is not None}
        answer = self._http.send("GET", "/jobs", params={**params, "limit": limit})
        return self._http.read(JobPage, answer)

    def iter_jobs(
        self,
        *,
        state: str | None = None,
        all: bool = False,
        name: str = "",
        owner: str | None = None,
    ) -> Iterator[JobView]:
        """Every job that `job_page` would show, page by page."""
        cursor: str | None = None
        while True:
            page = self.job_page(
                state=state, all=all, name=name, owner=owner, cursor=cursor, limit=LONG_PAGE
            )
            yield from page.jobs
            cursor = page.next
            if cursor is None:
                return

    def jobs(self, *, state: str | None = None, all: bool = False) -> list[JobView]:
        """All jobs, newest first; those that ended over a day ago only with `all` or by `state`."""
        return list(self.iter_jobs(state=state, all=all))

    def job(self, job: str) -> JobDetail:
        """One job, by id or name; of several of one name the newest, when all have ended."""
        return self._http.read(JobDetail, self._http.send("GET", f"/jobs/{part(job)}"))

    def vm_page(
        self,
        *,
        job: str | None = None,
        state: str | None = None,
        cloud: str | None = None,
        cursor: str | None = None,
        limit: int = PAGE,
    ) -> VmPage:
        """A page of VMs, newest first, of at most 500; of one job (id or name), in one state, of
        one cloud. `cursor` is the `next` of another page."""
        wanted = {"job": job, "state": state, "cloud": cloud, "cursor": cursor}
        params = {name: value for name, value in wanted.items() if value is not None}
        answer = self._http.send("GET", "/vms", params={**params, "limit": limit})
        return self._http.read(VmPage, answer)

    def iter_vms(
        self, *, job: str | None = None, state: str | None = None, cloud: str | None = None
    ) -> Iterator[VmView]:
        """Every VM that `vm_page` would show, page by page."""
        cursor: str | None = None
        while True:
            page = self.vm_page(job=job, state=state, cloud=cloud, cursor=cursor, limit=LONG_PAGE)
            yield from page.vms
            cursor = page.next
            if cursor is None:
                return

    def vms(
        self, *, job: str | None = None, state: str | None = None, cloud: str | None = None
    ) -> list[VmView]:
        """All VMs, newest first; of one job (id or name), in one state, of one cloud."""
        return list(self.iter_vms(job=job, state=state, cloud=cloud))

    def checkpoints(self, job: str) -> Iterator[CheckpointView]:
        """Every checkpoint of a job that the master knows of, newest first; `job` has the newest
        200 of them."""
        cursor: str | None = None
        while True:
            params: dict[str, str | int] = {"limit": LONG_PAGE}
            if cursor is not None:
                params["cursor"] = cursor
            answer = self._http.send("GET", f"/jobs/{part(job)}/checkpoints", params=params)
            page = self._http.read(CheckpointPage, answer)
            yield from page.checkpoints
            cursor = page.next
            if cursor is None:
                return

    def disk(self) -> DiskView:
        """What the master keeps, in bytes."""
        return self._http.read(DiskView, self._http.send("GET", "/disk"))

    def pools(self) -> list[PoolView]:
        """Every pool that is offered, with its price and what was measured of it."""
        return self._http.read(list[PoolView], self._http.send("GET", "/pools"))

    def events(self, job: str, *, after: int = 0, wait_s: float = 0.0) -> list[EventView]:
        """The first 500 events with a higher id than `after`; waits up to `wait_s` for the first.
        `all_events` has them all."""
        answer = self._http.send(
            "GET",
            f"/jobs/{part(job)}/events",
            params={"after": after, "wait_s": wait_s},
            wait_s=wait_s,
        )
        return self._http.read(list[EventView], answer)

    def all_events(self, job: str, *, after: int = 0) -> Iterator[EventView]:
        """Those that there are by now, oldest first."""
        while found := [e for e in self.events(job, after=after) if e.id > after]:
            yield from found
            after = found[-1].id

    def follow_events(self, job: str, *, after: int = 0) -> Iterator[EventView]:
        """All events as they come; ends when the job has ended."""
        seen, ended = "", False
        while True:
            news = self.news(job, after=after, seen=seen, wait_s=0.0 if ended else WAIT_S)
            yield from news.events
            after, seen = max([after, *(event.id for event in news.events)]), news.seen
            ended = news.job.state in JOB_ENDED
            if ended and not news.events:
                return

    def news(
        self,
        job: str,
        *,
        after: int = 0,
        attempt: int = 0,
        offset: int = 0,
        seen: str = "",
        wait_s: float = 0.0,
    ) -> JobNews:
        """The job, its events above `after`, and the log of `attempt` (0: none) from `offset` on.

        Waits up to `wait_s` while none of these is new; of the job that is said by `seen`, the one
        of the answer before.
        """
        params: dict[str, str | int | float] = {"after": after, "wait_s": wait_s, "seen": seen}
        if attempt:
            params |= {"attempt": attempt, "offset": offset}
        path = f"/jobs/{part(job)}/news"
        answer = self._http.send("GET", path, params=params, wait_s=wait_s)
        return self._http.read(JobNews, answer)

    def read_log(
        self, job: str, *, attempt: int | None = None, offset: int = 0, wait_s: float = 0.0
    ) -> LogPiece:
        """The log from a byte offset on; of the newest attempt when none is named."""
        params: dict[str, str | int | float] = {"offset": offset, "wait_s": wait_s}
        if attempt is not None:
            params["attempt"] = attempt
        answer = self._http.send("GET", f"/jobs/{part(job)}/logs", params=params, wait_s=wait_s)
        try:
            return LogPiece(
                attempt=int(answer.headers["X-Attempt"]),
                data=answer.content,
                next_offset=int(answer.headers["X-Next-Offset"]),
                complete=answer.headers["X-Complete"] == "true",
            )
        except (KeyError, ValueError):
            raise NotSpothop(
                f"the log answer of {self._http.url} lacks its headers",
                "see whether a proxy removes X- headers",
            ) from None

    def logs(
        self, job: str, *, attempt: int | None = None, follow: bool = False
    ) -> Iterator[LogText]:
        """The log of all attempts, one after the other, or of one of them.

        With `follow` it goes on as the log grows: until the job has ended, or that attempt.
        """
        if attempt is not None:
            yield from self._log_of(job, attempt, follow=follow)
            return
        number, found = 1, self.job(job)
        while True:
            if number <= _newest_attempt(found):
                yield from self._log_of(found.id, number, follow=follow)
                number += 1
            elif not follow or found.state in JOB_ENDED:
                return
            else:
                self._wait_for_news(found.id)
            if follow:
                found = self.job(found.id)

    def _wait_for_news(self, job: str) -> None:
        """Of which a new attempt is one."""
        seen = self.news(job).seen
        self.news(job, after=NO_EVENTS, seen=seen, wait_s=WAIT_S)

    def _log_of(self, job: str, attempt: int, *, follow: bool) -> Iterator[LogText]:
        """To the end of what there is; with `follow` until the attempt is over."""
        offset, decoder = 0, _decoder()
        while True:
            piece = self.read_log(
                job, attempt=attempt, offset=offset, wait_s=WAIT_S if follow else 0.0
            )
            offset = piece.next_offset
            text = decoder.decode(piece.data)
            if text:
                yield LogText(attempt=attempt, text=text)
            if piece.data:
                continue
            if piece.complete or not follow:
                return
            self._sleep(PAUSE_S)

    # --- acting ---

    def cancel(self, job: str, *, now: bool = False, why: str = "") -> JobView:
        """Save the newest state, in a limited time, and end the job; `now`: without that save, also
        where a cancel is under way. `why` is for people."""
        return self._want(job, "cancel", now=now, why=why)

    def pause(self, job: str, *, why: str = "") -> JobView:
        """Save, and release the VM; the job starts nothing more until it is resumed."""
        return self._want(job, "pause", why=why)

    def resume(self, job: str, *, why: str = "") -> JobView:
        """Go on from the newest checkpoint."""
        return self._want(job, "resume", why=why)

    def _want(self, job: str, wish: str, *, now: bool = False, why: str) -> JobView:
        params = ({"now": "true"} if now else {}) | ({"why": why} if why else {})
        answer = self._http.send("POST", f"/jobs/{part(job)}/{wish}", params=params)
        return self._http.read(JobView, answer)

    def cancel_all(
        self,
        *,
        state: str | None = None,
        name: str = "",
        owner: str | None = None,
        now: bool = False,
        why: str = "",
    ) -> int:
        """Cancel every job that has not ended: in this state, whose name begins so, of this user.
        Admins may cancel those of all users. Returns how many."""
        request = CancelRequest(state=state, name=name, owner=owner, now=now, why=why)
        return self._want_all("/cancellations", request)

    def pause_all(
        self, *, state: str | None = None, name: str = "", owner: str | None = None, why: str = ""
    ) -> int:
        """Pause every job that is neither ended nor paused; see `cancel_all`."""
        return self._want_all("/pauses", ManyJobs(state=state, name=name, owner=owner, why=why))

    def resume_all(
        self, *, state: str | None = None, name: str = "", owner: str | None = None, why: str = ""
    ) -> int:
        """Resume every job that is paused or being paused; see `cancel_all`."""
        return self._want_all(
            "/resumptions", ManyJobs(state=state, name=name, owner=owner, why=why)
        )

    def _want_all(self, path: str, request: ManyJobs) -> int:
        body, count = request.model_dump(mode="json"), 0
        for newer in ("now", "why"):  # an older master does not know them
            if not body.get(newer):
                body.pop(newer, None)
        while True:
            answer = self._http.send("POST", path, body=body)
            if path == "/cancellations":
                old = self._http.read(CancelReply, answer)
                reply = ManyReply(changed=old.cancelled, left=old.left)
            else:
                reply = self._http.read(ManyReply, answer)
            count += reply.changed
            if not reply.left or not reply.changed:
                return count

    def preempt(self, job: str, *, notice_s: float | None = None) -> VmView:
        """Take the VM of a job away, as its cloud would; `notice_s` 0 is no notice at all."""
        return self._preempt(f"/jobs/{part(job)}/preempt", notice_s)

    def preempt_vm(self, vm: str, *, notice_s: float | None = None) -> VmView:
        return self._preempt(f"/vms/{part(vm)}/preempt", notice_s)

    def _preempt(self, path: str, notice_s: float | None) -> VmView:
        answer = self._http.send("POST", path, body=PreemptRequest(notice_s=notice_s))
        return self._http.read(VmView, answer)

    def inject(self, job: str, request: InjectRequest) -> InjectionView:
        """Preempt whichever VM of the job trains, again and again; for tests of it."""
        return self._inject("POST", f"/jobs/{part(job)}/injection", request)

    def inject_vm(self, vm: str, request: InjectRequest) -> InjectionView:
        """Preempt this VM, once, when the first interval is over."""
        return self._inject("POST", f"/vms/{part(vm)}/injection", request)

    def stop_injection(self, job: str) -> InjectionView:
        return self._inject("DELETE", f"/jobs/{part(job)}/injection", None)

    def stop_injection_vm(self, vm: str) -> InjectionView:
        return self._inject("DELETE", f"/vms/{part(vm)}/injection", None)

    def _inject(self, method: str, path: str, request: InjectRequest | None) -> InjectionView:
        return self._http.read(InjectionView, self._http.send(method, path, body=request))

    def download(
        self, job: str, to: Path | None = None, *, spec: JobSpec | None = None
    ) -> Downloaded:
        """Fetch the newest verified checkpoint and the outputs into `to` (default: `./<job id>`).

        Reads the storage directly, with the credentials in the storage options of the job file
        `spec`, which the master does not show; without it with this machine's own.
        """
        from spothop.sdk import downloads  # imports obstore, which nothing else here needs

        found = self.job(job)
        storage = found.storage.without_masked()
        others = [each.without_masked() for each in found.other_storages]
        own = spec.checkpoint.storage if spec is not None else None
        if own is not None:
            if own.url != storage.url:
                raise ClientError(
                    f"job {found.id!r} has its checkpoints in {storage.url}, not in {own.url}",
                    "give the job file that it was submitted with",
                )
            storage, others = own.spec(), [each.spec() for each in own.others]
        return downloads.fetch(storage, found.id, to or Path(found.id), others=others)


def _newest_attempt(job: JobDetail) -> int:
    """Of the job's own attempt and those that prepare beside it; 0 before the first."""
    return max([job.attempt, *(attempt.number for attempt in job.attempts)])


def _mapping(spec: JobSpec | Mapping[str, Any]) -> dict[str, Any]:
    return spec.as_written() if isinstance(spec, JobSpec) else dict(spec)


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(errors="replace")
