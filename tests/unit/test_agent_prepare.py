"""What becomes of an error in a part of the preparation."""

from __future__ import annotations

import errno

import pytest

from spothop.checkpoints import Fenced
from spothop.storage import StorageDenied
from spothop_agent.prepare import PreparationFailed, failures


@pytest.mark.parametrize(
    ("error", "user", "told"),
    [
        (StorageDenied("no right to read"), True, "no right to read"),
        (OSError(errno.ENOSPC, "No space left on device"), False, "No space left"),
        (OSError(errno.E2BIG, "Argument list too long"), True, "`env` is too long"),
        (ValueError("odd"), False, "unexpected ValueError: odd"),
        (PreparationFailed("setup", "exit code 1", user=True), True, "exit code 1"),
    ],
)
def test_every_error_ends_the_attempt_and_not_the_agent(
    error: Exception, user: bool, told: str
) -> None:
    """An agent that ends is started again, and would meet the same without a word to the user."""
    with pytest.raises(PreparationFailed, match=told) as caught, failures("setup"):
        raise error
    assert (caught.value.phase, caught.value.user) == ("setup", user)


def test_a_fence_is_no_failure() -> None:
    with pytest.raises(Fenced), failures("fence"):
        raise Fenced("job", 1, 2)
