"""`az://` against Azurite, Microsoft's emulator: what its own answers become here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spothop.checkpoints.chain import Chain
from spothop.storage import (
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    StorageBadUrl,
    StorageDenied,
    StorageUnavailable,
    open_store,
)
from support import azurite
from support.azurite import Container, token

MIB = 2**20


@pytest.fixture
def container() -> Iterator[Container]:
    with Container() as container:
        yield container


@pytest.fixture
def store(container: Container) -> ObjectStore:
    return open_store(container.spec())


def as_who(container: Container, **who: str) -> ObjectStore:
    return open_store(azurite.server().spec(container.name, **who), quick=True)


def test_names_with_odd_characters_come_back_as_they_are(store: ObjectStore) -> None:
    names = ["a b", "50%", "a+b&c=d", "\u00e4\u4e2d", "q?x", "h#y", "it's", "[1]", "~.-_", "%41"]
    for name in names:
        store.put(f"d/{name}", name.encode())
    assert sorted(info.key for info in store.scan("d")) == sorted(f"d/{name}" for name in names)
    assert [store.get(f"d/{name}").decode() for name in names] == names
    store.delete([f"d/{name}" for name in names])
    assert list(store.scan("d")) == []


def test_a_container_that_is_not_there_is_told_with_what_makes_it(container: Container) -> None:
    store = open_store(azurite.server().spec("no-such-container", account_key=azurite.KEY))
    for ask in (lambda: store.put("k", b"x"), lambda: store.get("k"), lambda: [*store.scan("")]):
        with pytest.raises(StorageBadUrl, match="ContainerNotFound") as caught:
            ask()
        assert "az storage container create" in caught.value.hint


def test_a_container_that_somebody_deletes_is_no_missing_object(store: ObjectStore) -> None:
    store.put("k", b"x")
    with Container() as other:
        gone = open_store(other.spec())
        gone.put("k", b"x")
        azurite.server().delete_container(other.name)
        with pytest.raises(StorageBadUrl, match="ContainerNotFound"):
            gone.get("k")
        azurite.server().ask("PUT", f"{other.name}?restype=container")
        with pytest.raises(ObjectMissing):
            gone.get("k")


@pytest.mark.parametrize(
    "who",
    [
        pytest.param({"sas_key": "sv=2021-12-02&ss=b&srt=co&sp=rwdlac&se=2020-01-01&sig=AA=="}),
        pytest.param({"account_key": "AAAA"}),
        pytest.param({"token": token(valid_s=-60)}),
    ],
    ids=["expired-signature", "wrong-key", "expired-token"],
)
def test_credentials_that_are_no_good_leave_a_save_waiting(
    container: Container, who: dict[str, str]
) -> None:
    """A new token, a set clock or a new signature mends it, so nothing is given up at once."""
    with pytest.raises((StorageUnavailable, StorageDenied)) as caught:
        as_who(container, **who).put("k", b"x")
    assert caught.value.hint
    assert not any(value in str(caught.value) for value in who.values())


def test_an_upload_that_ends_between_two_blocks_leaves_no_object(
    container: Container, store: ObjectStore, tmp_path: Path
) -> None:
    """What it left are blocks that no list names: Azure drops them after a week, and the next
    upload of that name at once."""
    (tmp_path / "f").write_bytes(bytes(20 * MIB))

    def stop(count: int) -> None:
        raise KeyError("killed")

    with pytest.raises(KeyError):
        store.send("big", tmp_path / "f", size=20 * MIB, on_bytes=stop)
    with pytest.raises(ObjectMissing):
        store.get("big")
    store.send("big", tmp_path / "f", size=20 * MIB, on_bytes=lambda count: None)
    assert store.size("big") == 20 * MIB
    assert azurite.server().uncommitted(container.name) == []


def test_of_two_vms_of_one_job_one_writes_the_next_entry(container: Container) -> None:
    one, two = (open_store(container.spec()) for _ in range(2))
    one.create("jobs/j/chain/00000001.json", b"{}")
    with pytest.raises(ObjectExists):
        two.create("jobs/j/chain/00000001.json", b"{}")
    two.create("jobs/j/chain/00000002.json", b"{}")
    assert Chain(one, "j").newest_number() == Chain(two, "j").newest_number() == 2
