"""Google Cloud Storage's XML API on loopback, as obstore speaks it; strict where S3 differs.

The parts that are S3's (objects, ranges, listings, multipart uploads, faults by script) are those
of `S3Server`. Its own, by https://cloud.google.com/storage/docs/xml-api/reference-headers and
https://cloud.google.com/storage/docs/multipart-uploads:

- a conditional create is `x-goog-if-generation-match: 0`; S3's `If-None-Match` on a write is
  refused here, where GCS would quietly not heed it;
- no request of a multipart upload may carry a precondition;
- objects are deleted one by one, and deleting what is not there is an error (404);
- who asks says so by a bearer token: 401 without a good one.

    with GcsServer() as gcs:
        store = open_store(gcs.spec("gs://bucket/runs"))
"""

from __future__ import annotations

from collections.abc import Mapping

from fakes.s3_server import Answer, Asked, S3Server, error
from spothop.wire import StorageSpec

GENERATION = "x-goog-if-generation-match"
PRECONDITIONS = frozenset(
    {GENERATION, "x-goog-if-metageneration-match", "if-match", "if-none-match"}
)
MULTIPART = frozenset(
    {"CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "AbortMultipartUpload"}
)
LEAST_PART = 5 * 2**20
"""Bytes of each part but the last one."""
QUERY: Mapping[str, frozenset[str]] = {
    "ListObjectsV2": frozenset(
        {"list-type", "prefix", "delimiter", "max-keys", "continuation-token", "start-after"}
    ),
    "CreateMultipartUpload": frozenset({"uploads"}),
    "UploadPart": frozenset({"partNumber", "uploadId"}),
    "CompleteMultipartUpload": frozenset({"uploadId"}),
    "AbortMultipartUpload": frozenset({"uploadId"}),
}


class GcsServer(S3Server):
    """Buckets of any name exist. `tokens` opens them."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = {"a-token"}
        self._generations: dict[str, int] = {}
        self._written = 1_700_000_000_000_000

    def options(self) -> dict[str, str]:
        return {
            "base_url": self.endpoint,
            "allow_http": "true",
            "bearer_token": min(self.tokens),
        }

    def spec(self, url: str = "gs://bucket/runs", **options: str) -> StorageSpec:
        return super().spec(url, **options)

    def answer(self, asked: Asked, query: dict[str, str], body: bytes) -> Answer:
        refused = self._refused(asked, query)
        if refused is not None:
            return refused
        with self._lock:
            if asked.operation == "DeleteObject" and asked.key not in self.objects:
                return error(404, "NoSuchKey")
            if asked.operation == "CompleteMultipartUpload" and self._has_a_small_part(query):
                return error(400, "EntityTooSmall")
            before = self.objects.get(asked.key)
            answer = super().answer(asked, query, body)
            if self.objects.get(asked.key) is not before:
                self._written += 1
                self._generations[asked.key] = self._written
        if asked.key in self._generations:
            answer.headers["x-goog-generation"] = str(self._generations[asked.key])
        return answer

    def _refused(self, asked: Asked, query: dict[str, str]) -> Answer | None:
        token = asked.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.tokens:
            return error(401, "AuthenticationRequired")
        if query.keys() - QUERY.get(asked.operation, frozenset()):
            return error(400, "InvalidArgument")
        if asked.operation == "DeleteObjects":
            return error(501, "NotImplemented")
        given = PRECONDITIONS & asked.headers.keys()
        if asked.operation in MULTIPART and given:
            return error(400, "InvalidArgument")
        if asked.operation != "PutObject":
            return None
        if given - {GENERATION}:
            return error(400, "InvalidArgument")
        if GENERATION in given and not self._is_generation(asked):
            return error(412, "PreconditionFailed")
        return None

    def _is_generation(self, asked: Asked) -> bool:
        there = self._generations.get(asked.key, 0) if asked.key in self.objects else 0
        return asked.headers[GENERATION] == str(there)

    def _has_a_small_part(self, query: dict[str, str]) -> bool:
        upload = self._uploads.get(query["uploadId"])
        sizes = [len(upload.parts[number]) for number in sorted(upload.parts)] if upload else []
        return any(size < LEAST_PART for size in sizes[:-1])
