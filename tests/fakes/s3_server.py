"""An S3 server on loopback that misbehaves by script: any answer, delay, cut or stall anywhere.

Real HTTP and real XML, as obstore speaks it: objects, ranges, conditional creates, listings, bulk
deletion, multipart uploads. Faults are matched by operation and key, in the order in which they
were added; the first that matches strikes, and counts down.

    with S3Server() as s3:
        s3.fail("PutObject", "*/data/*", 400, "RequestTimeout")
        store = open_store(s3.spec("s3://bucket/runs"))

Operation names and error codes are those of the Amazon S3 API Reference.
"""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from spothop.wire import StorageSpec

FOR_EVER = 1 << 30


@dataclass(kw_only=True)
class Fault:
    """One thing that goes wrong. Everything that is set happens, in the order of the fields."""

    operation: str = "*"
    """Such as PutObject; a pattern of fnmatch, as is `key`."""
    key: str = "*"
    skip: int = 0
    """So many matching requests go well before."""
    times: int = 1
    delay_s: float = 0.0
    stall: bool = False
    """Nothing more comes until the server ends, or `release` is called."""
    after: bool = False
    """The operation is done, and then the answer below is given in place of its own."""
    status: int = 0
    """Answer with this status and the error `code`; 0: the connection is cut instead."""
    code: str = ""
    cut: int | None = None
    """The body of the true answer ends after so many bytes, and the connection with it."""
    change: Callable[[bytes], bytes] | None = None
    """The body of the true answer is another one: a store that lies."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request, as it came."""

    operation: str
    key: str
    size: int
    headers: dict[str, str]


@dataclass(kw_only=True)
class _Upload:
    key: str
    parts: dict[int, bytes] = field(default_factory=dict)


class S3Server:
    """Buckets of any name exist. `objects` and `asked` may be read and changed at any time."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        """By key, without the bucket."""
        self.asked: list[Asked] = []
        self.hidden: set[str] = set()
        """Keys that listings leave out: a store whose listing is behind."""
        self.bytes_per_s = 0.0
        """Of each request's body, as over a slow line; 0 is no limit."""
        self.delay_s = 0.0
        """Before each answer."""
        self._faults: list[Fault] = []
        self._uploads: dict[str, _Upload] = {}
        self._etags: dict[str, tuple[bytes, str]] = {}
        self._lock = threading.RLock()
        self._released = threading.Event()
        self._server = _Http(("127.0.0.1", 0), _Handler)
        self._server.s3 = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def __enter__(self) -> S3Server:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def options(self) -> dict[str, str]:
        """For obstore, and for `checkpoint.storage.options`."""
        return {
            "endpoint": self.endpoint,
            "allow_http": "true",
            "region": "us-east-1",
            "access_key_id": "key",
            "secret_access_key": "secret",
        }

    def spec(self, url: str = "s3://bucket/runs", **options: str) -> StorageSpec:
        return StorageSpec(url=url, options={**self.options(), **options})

    # --- faults ---------------------------------------------------------------------------------

    def add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def fail(
        self, operation: str, key: str, status: int, code: str, *, times: int = 1, skip: int = 0
    ) -> Fault:
        """Answer with an error in place of the operation."""
        return self.add(
            Fault(operation=operation, key=key, status=status, code=code, times=times, skip=skip)
        )

    def heal(self) -> None:
        """No fault strikes any more; stalled requests end."""
        with self._lock:
            self._faults.clear()
        self.release()

    def release(self) -> None:
        """Requests that are stalled now go on."""
        released, self._released = self._released, threading.Event()
        released.set()

    def count(self, operation: str, key: str = "*") -> int:
        """How many requests of this kind came."""
        with self._lock:
            return sum(
                fnmatchcase(asked.operation, operation) and fnmatchcase(asked.key, key)
                for asked in self.asked
            )

    def unfinished(self) -> list[str]:
        """Keys of multipart uploads that were neither completed nor aborted."""
        with self._lock:
            return [upload.key for upload in self._uploads.values()]

    def strike(self, asked: Asked) -> Fault | None:
        with self._lock:
            self.asked.append(asked)
            for fault in self._faults:
                if not fnmatchcase(asked.operation, fault.operation):
                    continue
                if not fnmatchcase(asked.key, fault.key):
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                if fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def stall(self) -> None:
        self._released.wait()

    # --- what S3 does ---------------------------------------------------------------------------

    def answer(self, asked: Asked, query: dict[str, str], body: bytes) -> Answer:
        with self._lock:
            return _OPERATIONS[asked.operation](self, asked, query, body)

    def _put(self, asked: Asked, query: dict[str, str], body: bytes) -> Answer:
        if asked.headers.get("if-none-match") == "*" and asked.key in self.objects:
            return error(412, "PreconditionFailed")
        self.objects[asked.key] = body
        return Answer(200, headers={"ETag": _etag(body)})

    def _get(self, asked: Asked, query: dict[str, str], body: bytes) -> Answer:
        if asked.key not in self.objects:
            return error(404, "NoSuchKey")
        data = self.objects[asked.key]
        headers = {
            "ETag": self._etag_of(asked.key, data),
            "Last-Modified": "Sun, 22 Nov 2026 00:00:00 GMT",
        }
        wanted = asked.headers.get("range", "")
        if not wanted.startswith("bytes="):
            return Answer(200, data, headers)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(data) - 1), len(data) - 1)
        if start >= len(data):
            return error(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
        return Answer(206, data[start : end + 1], headers)

    def _delete(self, asked: Asked, query: dict[str, str], body: bytes) -> Answer:
        self.objects.pop(asked.key, None)
        return Answer(204)

    def _delete_many(self, asked: Asked, query: dict[str, str], body: bytes) -> Answer:
        space = "{http://s3.amazonaws.com/doc/2006-03-01/}"
        tree = ElementTree.fromstring(body)
        keys = [node.text or "" for node in tree.iter() if node.tag in ("Key", f"{space}Key")]
        for key in keys:
            self.objects.pop(key, None)
        rows = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return xml(f"<DeleteResult>{rows}</DeleteResult>")

    def _list(self, asked: Asked, query: dict[str, str], body: bytes) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        most = int(query.get("max-keys", "1000"))
        rows, folders, last = [], set(), ""
        for key in sorted(self.objects):
            if not key.startswith(prefix) or key <= after or key in self.hidden:
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.split(delimiter)[0] + delimiter)
                continue
            if len(rows) == most:
                last = rows[-1]
                break
            rows.append(key)
        contents = "".join(self._row(key) for key in rows)
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
            for folder in sorted(folders)
        )
        more = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if last else ""
        return xml(
            f"<ListBucketResult><Name>bucket</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{len(rows)}</KeyCount><MaxKeys>{most}</MaxKeys>"
            f"<IsTruncated>{'true' if last else 'false'}</IsTruncated>{more}{contents}{common}"
            "</ListBucketResult>"
        )

    def _row(self, key: str) -> str:
        data = self.objects[key]
        return (
            f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size>"
            f"<ETag>{escape(self._etag_of(key, data))}</ETag>"
            "<LastModified>2026-11-22T00:00:00.000Z</LastModified></Contents>"
        )

    def _etag_of(self, key: str, data: bytes) -> str:
        """Computed once for each content: ranges of a large object are asked for one by one."""
        known = self._etags.get(key)
        if known is None or known[0] is not data:
            known = self._etags[key] = (data, _etag(data))
        return known[1]

    def _begin(self, asked: Asked, query: dict[str, str], body: bytes) -> Answer:
        upload = uuid.uuid4().hex
        self._uploads[upload] = _Upload(key=asked.key)
        return xml(
            f"<InitiateMultipartUploadResult><Bucket>bucket</Bucket><Key>{escape(asked.key)}</Key>"
            f"<UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
        )

    def _part(self, asked: Asked, query: dict[str, str], body: bytes) -> Answer:
        upload = self._uploads.get(query["uploadId"])
        if upload is None:
            return error(404, "NoSuchUpload")
        upload.parts[int(query["partNumber"])] = body
        return Answer(200, headers={"ETag": _etag(body)})

    def _complete(self, asked: Asked, query: dict[str, str], body: bytes) -> Answer:
        upload = self._uploads.pop(query["uploadId"], None)
        if upload is None:
            return error(404, "NoSuchUpload")
        if asked.headers.get("if-none-match") == "*" and asked.key in self.objects:
            return error(412, "PreconditionFailed")
        data = b"".join(upload.parts[number] for number in sorted(upload.parts))
        self.objects[asked.key] = data
        return xml(
            f"<CompleteMultipartUploadResult><Key>{escape(asked.key)}</Key>"
            f"<ETag>{escape(_etag(data))}</ETag></CompleteMultipartUploadResult>"
        )

    def _abort(self, asked: Asked, query: dict[str, str], body: bytes) -> Answer:
        self._uploads.pop(query["uploadId"], None)
        return Answer(204)


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def xml(text: str, status: int = 200) -> Answer:
    body = b'<?xml version="1.0" encoding="UTF-8"?>\n' + text.encode()
    return Answer(status, body, {"Content-Type": "application/xml"})


def error(status: int, code: str) -> Answer:
    return xml(f"<Error><Code>{code}</Code><Message>by script</Message></Error>", status)


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


_OPERATIONS: dict[str, Callable[[S3Server, Asked, dict[str, str], bytes], Answer]] = {
    "PutObject": S3Server._put,
    "GetObject": S3Server._get,
    "HeadObject": S3Server._get,
    "DeleteObject": S3Server._delete,
    "DeleteObjects": S3Server._delete_many,
    "ListObjectsV2": S3Server._list,
    "CreateMultipartUpload": S3Server._begin,
    "UploadPart": S3Server._part,
    "CompleteMultipartUpload": S3Server._complete,
    "AbortMultipartUpload": S3Server._abort,
}


def _operation(method: str, key: str, query: dict[str, str]) -> str:
    if method == "POST":
        if "delete" in query:
            return "DeleteObjects"
        return "CreateMultipartUpload" if "uploads" in query else "CompleteMultipartUpload"
    if "uploadId" in query:
        return "UploadPart" if method == "PUT" else "AbortMultipartUpload"
    if method == "GET" and not key:
        return "ListObjectsV2"
    return {"PUT": "PutObject", "GET": "GetObject", "HEAD": "HeadObject"}.get(
        method, "DeleteObject"
    )


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    s3: S3Server

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http
    wbufsize = -1

    def log_message(self, format: str, *args: object) -> None: ...

    def _serve(self) -> None:
        s3 = self.server.s3
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        key = unquote(parts.path.lstrip("/").partition("/")[2])
        body = self._body()
        asked = Asked(
            operation=_operation(self.command, key, query),
            key=key,
            size=len(body),
            headers={name.lower(): value for name, value in self.headers.items()},
        )
        fault = s3.strike(asked)
        if s3.delay_s:
            time.sleep(s3.delay_s)
        if fault is None:
            self._send(s3.answer(asked, query, body))
            return
        if fault.delay_s:
            time.sleep(fault.delay_s)
        if fault.stall:
            s3.stall()
            self.close_connection = True
            return
        if fault.cut is not None or fault.change is not None:
            self._send(s3.answer(asked, query, body), cut=fault.cut, change=fault.change)
            return
        if fault.after:
            s3.answer(asked, query, body)
        if fault.status:
            self._send(error(fault.status, fault.code))
        elif fault.delay_s and not fault.after:
            self._send(s3.answer(asked, query, body))
        else:
            self.close_connection = True

    def _body(self) -> bytes:
        size = int(self.headers.get("Content-Length") or 0)
        rate = self.server.s3.bytes_per_s
        if not rate:
            return self.rfile.read(size)
        read = bytearray()
        while len(read) < size:
            block = self.rfile.read(min(65536, size - len(read)))
            if not block:
                break
            read += block
            time.sleep(len(block) / rate)
        return bytes(read)

    def _send(
        self,
        answer: Answer,
        *,
        cut: int | None = None,
        change: Callable[[bytes], bytes] | None = None,
    ) -> None:
        body = change(answer.body) if change else answer.body
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve
