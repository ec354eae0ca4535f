"""Pieces on their way to a store that hangs, refuses, or is slow at one of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import obstore.store
import pytest

from fakes.s3_server import FOR_EVER, Fault, S3Server
from spothop.storage import Piece, RemoteStore, StorageDenied, StorageUnavailable
from spothop.storage.window import Patience, Window

NEVER = Patience(least_s=1e6, alone_s=1e6, stalled_s=1e6)
SOON = Patience(least_s=0.02, alone_s=0.02, times=1.0, stalled_s=1e6)


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


def opened(s3: S3Server, patience: Patience, *, at_once: int = 4) -> RemoteStore:
    options = s3.options()
    del options["allow_http"]
    store = obstore.store.from_url(
        "s3://bucket",
        client_options={"allow_http": True, "timeout": "1000s"},
        **options,  # type: ignore[arg-type]
    )
    return RemoteStore(
        store,
        "s3://bucket",
        patience=patience,
        window=lambda: Window(1 << 30, at_once=at_once, most=at_once),
    )


def pieces(count: int) -> Iterator[Piece]:
    for number in range(count):
        yield Piece(f"k{number}", bytes([number]) * 1000, "")


def send(store: RemoteStore, count: int, **more: object) -> list[str]:
    sent: list[str] = []
    arguments = {"still_wanted": lambda: None, "left_s": lambda: None, **more}
    store.send_pieces(
        pieces(count),
        on_sent=lambda piece: sent.append(piece.key),
        **arguments,  # type: ignore[arg-type]
    )
    return sent


def test_all_arrive(s3: S3Server) -> None:
    assert sorted(send(opened(s3, NEVER), 20)) == sorted(s3.objects)
    assert s3.objects["k7"] == bytes([7]) * 1000
    assert len(s3.objects) == 20


def test_one_that_hangs_is_sent_a_second_time_and_the_first_answer_wins(s3: S3Server) -> None:
    s3.add(Fault(operation="PutObject", key="k2", stall=True))
    assert len(send(opened(s3, SOON), 5)) == 5
    assert s3.count("PutObject", "k2") >= 2
    assert s3.objects["k2"] == bytes([2]) * 1000


def test_where_both_copies_hang_a_third_goes(s3: S3Server) -> None:
    s3.add(Fault(operation="PutObject", key="k0", stall=True, times=2))
    assert send(opened(s3, SOON), 1) == ["k0"]
    assert s3.count("PutObject", "k0") >= 3


def test_a_hanging_upload_ends_when_it_is_not_wanted_any_more(s3: S3Server) -> None:
    s3.add(Fault(operation="PutObject", stall=True, times=FOR_EVER))

    def unwanted() -> None:
        if s3.count("PutObject") >= 4:
            raise KeyError("superseded")

    with pytest.raises(KeyError):
        send(opened(s3, NEVER), 20, still_wanted=unwanted)
    assert s3.count("PutObject") == 4  # no more than the window allows
    assert not [t for t in threading.enumerate() if t.name == "spothop-send"]


def test_a_store_that_answers_nothing_is_told(s3: S3Server) -> None:
    s3.add(Fault(operation="PutObject", stall=True, times=FOR_EVER))
    patience = Patience(least_s=1e6, alone_s=1e6, stalled_s=0.01)
    with pytest.raises(StorageUnavailable, match="nothing that was sent was answered"):
        send(opened(s3, patience), 3)


def test_after_a_notice_the_second_copy_goes_sooner(s3: S3Server) -> None:
    s3.add(Fault(operation="PutObject", key="k0", stall=True))
    patience = Patience(least_s=0.01, alone_s=1e6, stalled_s=1e6)
    assert send(opened(s3, patience), 1, left_s=lambda: 0.1) == ["k0"]
    assert s3.count("PutObject", "k0") >= 2


def test_a_refusal_ends_it_and_what_arrived_is_known(s3: S3Server) -> None:
    s3.fail("PutObject", "k3", 403, "AccessDenied", times=FOR_EVER)
    sent: list[str] = []
    with pytest.raises(StorageDenied):
        opened(s3, NEVER, at_once=1).send_pieces(
            pieces(9),
            on_sent=lambda piece: sent.append(piece.key),
            still_wanted=lambda: None,
            left_s=lambda: None,
        )
    assert sent == ["k0", "k1", "k2"]


def test_an_error_of_the_reader_ends_it(s3: S3Server) -> None:
    def torn() -> Iterator[Piece]:
        yield from pieces(1)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        opened(s3, NEVER).send_pieces(
            torn(),
            on_sent=lambda piece: None,
            still_wanted=lambda: None,
            left_s=lambda: None,
        )
