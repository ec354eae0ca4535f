"""What providers' error codes mean, against a server that answers with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fakes.s3_server import FOR_EVER, Fault, S3Server
from spothop.storage import (
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    StorageBadUrl,
    StorageDenied,
    StorageError,
    StorageUnavailable,
    StorageUnsupported,
    open_store,
)
from spothop.storage.codes import KNOWN, Meaning, code_of, has_body, meaning, status_of


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def store(s3: S3Server) -> ObjectStore:
    return open_store(s3.spec())


PASSING = [
    (400, "RequestTimeout"),
    (400, "ExpiredToken"),
    (400, "BadDigest"),
    (400, "IncompleteBody"),
    (403, "RequestTimeTooSkewed"),
    (403, "SlowDown"),
    (404, "NoSuchUpload"),
    (409, "OperationAborted"),
    (409, "ConditionalRequestConflict"),
    (418, "NobodyHasEverHeardOfThis"),
]


@pytest.mark.parametrize(("status", "code"), PASSING)
def test_what_passes_is_worth_another_try(
    s3: S3Server, store: ObjectStore, status: int, code: str
) -> None:
    s3.fail("*", "*", status, code, times=FOR_EVER)
    for operation in (
        lambda: store.put("key", b"data"),
        lambda: store.create("key", b"data"),
        lambda: store.get("key"),
        lambda: list(store.scan("key")),
    ):
        with pytest.raises(StorageUnavailable) as caught:
            operation()
        assert caught.value.retryable
    s3.heal()
    store.create("key", b"data")
    assert store.get("key") == b"data"


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "AccessDenied", StorageDenied),
        (403, "InvalidAccessKeyId", StorageDenied),
        (403, "SignatureDoesNotMatch", StorageDenied),
        (404, "NoSuchBucket", StorageBadUrl),
        (400, "AuthorizationHeaderMalformed", StorageBadUrl),
        (412, "PreconditionFailed", ObjectExists),
        (405, "MethodNotAllowed", StorageUnsupported),
        (501, "NotImplemented", StorageUnsupported),
    ],
)
def test_what_is_known_to_be_final_has_its_class(
    s3: S3Server, store: ObjectStore, status: int, code: str, kind: type[StorageError]
) -> None:
    s3.fail("PutObject", "*", status, code, times=FOR_EVER)
    with pytest.raises(kind) as caught:
        store.put("key", b"data")
    assert not caught.value.retryable
    assert "Debug source" not in str(caught.value)


def test_a_missing_object_is_missing_and_an_answer_without_a_body_is_no_damage(
    s3: S3Server, store: ObjectStore
) -> None:
    with pytest.raises(ObjectMissing):
        store.get("key")
    with pytest.raises(ObjectMissing):
        store.size("key")
    store.put("key", b"data")
    s3.fail("HeadObject", "*", 400, "RequestTimeout")  # HEAD: the code does not arrive
    with pytest.raises(StorageUnavailable):
        store.size("key")
    assert store.size("key") == 4


def test_a_create_that_was_done_and_not_confirmed_is_found_by_reading(
    s3: S3Server, store: ObjectStore
) -> None:
    s3.add(Fault(operation="PutObject", after=True, status=409, code="OperationAborted"))
    with pytest.raises(StorageUnavailable):
        store.create("key", b"data")
    assert store.get("key") == b"data"
    with pytest.raises(ObjectExists):
        store.create("key", b"other")
    assert store.get("key") == b"data"


GCS = 'status code: 403 Forbidden: {"error": {"errors": [{"reason": "%s"}], "code": 403}}'
AZURE = "status code: 409 Conflict: \ufeff<?xml?><Error><Code>%s</Code><Message>x</Message></Error>"


@pytest.mark.parametrize(
    ("text", "creating", "expected"),
    [
        (GCS % "forbidden", False, Meaning.DENIED),
        (GCS % "rateLimitExceeded", False, Meaning.TRANSIENT),
        (AZURE % "BlobAlreadyExists", True, Meaning.EXISTS),
        (AZURE % "ContainerBeingDeleted", True, Meaning.TRANSIENT),
        ("status code: 404 Not Found: <Code>ContainerNotFound</Code>", False, Meaning.UNUSABLE),
        ('status code: 404: {"reason": "notFound"}', False, Meaning.MISSING),
        ("status code: 412 Precondition Failed", True, Meaning.EXISTS),
        ("status code: 409 Conflict", True, Meaning.EXISTS),
        ("status code: 409 Conflict", False, Meaning.TRANSIENT),
        ("status code: 403 Forbidden", False, Meaning.DENIED),
        ("status code: 500 Internal Server Error", False, Meaning.TRANSIENT),
    ],
)
def test_the_code_decides_and_the_status_where_there_is_none(
    text: str, creating: bool, expected: Meaning
) -> None:
    status = status_of(text)
    assert status is not None
    assert meaning(status, code_of(text), creating=creating) is expected


NGINX = "status code: 404 Not Found: <html><head><title>404 Not Found</title></head></html>"


@pytest.mark.parametrize(
    ("text", "body"),
    [
        (NGINX, True),
        (NGINX + "\n\nDebug source:\nNotFound {\n    path: x: y", True),
        ("status code: 404 Not Found: \n\nDebug source:\nNotFound {\n    path: x: y", False),
        ("status code: 404 Not Found", False),
    ],
)
def test_a_404_of_a_proxy_says_nothing_of_the_object(text: str, body: bool) -> None:
    assert has_body(text) is body
    expected = Meaning.TRANSIENT if body else Meaning.MISSING
    assert meaning(404, code_of(text), body=has_body(text)) is expected


def test_no_server_no_status() -> None:
    assert status_of("Generic S3 error: error sending request") is None
    assert Meaning.TRANSIENT not in KNOWN.values()  # transient is what is not in the table
