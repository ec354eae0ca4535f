"""The newest value of each metric, until the pipe takes it."""

from __future__ import annotations

import sys

from spothop.training import pipes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from spothop.training.channel import Channel


class Metrics:
    """Values given to `log()` that were not sent yet."""

    __slots__ = ("_values", "_warned")

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        self._warned: set[str] = set()

    def update(self, values: Mapping[str, Any]) -> None:
        """Take numbers and one-element tensors; raises ValueError for anything else.

        NaN and infinities are left out with a warning: JSON does not have them.
        """
        finite = {}
        for name, value in values.items():
            try:
                number = float(value)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"log({name}={value!r}): not a number; log numbers only"
                ) from error
            if number - number != 0.0:
                self._warn(name, f"log({name}={number}): not finite; such values are not reported")
            elif any("\ud800" <= character <= "\udfff" for character in name):
                self._warn(name, f"log({name!a}=...): a name has to be text; it is not reported")
            else:
                finite[name] = number
        self._values = {**self._values, **finite}

    def _warn(self, name: str, text: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            warn(text)

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
