"""How many pieces to send at once, and when one is late. Pure: times are arguments.

What it must guarantee: neither a short line is flooded nor a long one left idle, the memory stays
bounded, and one request that hangs does not hold up a save.

- **Window.** It begins with a few and doubles while the rate of whole rounds still grows: a round
  trip to a store takes 20 to 100 ms whatever the size, so that a few requests at once do not fill
  the line. It stops where more at once brings nothing, and halves when a request fails.
- **Late.** A piece that takes several times as long as its siblings hangs in *its* connection or at
  *its* server; a second copy takes another one, and the first answer wins (Dean and Barroso, The
  Tail at Scale, 2013). Both write the same bytes to the same key, so it does not matter which.

Tried, and no good: a time-out for each request instead of a second copy. On a slow line every
request runs into it, and nothing is ever finished. For the same reason nothing is dropped sooner
because a notice came: only copies are sent sooner, and while no piece has shown how long one takes
only one, for a slow line looks like a store that hangs. (Half of 8 MiB was through, and was dropped
for its own copies: a line that needed 16 of 30 s did not make it.)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from spothop.storage.base import MIB

FIRST = 8
"""With large parts that is all that the memory allows. Beginning with 4 cost a sixth of the rate at
100 ms, where other work on the machine made the second round look no faster than the first."""
MOST = 64
GROWS = 1.1
"""A round counts as faster from here on; less is noise."""
SIBLINGS = 3
"""So many finished pieces tell how long one takes."""
REMEMBERED = 32
SECOND_COPIES = 2
"""So many at once: where everything is slow, copies would only make it slower."""
LONG_S = 10.0
"""What takes so long does not wait for a round trip: more at once would not make it faster."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Seconds; tests have less of it."""

    least_s: float = 1.0
    """No piece is late before this."""
    times: float = 4.0
    """As long as its siblings, and it is late."""
    alone_s: float = 60.0
    """Late, where nothing is known of siblings."""
    stalled_s: float = 110.0
    """Nothing at all is finished for so long: the store does not answer, or not to so many at once.
    Less than the time-out of a request (`opening`), which knows nothing of the others."""

    def alone(self, left_s: float | None) -> float:
        """After a notice a quarter of what is left: a second try must still fit."""
        if left_s is None:
            return self.alone_s
        return min(self.alone_s, max(self.least_s, left_s / 4))


@dataclass
class Window:
    """`budget` is the bytes under way at most; one piece may always be. `paces` may be those of the
    uploads before, in seconds a byte: what is slow is known then at the first piece."""

    budget: int
    at_once: int = FIRST
    most: int = MOST
    paces: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _growing: bool = True
    _best: float = 0.0
    _round_began: float | None = None
    _round_bytes: int = 0
    _round_left: int = 0

    def admits(self, pieces: int, under_way: int, size: int) -> bool:
        """Whether one more of `size` bytes may begin beside `pieces` with `under_way` bytes."""
        return pieces == 0 or (pieces < self.at_once and under_way + size <= self.budget)

    def begun(self, now: float) -> None:
        if self._round_began is None:
            self._round_began, self._round_left, self._round_bytes = now, self.at_once, 0

    def finished(self, size: int, took_s: float, now: float) -> None:
        """One piece is through. A round is as many as were allowed at once."""
        self.paces.append(took_s / _weight(size))
        self._round_bytes += _weight(size)
        self._round_left -= 1
        if self._round_left > 0 or self._round_began is None:
            return
        rate = self._round_bytes / max(now - self._round_began, 1e-6)
        if self._growing:
            if rate > self._best * GROWS and took_s < LONG_S:
                self.at_once = min(self.most, 2 * self.at_once)
            else:
                self._growing = False
        self._best = max(self._best, rate)
        self._round_began, self._round_left, self._round_bytes = now, self.at_once, 0

    def failed(self) -> None:
        """Fewer, and no growth from here on: the store refuses, or a connection broke."""
        self.at_once, self._growing = max(1, self.at_once // 2), False

    def second_copies(self) -> int:
        """Pieces that may be under way twice."""
        return SECOND_COPIES if len(self.paces) >= SIBLINGS else 1

    def late_after_s(self, size: int, patience: Patience, left_s: float | None) -> float:
        """Seconds after which a piece of `size` bytes is late."""
        alone = patience.alone(left_s)
        if len(self.paces) < SIBLINGS:
            return alone
        usual = median(self.paces) * _weight(size)
        late = patience.times * usual
        if left_s is not None:  # sooner then, but a second copy on a slow line makes it slower
            late = min(late, max(alone, 2 * usual))
        return max(patience.least_s, late)


def _weight(size: int) -> int:
    """Below this size a request takes as long as it takes, whatever it carries."""
    return max(size, MIB)
