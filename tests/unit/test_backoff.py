"""The pause between two tries: jittered, growing, bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.backoff import delay_s
from support.examples import examples


@given(
    failures=st.integers(1, 10_000),
    jitter=st.floats(0, 1, exclude_max=True),
    growth=st.sampled_from([1.5, 2.0]),
)
@examples(100)
def test_a_wait_is_between_half_and_all_and_bounded(
    failures: int, jitter: float, growth: float
) -> None:
    wait = delay_s(failures, base_s=1, max_s=300, jitter=jitter, growth=growth)
    whole = min(300.0, growth ** min(failures - 1, 60))
    assert whole / 2 <= wait <= whole


def test_it_grows_by_its_factor_up_to_the_longest() -> None:
    waits = [delay_s(n, base_s=0.5, max_s=5, jitter=0, growth=1.5) for n in (1, 2, 3, 20)]
    assert waits == pytest.approx([0.25, 0.375, 0.5625, 2.5])


def test_no_failure_waits_not() -> None:
    assert delay_s(0, base_s=1, max_s=300, jitter=0.5) == 0


def test_it_doubles_unless_told_otherwise() -> None:
    assert [delay_s(n, base_s=1, max_s=300, jitter=0) for n in (1, 2, 3)] == [0.5, 1, 2]
