"""What can go wrong between a user and the master. Every error has a message and a hint.

ClientError
|-- Unreachable     no answer: wrong address, master down, network
|-- NotSpothop      an answer, but not one of a master that this client understands
|-- TooNew          the master has a state or kind that this client does not know
`-- ApiError        the master refused, with its own reason
"""

from __future__ import annotations


class ClientError(Exception):
    """What is wrong (`message`), and what to do about it (`hint`)."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Unreachable(ClientError):
    """No answer came."""


class NotSpothop(ClientError):
    """Something else than a spothop master answered."""


class TooNew(ClientError):
    """The answer is a spothop master's, with a value that came after this client."""


class ApiError(ClientError):
    """The master refused; `error` is its stable name for the reason."""

    def __init__(
        self, message: str, hint: str = "", *, status: int, error: str, field: str | None = None
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        self.error = error
        self.field = field
