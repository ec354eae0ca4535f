"""The consoles of the CLI: what others have written does nothing on a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from spothop.cli.harmless import harmless


class OurConsole(Console):
    """Without markup: text is shown as it is, and on a terminal harmlessly, unless it is `raw`."""

    def __init__(self, *, raw: bool = False, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)
        self._raw = raw

    def print(self, *objects: Any, **options: Any) -> None:
        if self.is_terminal and not self._raw:
            objects = tuple(map(_cleaned, objects))
        super().print(*objects, **options)


def _cleaned(shown: Any) -> Any:
    if isinstance(shown, str):
        return harmless(shown)
    if isinstance(shown, Text) and (plain := harmless(shown.plain)) != shown.plain:
        shown = shown.copy()
        shown.plain = plain  # as many characters: its styles stay where they are
    return shown
