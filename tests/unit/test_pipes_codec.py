"""The codec of the pipes: round trip, any split, garbage."""

from __future__ import annotations

import json
import os
import stat
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.training import pipes
from support.examples import examples

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    leaves | texts, lambda v: st.lists(v, max_size=4) | st.dictionaries(texts, v, max_size=4)
)
messages = st.dictionaries(texts, values, max_size=5)


def fits(msg: dict[str, Any]) -> bool:
    try:
        pipes.encode(msg)
    except pipes.MessageTooLong:
        return False
    return True


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@examples(100)
@given(st.lists(messages.filter(fits), max_size=5), st.lists(st.integers(0, 10_000), max_size=8))
def test_what_is_encoded_comes_out_whatever_the_split(
    sent: list[dict[str, Any]], cuts: list[int]
) -> None:
    decoder = pipes.LineDecoder()
    received = []
    for part in split(b"".join(map(pipes.encode, sent)), cuts):
        received += decoder.feed(part)
    assert received == sent
    assert decoder.garbage == 0


@examples(100)
@given(
    st.lists(st.binary(max_size=60) | st.just(b"x" * 5000) | st.just(b'{"t":1}'), max_size=6),
    st.lists(st.integers(0, 40_000), max_size=8),
)
def test_garbage_never_raises_and_never_depends_on_the_split(
    lines: list[bytes], cuts: list[int]
) -> None:
    data = b"\n".join(lines) + b"\n"
    whole, parts = pipes.LineDecoder(), pipes.LineDecoder()
    expected = whole.feed(data)
    received = [msg for part in split(data, cuts) for msg in parts.feed(part)]
    assert received == expected
    assert parts.garbage == whole.garbage


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[1]",
        b"3",
        b'{"loss":NaN}',
        b'{"loss":-Infinity}',
        b"\xff\xfe",
        b"[" * 4000,
        b'{"a":"' + b"x" * 4096 + b'"}',
    ],
)
def test_a_bad_line_is_counted_and_the_next_one_is_read(line: bytes) -> None:
    decoder = pipes.LineDecoder()
    assert decoder.feed(line + b'\n{"t":"hello"}\n') == [{"t": "hello"}]
    assert decoder.garbage == 1


def test_an_endless_line_takes_no_memory() -> None:
    decoder = pipes.LineDecoder()
    for _ in range(100):
        assert decoder.feed(b"x" * 4096) == []
    assert len(decoder._buffer) < pipes.MAX_LINE
    assert decoder.feed(b'\n{"t":"hello"}\n') == [{"t": "hello"}]
    assert decoder.garbage == 1


def test_a_line_of_exactly_the_limit_fits_and_one_more_byte_does_not() -> None:
    room = pipes.MAX_LINE - len(pipes.encode({"t": ""}))
    line = pipes.encode({"t": "x" * room})
    assert len(line) == pipes.MAX_LINE == 4096
    assert pipes.LineDecoder().feed(line) == [{"t": "x" * room}]
    with pytest.raises(pipes.MessageTooLong, match="4097 bytes"):
        pipes.encode({"t": "x" * (room + 1)})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800"])
def test_what_json_does_not_have_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        pipes.encode({"t": "metrics", "v": value})


def test_a_fifo_is_made_kept_open_and_non_blocking(tmp_path: Path) -> None:
    path = tmp_path / "up"
    fd = pipes.open_fifo(path)
    other = pipes.open_fifo(path)  # the one that is there
    try:
        assert stat.S_ISFIFO(path.stat().st_mode)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(BlockingIOError):
            os.read(fd, 10)
        os.write(other, pipes.encode({"t": "hello"}))
        os.close(other)
        assert json.loads(os.read(fd, 100)) == {"t": "hello"}
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


def test_something_that_is_no_fifo_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "up"
    path.write_text("")
    with pytest.raises(OSError, match="not a named pipe"):
        pipes.open_fifo(path)
