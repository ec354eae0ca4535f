"""`az://ACCOUNT/CONTAINER/path`: what it means, and what Azure's error codes mean."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fakes.s3_server import FOR_EVER, S3Server
from spothop.storage import (
    ObjectExists,
    StorageBadUrl,
    StorageDenied,
    StorageError,
    StorageUnavailable,
    check_url,
    open_store,
)
from spothop.wire import StorageSpec

KEY = "a2V5"


@pytest.fixture
def server() -> Iterator[S3Server]:
    """Of HTTP and XML errors: what the requests ask for is what matters here."""
    with S3Server() as server:
        yield server


def spec(server: S3Server, url: str = "az://account/runs/jobs", **options: str) -> StorageSpec:
    given = {"endpoint": f"{server.endpoint}/account", "allow_http": "true", "account_key": KEY}
    return StorageSpec(url=url, options={**given, **options})


@pytest.mark.parametrize(
    ("url", "options", "key"),
    [
        ("az://account/runs/jobs", {}, "runs/jobs/k"),
        ("az://account/runs/", {}, "runs/k"),
        ("az://account/runs", {}, "runs/k"),
        ("azure://account/runs/a", {}, "runs/a/k"),
        ("adl://account/runs/a/b", {}, "runs/a/b/k"),
        ("az://account/runs/%C3%A4 b", {}, "runs/\u00e4 b/k"),
        ("az://account/$root/a", {}, "$root/a/k"),
        ("az://account/runs/a", {"account_name": "account"}, "runs/a/k"),
        ("az://runs/a", {"account_name": "account"}, "runs/a/k"),  # as obstore reads it
    ],
)
def test_account_container_and_path(
    server: S3Server, url: str, options: dict[str, str], key: str
) -> None:
    store = open_store(spec(server, url, **options))
    store.put("k", b"x")
    assert list(server.objects) == [key]
    assert "SharedKey account:" in server.asked[-1].headers["authorization"]
    assert store.url == url


def test_without_an_endpoint_the_account_is_in_the_address() -> None:
    options = {"proxy_url": "http://127.0.0.1:1", "skip_signature": "true"}
    store = open_store(StorageSpec(url="az://myruns/runs/a", options=options), quick=True)
    with pytest.raises(StorageUnavailable, match=r"https://myruns\.blob\.core\.windows\.net/runs/"):
        store.put("k", b"x")


def test_the_address_of_the_environment_is_used(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{server.endpoint}/account")
    given = {"allow_http": "true", "account_key": KEY}
    open_store(StorageSpec(url="az://account/runs", options=given)).put("k", b"x")
    assert list(server.objects) == ["runs/k"]


@pytest.mark.parametrize(
    ("url", "fact"),
    [
        ("az://account", "names no container"),
        ("az://account/", "names no container"),
        ("az:///runs", "'' is no account"),
        ("az://my_account/runs", "'my_account' is no account"),
        ("az://account.blob.core.windows.net/runs", "is no account"),
        ("az://account/Runs", "'Runs' is no container"),
        ("az://account/ab", "'ab' is no container"),
        ("az://account/a--b", "'a--b' is no container"),
    ],
)
def test_what_names_no_container_is_refused(url: str, fact: str) -> None:
    with pytest.raises(StorageBadUrl, match="no usable storage URL") as caught:
        open_store(StorageSpec(url=url))
    assert fact in caught.value.message
    assert (caught.value.field, caught.value.value) == ("checkpoint.storage", url)
    assert "az://ACCOUNT/CONTAINER/path" in caught.value.hint


def test_a_check_of_the_url_alone_takes_both_forms() -> None:
    """The option that tells them apart is not there yet."""
    check_url("az://account/runs/x")
    check_url("az://runs")


@pytest.mark.parametrize(
    ("status", "code", "kind", "hint"),
    [
        (403, "AuthorizationPermissionMismatch", StorageDenied, "`Storage Blob Data Contributor`"),
        (403, "InsufficientAccountPermissions", StorageDenied, "`Storage Blob Data Contributor`"),
        (403, "KeyBasedAuthenticationNotPermitted", StorageDenied, "leave account_key out"),
        (403, "AuthorizationFailure", StorageDenied, "network rules"),
        (403, "AuthorizationResourceTypeMismatch", StorageDenied, "credentials"),
        (403, "AccountIsDisabled", StorageDenied, "credentials"),
        (401, "NoAuthenticationInformation", StorageDenied, "credentials"),
        (409, "PublicAccessNotPermitted", StorageDenied, "credentials"),
        (404, "ContainerNotFound", StorageBadUrl, "create it (az storage container create)"),
        (403, "ContainerDisabled", StorageBadUrl, "another container"),
        (400, "AccountRequiresHttps", StorageBadUrl, "https://"),
        (409, "BlobAlreadyExists", ObjectExists, ""),
        (412, "ConditionNotMet", ObjectExists, ""),
        (412, "TargetConditionNotMet", ObjectExists, ""),
        (403, "AuthenticationFailed", StorageUnavailable, "sas_key"),
        (409, "ContainerBeingDeleted", StorageUnavailable, "another one"),
        (500, "InternalError", StorageUnavailable, ""),
        (500, "OperationTimedOut", StorageUnavailable, ""),
        (503, "ServerBusy", StorageUnavailable, ""),
        (400, "InvalidBlockList", StorageUnavailable, ""),
        (400, "InvalidBlobOrBlock", StorageUnavailable, ""),
        (409, "UploadIdMismatch", StorageUnavailable, ""),
    ],
)
def test_what_its_refusals_mean(
    server: S3Server, status: int, code: str, kind: type[StorageError], hint: str
) -> None:
    server.fail("PutObject", "*", status, code, times=FOR_EVER)
    store = open_store(spec(server), quick=True)
    for write in (store.put, store.create):
        with pytest.raises(StorageError) as raised:
            write("key", b"x")
        assert type(raised.value) is kind
        assert hint in raised.value.hint
        assert kind is ObjectExists or code in str(raised.value)


def test_a_store_that_is_busy_is_asked_again(server: S3Server) -> None:
    server.fail("PutObject", "*", 503, "ServerBusy")
    open_store(spec(server)).put("key", b"x")
    assert server.count("PutObject") == 2
