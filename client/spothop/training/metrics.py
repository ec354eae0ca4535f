"""The newest value of each metric, until the pipe takes it."""

from __future__ import annotations

import sys

from spothop.training import pipes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from spothop.training.channel import Channel


MAX_NAME = 64
"""Characters."""
MAX_NAMES = 1_000
"""Of one process."""
WARNINGS = 20
"""About names and values that are left out."""


class Metrics:
    """Values given to `log()` that were not sent yet."""

    __slots__ = ("_names", "_values", "_warned")

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        self._names: set[str] = set()
        self._warned: set[str] = set()

    def update(self, values: Mapping[str, Any]) -> dict[str, float]:
        """Take numbers and one-element tensors; raises ValueError for anything else.

        NaN and infinities are left out, because neither JSON nor SQLite has them: those that are
        so for the first time are returned, for the user to hear of. So are, with a warning, names
        that nobody could take: a script does not fail for the sake of a metric.
        """
        finite, diverged = {}, {}
        for name, value in values.items():
            try:
                number = float(value)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"log({name}={value!r}): not a number; log numbers only"
                ) from error
            if name not in self._names and not self._admit(name):
                continue
            if number - number == 0.0:
                finite[name] = number
            elif self._warn(
                name, f"log({name}={number}): not finite; such values are not reported"
            ):
                diverged[name] = number
        self._values = {**self._values, **finite}
        return diverged

    def _admit(self, name: str) -> bool:
        """A name that is new: whether it can be reported."""
        if len(name) > MAX_NAME:
            short = f"{name[:20]!a}..."
            self._warn(
                short,
                f"log({short}=...): a name has {MAX_NAME} characters at most, this"
                f" one has {len(name)}; it is not reported",
            )
        elif "\0" in name or any("\ud800" <= character <= "\udfff" for character in name):
            self._warn(name, f"log({name!a}=...): a name has to be text; it is not reported")
        elif len(self._names) >= MAX_NAMES:
            self._warn(
                "",
                f"log({name}=...): a script has {MAX_NAMES:,} metrics at most; further"
                " ones are not reported",
            )
        else:
            self._names.add(name)
            return True
        return False

    def _warn(self, name: str, text: str) -> bool:
        """Once for a name; True where it was."""
        if name in self._warned or len(self._warned) >= WARNINGS:
            return False
        self._warned.add(name)
        warn(text)
        return True

    def offer(self, channel: Channel, step: int) -> bool:
        """Send what is new; True when nothing is left."""
        values, self._values = self._values, {}
        if not values or self._offer(channel, step, values):
            return True
        self._values = {**values, **self._values}
        return False

    def _offer(self, channel: Channel, step: int, values: dict[str, float]) -> bool:
        """In several messages if needed. If only the first fits into the pipe, all come again."""
        try:
            return channel.offer({"t": "metrics", "step": step, "values": values})
        except pipes.MessageTooLong:
            if len(values) == 1:
                warn(f"log({next(iter(values))[:40]}...=): too long a name; it is not reported")
                return True
        names = list(values)
        half = len(names) // 2
        return all(
            self._offer(channel, step, {name: values[name] for name in part})
            for part in (names[:half], names[half:])
        )


def warn(text: str) -> None:
    """One line for the user; logging would cost 10 ms at import."""
    sys.stderr.write(f"spothop: {text}\n")
