"""Bundles by content, logs by offset."""

from __future__ import annotations

import fcntl
import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop_master import logs as logs_module
from spothop_master.bundles import BadBundleName, BundleMismatch, Bundles, BundleTooLarge
from spothop_master.logs import LogFull, Logs
from support.examples import examples

DATA = b"bundle"
LIMIT = 64 * 1024
NAME = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def bundles(tmp_path: Path) -> Bundles:
    return Bundles(tmp_path / "bundles", limit=10)


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path / "logs")


def test_a_bundle_exists_only_once_it_is_whole(bundles: Bundles) -> None:
    with bundles.upload(NAME) as upload:
        upload.write(DATA[:3])
        assert bundles.path(NAME) is None
        upload.write(DATA[3:])
        upload.finish()
    path = bundles.path(NAME)
    assert path is not None
    assert path.read_bytes() == DATA


def test_two_uploads_of_one_bundle_are_harmless(bundles: Bundles) -> None:
    with bundles.upload(NAME) as one, bundles.upload(NAME) as two:
        for upload in (one, two):
            upload.write(DATA)
            upload.finish()
    path = bundles.path(NAME)
    assert path is not None
    assert [p.name for p in path.parent.iterdir()] == [NAME]


def test_a_broken_upload_leaves_nothing(bundles: Bundles, tmp_path: Path) -> None:
    with bundles.upload(NAME) as upload:
        upload.write(b"other")
        with pytest.raises(BundleMismatch):
            upload.finish()
    with bundles.upload(NAME) as upload, pytest.raises(BundleTooLarge):
        upload.write(b"x" * 11)
    with bundles.upload(NAME) as upload:
        upload.write(DATA)  # the client hung up
    assert list((tmp_path / "bundles").iterdir()) == []


@pytest.mark.parametrize("name", ["", "../x", "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_only_hashes_name_bundles(bundles: Bundles, name: str) -> None:
    with pytest.raises(BadBundleName):
        bundles.path(name)


@examples(100)
@given(
    text=st.binary(max_size=60),
    cuts=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12),
)
def test_any_resending_gives_the_same_log(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, cuts: list[tuple[int, int]]
) -> None:
    """Whatever pieces come, in whatever order: the file is a prefix of the log, without holes."""
    logs = Logs(tmp_path_factory.mktemp("logs"))
    for begin, end in cuts:
        begin = min(begin, len(text))
        after = logs.append("job", 1, offset=begin, data=text[begin:end])
        assert after == logs.size("job", 1)
        assert logs.read("job", 1, offset=0).data == text[:after]
    logs.append("job", 1, offset=logs.size("job", 1), data=text[logs.size("job", 1) :])
    assert logs.read("job", 1, offset=0).data == text


def test_each_node_has_a_log_of_its_own(logs: Logs) -> None:
    logs.append("job", 1, 0, offset=0, data=b"zero")
    logs.append("job", 1, 1, offset=0, data=b"one")
    logs.append("job", 11, offset=0, data=b"eleven")
    assert logs.read("job", 1, offset=0).data == b"zero"
    assert logs.read("job", 1, 1, offset=0).data == b"one"
    assert (logs.size("job", 1, 2), logs.size("job", 11)) == (0, 6)
    assert logs.tail("job", 1, 1) == "one"


def test_a_log_of_the_release_before_is_read_and_goes_on(tmp_path: Path) -> None:
    """An attempt that was under way while the master was brought up to date."""
    logs = Logs(tmp_path)
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "1.log").write_bytes(b"before ")
    assert logs.tail("job", 1) == "before "
    assert logs.append("job", 1, offset=7, data=b"after") == 12
    assert logs.read("job", 1, offset=0).data == b"before after"
    assert logs.append("job", 1, 1, offset=0, data=b"node 1") == 6
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == ["1-1.log", "1.log"]


def test_a_gap_is_answered_with_where_to_go_on(logs: Logs) -> None:
    assert logs.append("job", 1, offset=0, data=b"abc") == 3
    assert logs.append("job", 1, offset=9, data=b"xyz") == 3
    assert logs.read("job", 1, offset=0).data == b"abc"


def test_reading_goes_on_from_the_next_offset(logs: Logs) -> None:
    logs.append("job", 2, offset=0, data=b"0123456789")
    first = logs.read("job", 2, offset=0, limit=4)
    assert (first.data, first.next_offset) == (b"0123", 4)
    assert logs.read("job", 2, offset=4).data == b"456789"
    assert logs.read("job", 2, offset=10).data == b""
    assert logs.read("job", 2, offset=2**63 - 1).data == b""
    assert logs.read("other", 1, offset=5).next_offset == 5


@given(text=st.text(min_size=1, max_size=30), limit=st.integers(4, 12))
@examples(100)
def test_pieces_never_cut_a_character(
    tmp_path_factory: pytest.TempPathFactory, text: str, limit: int
) -> None:
    logs = Logs(tmp_path_factory.mktemp("logs"))
    data = text.encode("utf-8", "surrogatepass").replace(b"\xed", b"-")
    try:
        whole = data.decode()
    except UnicodeDecodeError:
        return
    logs.append("job", 1, offset=0, data=data)
    offset, read = 0, ""
    while offset < len(data):
        piece = logs.read("job", 1, offset=offset, limit=limit)
        assert piece.next_offset > offset
        read += piece.data.decode()
        offset = piece.next_offset
    assert read == whole


def test_the_tail_is_the_last_lines(logs: Logs) -> None:
    logs.append("job", 1, offset=0, data=b"".join(b"line %d\n" % i for i in range(10_000)))
    assert logs.tail("job", 1, lines=2) == "line 9998\nline 9999"
    assert logs.tail("job", 9) == ""


def test_of_a_long_log_the_newest_part_stays_at_its_offsets(tmp_path: Path) -> None:
    logs, limit = Logs(tmp_path, limit=LIMIT), LIMIT
    lines = b"".join(b"line %09d\n" % number for number in range(30_000))
    for offset in range(0, len(lines), 10_000):
        end = logs.append("j1", 1, offset=offset, data=lines[offset : offset + 10_000])
    assert end == logs.size("j1", 1) == len(lines)
    assert next(tmp_path.rglob("*.log")).stat().st_blocks * 512 <= limit + 4096
    gap = logs.read("j1", 1, offset=0)
    assert (
        gap.data == f"spothop: {gap.next_offset} bytes of output are not kept any more\n".encode()
    )
    assert gap.next_offset >= len(lines) - limit
    rest = logs.read("j1", 1, offset=gap.next_offset)
    assert rest.data == lines[gap.next_offset :]
    assert logs.tail("j1", 1, lines=1) == lines[-15:-1].decode()
    assert logs.append("j1", 1, offset=0, data=lines[:10_000]) == len(lines)  # resent: harmless


def test_where_no_hole_can_be_made_a_long_log_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs_module, "_punch", lambda *args: False)
    logs = Logs(tmp_path, limit=LIMIT)
    logs.append("j1", 1, offset=0, data=b"x" * LIMIT)
    with pytest.raises(LogFull, match="are the most"):
        logs.append("j1", 1, offset=LIMIT, data=b"y")
    assert logs.size("j1", 1) == LIMIT


@pytest.mark.parametrize("job", ["", "..", "a/b", ".hidden", "x" * 81])
def test_logs_stay_in_their_folder(logs: Logs, job: str) -> None:
    with pytest.raises(ValueError, match="log folder"):
        logs.append(job, 1, offset=0, data=b"x")


def test_two_masters_append_to_one_log(tmp_path: Path) -> None:
    """They have the same folder, and an agent sends to either."""
    one, two = Logs(tmp_path), Logs(tmp_path)
    assert one.append("job", 1, offset=0, data=b"first ") == 6
    assert two.append("job", 1, offset=0, data=b"first second ") == 13
    assert one.append("job", 1, offset=6, data=b"second third") == 18
    assert one.read("job", 1, offset=0).data == b"first second third"


def test_a_log_that_a_stopped_master_is_writing_is_not_waited_for(tmp_path: Path) -> None:
    one, two = Logs(tmp_path), Logs(tmp_path)
    one.append("job", 1, offset=0, data=b"first ")
    with (tmp_path / "job" / "1-0.log").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            two.append("job", 1, offset=6, data=b"second")
        assert two.append("other", 1, offset=0, data=b"not held up") == 11
    assert two.append("job", 1, offset=6, data=b"second") == 12
