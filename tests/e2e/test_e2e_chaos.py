"""Ten seeds of the chaos suite (tests/chaos/README.md), each a schedule of its own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from chaos import program, schedule
from support.side_by_side import SideBySide, parameters

pytestmark = [pytest.mark.e2e]

SEEDS = {str(seed): seed for seed in range(1, 11)}


def play(seed: int, folder: Path) -> None:
    outcome = program.play(schedule.from_seed(seed, masters=1), folder)
    assert not outcome.violations, "\n".join(
        [*outcome.violations, *outcome.story, outcome.schedule.as_json()]
    )


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SideBySide]:
    folder = tmp_path_factory.mktemp("chaos")
    runs = {name: partial(play, seed, folder / name) for name, seed in SEEDS.items()}
    with SideBySide(request, runs) as outcomes:
        yield outcomes


@pytest.mark.parametrize("case", parameters(SEEDS, gate=[*SEEDS]))
def test_no_promise_is_broken(outcomes: SideBySide, case: str) -> None:
    outcomes.check(case)
