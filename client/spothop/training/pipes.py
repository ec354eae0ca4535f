"""The lines that training process and agent exchange over named pipes.

One JSON object a line, UTF-8, at most ``MAX_LINE`` bytes with the newline: a write of up to
PIPE_BUF bytes to a pipe is all or nothing (POSIX.1-2017, write()), so that the ranks of one VM
never interleave on their common pipe. Standard library only: imported by every training script.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import suppress

TYPE_CHECKING = False  # typing itself costs a millisecond at import
if TYPE_CHECKING:
    from typing import Any

VERSION = 2
"""Version of the messages, carried by `hello`."""

MAX_LINE = 4096
"""PIPE_BUF on Linux, in bytes."""


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class MessageTooLong(ValueError):
    """The message does not fit into one atomic write; it has to be split or shortened."""


def encode(msg: dict[str, Any]) -> bytes:
    """One line for a pipe.

    Raises MessageTooLong above ``MAX_LINE`` bytes, ValueError for NaN and infinities (they are not
    JSON) and for lone surrogates, TypeError for values that JSON does not have.
    """
    line = _ENCODER.encode(msg).encode() + b"\n"
    if len(line) > MAX_LINE:
        raise MessageTooLong(
            f"message {msg.get('t')!r} has {len(line)} bytes, a pipe takes {MAX_LINE}; split it"
        )
    return line


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


class LineDecoder:
    """Bytes in, messages out, however the bytes are split.

    Never raises: a line that is too long or no JSON object is skipped and counted in ``garbage``,
    because one torn line must not end a training process or an agent.
    """

    __slots__ = ("_buffer", "_skipping", "garbage")

    def __init__(self) -> None:
        self._buffer = b""
        self._skipping = False
        self.garbage = 0

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that `data` completes, in order."""
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        messages = []
        for line in lines:
            if self._skipping:  # the rest of a line that was skipped and counted before
                self._skipping = False
            elif line:
                msg = _parse(line)
                if msg is None:
                    self.garbage += 1
                else:
                    messages.append(msg)
        if len(self._buffer) >= MAX_LINE:  # no writer of ours makes such a line: bound the memory
            self.garbage += not self._skipping
            self._skipping = True
        if self._skipping:
            self._buffer = b""
        return messages


def _parse(line: bytes) -> dict[str, Any] | None:
    """The object on one line, or None for anything else."""
    if len(line) >= MAX_LINE:
        return None
    try:
        msg = json.loads(line.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return msg if isinstance(msg, dict) else None


def open_for_writing(path: str | os.PathLike[str]) -> int | None:
    """The end to write into, without blocking; None where nobody has the pipe open for reading.

    Raises OSError when it cannot be opened for another reason.
    """
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None


def open_fifo(path: str | os.PathLike[str]) -> int:
    """Open a named pipe for reading and writing, without blocking; makes it when it is missing.

    Opening both ends keeps the pipe alive when the peer dies (no EOF, no SIGPIPE): what was written
    waits until the peer is started again. Linux defines O_RDWR on a FIFO (fifo(7)), POSIX does not.
    Raises OSError when there is no such folder or the path is something other than a pipe.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        with suppress(FileExistsError):  # the peer was quicker
            os.mkfifo(path, 0o600)
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{os.fspath(path)} is not a named pipe; remove it, it is made anew")
    return fd
