"""A life cycle as a table: the only place that knows what may follow what. Pure.

Two rules: an event that has no entry in a state's row is refused and changes nothing; what can be
derived from the table (terminal states, the states before an event) is derived and never written
down a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class IllegalTransition(Exception):
    """`event` cannot happen in `state`; nothing was changed."""

    def __init__(self, state: Enum, event: Enum) -> None:
        super().__init__(f"{type(state).__name__} {state.value!r} does not take {event.value!r}")
        self.state = state
        self.event = event


class Machine(Generic[S, E]):
    """One table with what follows from it."""

    def __init__(self, table: Mapping[S, Mapping[E, S]]) -> None:
        self.table = table
        self.states: type[S] = type(next(iter(table)))
        self.terminal = frozenset(state for state, follows in table.items() if not follows)

    def after(self, state: S, event: E) -> S:
        """Raises IllegalTransition."""
        try:
            return self.table[state][event]
        except KeyError:
            raise IllegalTransition(state, event) from None

    def sources(self, event: E) -> frozenset[S]:
        """The states in which `event` may happen."""
        return frozenset(state for state, follows in self.table.items() if event in follows)
