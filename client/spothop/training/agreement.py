"""How the processes of one VM save at the same step, although none of them waits for another one.

A request names a step ahead of all. They hear of it at different moments, and the agent does not
know how far they are; so some may be past that step when they hear of it. Whatever the order, all
of them save at one step, or none does. Three rules, on files that they share:

1. Who takes a request before its step leaves a file with its name there. Who is past it, leaves a
   decision: no.
2. The first who comes to that step, or beyond it, decides: that step if all have left their
   files, else no. A decision is a symbolic link, because making one with its text is one
   step that only the first one can do.
3. Everybody goes by the decision. One who left a file has not been at that step, so it will read
   the decision when it gets there.

So "yes" is decided only when all will come by. "No" costs a new request, for a later step. Not
taken: one who hears of a request decides for the next step. It needs processes that are never more
than one step apart, and those on a GPU only queue their collectives. Standard library only.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = "asked"
NO = "no"


class Agreement:
    """The view of one process, `pid`."""

    __slots__ = ("_folder", "_pid")

    def __init__(self, run_dir: str, pid: int) -> None:
        self._folder = os.path.join(run_dir, FOLDER)
        self._pid = pid

    def join(self, request: str) -> None:
        """Taken, before its step. Raises OSError: then it is not."""
        os.makedirs(self._folder, exist_ok=True)
        os.close(os.open(f"{self._name(request)}.{self._pid}", os.O_CREAT | os.O_WRONLY, 0o600))

    def refuse(self, request: str) -> int | None:
        """This process cannot; the step where another one has decided for one before."""
        os.makedirs(self._folder, exist_ok=True)
        return self._decide(request, NO)

    def decide(self, request: str, ranks: Sequence[int], step: int) -> int | None:
        """At which step it is saved, now that this process is at `step`; None: it is not."""
        known, decided = self.decided(request)
        if known:
            return decided
        name = self._name(request)
        everybody = all(os.path.exists(f"{name}.{pid}") for pid in ranks)
        return self._decide(request, str(step) if everybody else NO)

    def missing(self, request: str, ranks: Sequence[int]) -> list[int]:
        """Who has not taken it."""
        return [pid for pid in ranks if not os.path.exists(f"{self._name(request)}.{pid}")]

    def decided(self, request: str) -> tuple[bool, int | None]:
        """Whether there is a decision, and which."""
        try:
            text = os.readlink(self._name(request))
        except OSError:
            return False, None
        return True, None if text == NO else int(text)

    def _decide(self, request: str, text: str) -> int | None:
        try:
            os.symlink(text, self._name(request))
        except FileExistsError:
            pass
        except OSError:  # nothing can be decided on a full disk: nobody saves for it
            return None
        return self.decided(request)[1]

    def _name(self, request: str) -> str:
        return os.path.join(self._folder, request)
