"""Which store a save goes to. Pure: what was measured is an argument.

The order: what works before what has just failed; the VM's own cloud and region before all others
(traffic inside a region is quick, and free); then the shortest measured upload; then the order of
the list. A store that was not measured counts as slower than any that was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, kw_only=True)
class Place:
    """A cloud and a region of it; empty where it is not known."""

    cloud: str = ""
    region: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.cloud, self.region) if part) or "an unknown place"

    def is_at(self, other: Place) -> bool:
        """The same region of the same cloud. What is unknown is nowhere."""
        return self == other and bool(self.cloud and self.region)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One store of the list, as it looks from this VM."""

    url: str
    place: Place = Place()
    upload_s: float | None = None
    """Of an object of a fixed size; None: not measured."""
    failing: bool = False
    """The last try failed, a short while ago."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A store, and why it is there in the order."""

    url: str
    reason: str


def by_nearness(here: Place, candidates: Sequence[Candidate]) -> list[Choice]:
    """All of them, the nearest first."""

    def far(at: int) -> tuple[bool, bool, float, int]:
        store = candidates[at]
        took_s = inf if store.upload_s is None else store.upload_s
        return store.failing, not store.place.is_at(here), took_s, at

    order = sorted(range(len(candidates)), key=far)
    return [Choice(url=candidates[at].url, reason=_reason(here, candidates[at])) for at in order]


def _reason(here: Place, store: Candidate) -> str:
    took = "" if store.upload_s is None else f"an upload of 1 MiB took {store.upload_s:.3f} s"
    if store.failing:
        return "it failed a short while ago"
    if store.place.is_at(here):
        return f"it lies in {here}, as this VM does"
    return took or "its upload time is not known"
