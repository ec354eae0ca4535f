"""`gs://` against a server that is as strict as Google Cloud Storage (fakes.gcs_server): what a
checkpoint sends, and what its error codes mean."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.gcs_server import GENERATION, PRECONDITIONS, GcsServer
from fakes.s3_server import FOR_EVER, Fault
from spothop.storage import (
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    StorageBadUrl,
    StorageDenied,
    StorageError,
    StorageUnavailable,
    open_store,
)


@pytest.fixture
def gcs() -> Iterator[GcsServer]:
    with GcsServer() as server:
        yield server


@pytest.fixture
def store(gcs: GcsServer) -> ObjectStore:
    return open_store(gcs.spec())


def test_only_a_create_has_a_precondition_and_it_is_gcss_own(
    gcs: GcsServer, store: ObjectStore, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(bytes(9_000_000))
    store.send("data/f", tmp_path / "f", size=9_000_000, on_bytes=lambda count: None)
    store.put("data/g", b"x")
    store.create("chain/1", b"x")
    conditional = {
        asked.key: asked.headers[GENERATION] for asked in gcs.asked if GENERATION in asked.headers
    }
    assert conditional == {"runs/chain/1": "0"}
    given = {name for asked in gcs.asked for name in PRECONDITIONS & asked.headers.keys()}
    assert given == {GENERATION}
    assert gcs.count("UploadPart") == 2
    assert gcs.unfinished() == []


def test_who_loses_a_create_hears_it(gcs: GcsServer, store: ObjectStore) -> None:
    store.create("chain/1", b"first")
    for _ in range(2):
        with pytest.raises(ObjectExists):
            store.create("chain/1", b"second")
    assert store.get("chain/1") == b"first"
    store.put("chain/1", b"over it")
    with pytest.raises(ObjectExists):
        store.create("chain/1", b"third")
    store.delete(["chain/1"])
    store.create("chain/1", b"again")


def test_a_create_whose_answer_was_lost_may_not_be_taken_for_anothers(
    gcs: GcsServer, store: ObjectStore
) -> None:
    """obstore repeats it, and hears that there is one: the chain reads it, and knows its own."""
    gcs.add(Fault(operation="PutObject", after=True))
    with pytest.raises((ObjectExists, StorageUnavailable)):
        store.create("chain/1", b"mine")
    assert store.get("chain/1") == b"mine"


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "AccessDenied", StorageDenied),
        (403, "AccountProblem", StorageDenied),
        (403, "UserProjectAccountProblem", StorageDenied),
        (400, "UserProjectMissing", StorageDenied),
        (400, "UserProjectInvalid", StorageDenied),
        (404, "NoSuchBucket", StorageBadUrl),
        (400, "InvalidBucketName", StorageBadUrl),
        (400, "ExpiredToken", StorageUnavailable),
        (401, "AuthenticationRequired", StorageUnavailable),
        (400, "RequestTimeout", StorageUnavailable),
        (400, "IncompleteBody", StorageUnavailable),
        (409, "OperationAborted", StorageUnavailable),
    ],
)
def test_what_its_refusals_mean(
    gcs: GcsServer, store: ObjectStore, status: int, code: str, kind: type[StorageError]
) -> None:
    gcs.fail("PutObject", "*", status, code, times=FOR_EVER)
    for write in (store.put, store.create):
        with pytest.raises(StorageError) as raised:
            write("key", b"x")
        assert type(raised.value) is kind
        assert code in str(raised.value)


@pytest.mark.parametrize("status", [429, 503])
def test_a_store_that_is_busy_is_asked_again(
    gcs: GcsServer, store: ObjectStore, status: int
) -> None:
    gcs.fail("PutObject", "*", status, "SlowDown")
    store.put("key", b"x")
    assert store.get("key") == b"x"
    assert gcs.count("PutObject") == 2


def test_a_token_that_nobody_takes_says_nothing_of_the_objects(
    gcs: GcsServer, store: ObjectStore
) -> None:
    store.put("key", b"x")
    gcs.tokens = {"another"}
    with pytest.raises(StorageError) as raised:
        store.get("key")
    assert not isinstance(raised.value, ObjectMissing)
    gcs.tokens = {"a-token"}
    assert store.get("key") == b"x"
