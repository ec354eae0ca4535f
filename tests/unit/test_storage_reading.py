"""A read that hangs is gone on with; what was read before it is not read again."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest

from fakes.s3_server import Fault, S3Server
from spothop.checkpoints import Chain, restore, upload
from spothop.storage import open_store, opening
from spothop.storage.base import MIB
from spothop.wire import SaveKind


def test_one_hanging_read_does_not_begin_a_restore_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in real life: a whole request may take twice as long as obstore tries again."""
    monkeypatch.setitem(opening._CLIENT, "timeout", "4s")
    monkeypatch.setitem(opening._RETRY, "retry_timeout", timedelta(seconds=2))
    monkeypatch.setitem(opening._READER_CLIENT, "read_timeout", "500ms")
    (tmp_path / "f").write_bytes(os.urandom(25 * MIB))
    with S3Server() as s3:
        store = open_store(s3.spec("s3://bucket/runs"))
        chain = Chain(store, "j")
        chain.fence(1)
        files = upload(store, "j", 1, 1, SaveKind.PERIODIC, tmp_path / "f")
        chain.commit(
            1, step=1, kind=SaveKind.PERIODIC, files=files, root="f", is_dir=False, meta={}
        )
        s3.add(Fault(operation="GetObject", key="*/f/000002", stall=True))
        began = time.monotonic()
        found = restore(store, chain.newest_first(), tmp_path / "back")
        assert found.path is not None
        assert found.path.read_bytes() == (tmp_path / "f").read_bytes()
        assert s3.count("GetObject", "*/f/*") == 5
        assert time.monotonic() - began < 3.5  # else it was the time-out of the whole request


def test_options_of_the_user_count_for_reading_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, object]] = []
    real = opening.obstore.store.from_url

    def from_url(url: str, **more: object) -> object:
        seen.append(dict(more["client_options"]))  # type: ignore[call-overload]
        return real(url, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(opening.obstore.store, "from_url", from_url)
    with S3Server() as s3:
        spec = s3.spec("s3://bucket/runs")
        open_store(spec.model_copy(update={"options": {**spec.options, "timeout": "7s"}}))
    assert {each["timeout"] for each in seen} == {"7s"}
    assert sorted("read_timeout" in each for each in seen) == [False, True]
