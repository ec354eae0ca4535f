"""The log of a job as it is printed: a line between its attempts, and without the agent's own lines
where the events tell the same. Pure."""

from __future__ import annotations

import re

from spothop.eventlog import AGENT_LINE

_LINES = re.compile(r"[^\n]*\n|[^\n]+")


class JobLog:
    """Turns the pieces of a log, which may end anywhere, into what is printed."""

    def __init__(self, *, of_agent: bool = True) -> None:
        """`of_agent`: also the lines that the agent writes."""
        self._of_agent = of_agent
        self._attempt: int | None = None
        self._open = False
        """What was printed last did not end its line."""
        self._held = ""
        """The beginning of a line that may become one of the agent's."""
        self._rest_shown: bool | None = None
        """Whether the rest of a line that has begun is printed; None at the beginning of one."""

    def feed(self, attempt: int, text: str) -> str:
        """What is to be printed now."""
        shown = self._change(attempt) if attempt != self._attempt else ""
        shown += text if self._of_agent else "".join(map(self._part, _LINES.findall(text)))
        if shown:
            self._open = not shown.endswith("\n")
        return shown

    def _change(self, attempt: int) -> str:
        is_first, rest = self._attempt is None, self._held
        end = "\n" if self._open or rest else ""
        self._attempt, self._held, self._rest_shown = attempt, "", None
        return "" if is_first else f"{rest}{end}---- attempt {attempt} ----\n"

    def _part(self, part: str) -> str:
        """What of a line, or of the beginning or the rest of one, is printed."""
        shown = ""
        if self._rest_shown is None:
            self._held += part
            if len(self._held) < len(AGENT_LINE) and AGENT_LINE.startswith(self._held):
                return ""
            self._rest_shown = not self._held.startswith(AGENT_LINE)
            part, self._held = self._held, ""
        if self._rest_shown:
            shown = part
        if part.endswith("\n"):
            self._rest_shown = None
        return shown
