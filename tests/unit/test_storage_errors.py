"""From obstore's and the system's errors to ours, and from URLs to stores."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from obstore import exceptions as obs

from spothop.storage import (
    FolderStore,
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    RemoteStore,
    StorageBadUrl,
    StorageDenied,
    StorageError,
    StorageUnavailable,
    StorageUnsupported,
    check_url,
    open_store,
    probe,
)
from spothop.storage.mapping import translate
from spothop.storage.remote import MAX_PARTS, PART, in_flight, part_size
from spothop.wire import StorageSpec

MIB = 1 << 20
GENERIC = "Generic S3 error: Error performing PUT in 1s - Server returned non-2xx status code: "


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError("x"), ObjectMissing),
        (obs.AlreadyExistsError("x"), ObjectExists),
        (obs.PreconditionError("x"), ObjectExists),
        (obs.PermissionDeniedError("x"), StorageDenied),
        (obs.UnauthenticatedError("x"), StorageDenied),
        (obs.NotSupportedError("x"), StorageUnsupported),
        (obs.GenericError("HTTP error: error sending request"), StorageUnavailable),
        (obs.GenericError(GENERIC + "503 Slow Down"), StorageUnavailable),
        (obs.GenericError(GENERIC + "429 Too Many Requests"), StorageUnavailable),
        (obs.GenericError(GENERIC + "403 Forbidden"), StorageDenied),
        (obs.GenericError(GENERIC + "400 Bad Request"), StorageUnavailable),
        (
            obs.GenericError("Generic S3 error: the credential provider timed out"),
            StorageUnavailable,
        ),
        (OSError(errno.EIO, "Input/output error"), StorageUnavailable),
        (OSError(errno.EDQUOT, "Quota exceeded"), StorageUnavailable),
        (OSError(errno.EROFS, "Read-only"), StorageDenied),
        (PermissionError(errno.EACCES, "Permission denied"), StorageDenied),
        (OSError(errno.ENAMETOOLONG, "File name too long"), StorageBadUrl),
        (ValueError("Could not parse path"), StorageBadUrl),
    ],
)
def test_each_failure_has_its_class(error: Exception, kind: type[StorageError]) -> None:
    ours = translate(error, "s3://bucket", "some/key")
    assert type(ours) is kind
    assert ours.retryable == (kind is StorageUnavailable)
    assert "some/key" in str(ours)
    assert "s3://bucket" in str(ours)


@pytest.mark.parametrize(
    ("request_line", "answer", "kind"),
    [
        ("PUT http://169.254.169.254/latest/api/token", "404 Not Found", StorageDenied),
        ("PUT http://169.254.169.254/latest/api/token", "403 Forbidden: denied", StorageDenied),
        ("PUT http://127.0.0.1:9/latest/api/token", "503 Busy", StorageUnavailable),
        ("GET http://169.254.169.254/computeMetadata/v1/x/token", "404 No", StorageDenied),
        ("GET http://169.254.169.254/metadata/identity/oauth2/token", "400 No", StorageDenied),
        ("GET http://169.254.170.2/v2/credentials", "404 Not Found", StorageDenied),
    ],
)
def test_missing_credentials_are_no_missing_object(
    request_line: str, answer: str, kind: type[StorageError]
) -> None:
    """The machine's role was asked for: its address concerns no user, and its 404 no object."""
    text = f"Generic error: Error performing {request_line} in 9ms - Server returned non-2xx status"
    ours = translate(obs.GenericError(f"{text} code: {answer}"), "s3://bucket", "some/key")
    assert type(ours) is kind
    assert "no credentials for 'some/key' in s3://bucket" in str(ours)
    assert "169.254" not in str(ours)
    assert "127.0.0.1" not in str(ours)


def test_the_debug_dump_of_obstore_is_left_out() -> None:
    assert "Debug" not in str(translate(obs.GenericError("bad\n\nDebug source:\nX {}"), "u", "k"))


@pytest.mark.parametrize(
    "url",
    [
        "bogus://x",
        "file://relative/x",
        "file:///tmp/%00x",
        "file://[x]/y",
        "no url at all",
        "s3://",
        "s3://[my-bucket]/x",
    ],
)
def test_a_bad_url_says_field_value_and_hint(url: str) -> None:
    with pytest.raises(StorageBadUrl) as caught:
        open_store(StorageSpec(url=url))
    assert caught.value.field == "checkpoint.storage"
    assert caught.value.value == url
    assert "s3://" in caught.value.hint


@pytest.mark.parametrize("url", ["s3://[my-bucket]/x", "file:///tmp/%00x", "file://relative/x"])
def test_a_check_of_the_url_alone_refuses_what_names_nothing(url: str) -> None:
    with pytest.raises(StorageBadUrl, match="no usable storage URL"):
        check_url(url)


def test_a_check_of_the_url_alone_makes_nothing(tmp_path: Path) -> None:
    check_url((tmp_path / "a").as_uri())
    check_url("s3://bucket/x")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(StorageBadUrl, match="nosuch"):
        open_store(StorageSpec(url="s3://bucket", options={"nosuch": "1"}))


def test_options_reach_store_and_client() -> None:
    options = {"region": "eu-central-1", "allow_http": "true", "timeout": "5s"}
    store = open_store(StorageSpec(url="s3://bucket/p", options=options))
    assert isinstance(store, RemoteStore)
    assert store.url == "s3://bucket/p"


def test_a_file_url_makes_its_folder_only_when_asked(tmp_path: Path) -> None:
    spec = StorageSpec(url=(tmp_path / "a b" / "c").as_uri())
    with pytest.raises(StorageBadUrl, match="no such folder"):
        open_store(spec, create=False)
    assert isinstance(open_store(spec), FolderStore)
    assert (tmp_path / "a b" / "c").is_dir()


def test_a_file_url_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(StorageBadUrl):
        open_store(StorageSpec(url=(tmp_path / "f").as_uri()))


class Overwriting:
    """A store that ignores the condition of a conditional create, as some gateways do."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def create(self, key: str, data: bytes) -> None:
        self._store.put(key, data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def test_probe_finds_a_store_without_conditional_create(tmp_path: Path) -> None:
    with pytest.raises(StorageUnsupported, match="conditional create") as caught:
        probe(Overwriting(FolderStore(tmp_path)))  # type: ignore[arg-type]
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_probe_names_the_step_the_url_and_the_hint(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "removed")
    with pytest.raises(StorageUnavailable, match=r"^writing failed: .*removed is gone") as caught:
        probe(store)
    assert caught.value.field == "checkpoint.storage"
    assert caught.value.value == store.url


@pytest.mark.parametrize("size", [1, 16 * MIB, 156 * 1024 * MIB, 160_000 * MIB, 10**12, 5 * 10**12])
def test_parts_suffice_and_memory_is_bounded(size: int) -> None:
    part = part_size(size)
    assert part >= PART
    assert part % MIB == 0
    assert -(-size // part) <= MAX_PARTS
    if size <= 480 * 1024 * MIB:
        assert part * (in_flight(part) + 1) <= 100 * MIB
    else:
        assert in_flight(part) == 1


@pytest.mark.parametrize(
    ("options", "unsigned"),
    [
        ({}, True),
        ({"unsigned_payload": "false"}, False),
        ({"allow_http": "true"}, None),
        ({"allow_http": "true", "unsigned_payload": "true"}, True),
    ],
)
def test_over_tls_the_content_is_not_hashed_for_its_signature(
    options: dict[str, str], unsigned: bool | None
) -> None:
    store = open_store(StorageSpec(url="s3://bucket/path", options=options))
    assert isinstance(store, RemoteStore)
    found = store._store.config.get("unsigned_payload")  # type: ignore[union-attr]
    assert str(found).lower() == str(unsigned).lower()
