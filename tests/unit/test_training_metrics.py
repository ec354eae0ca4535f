"""Names of metrics that no message can carry."""

from __future__ import annotations

import pytest

from spothop.training import pipes
from spothop.training.metrics import MAX_NAMES, WARNINGS, Metrics


class Pipe:
    """Takes everything that can be encoded."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def offer(self, message: dict[str, object]) -> bool:
        pipes.encode(message)
        self.values.update(message["values"])  # type: ignore[call-overload]
        return True


@pytest.mark.parametrize("name", ["\ud800", "x\udfffy", "a\0b", "n" * 65, "n" * 100_000])
def test_a_name_that_cannot_be_sent_is_left_out_and_told_once(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics, pipe = Metrics(), Pipe()
    metrics.update({name: 1.0, "lr": 0.1})
    assert metrics.offer(pipe, 1)  # type: ignore[arg-type]
    assert pipe.values == {"lr": 0.1}
    assert "not reported" in capsys.readouterr().err


def test_a_script_has_a_bounded_number_of_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    metrics, pipe = Metrics(), Pipe()
    for number in range(MAX_NAMES + 100):
        metrics.update({f"m{number}": 1.0})
    metrics.update({"m0": 2.0})
    assert metrics.offer(pipe, 1)  # type: ignore[arg-type]
    assert len(pipe.values) == MAX_NAMES
    assert pipe.values["m0"] == 2.0
    assert capsys.readouterr().err.count("at most; further ones are not reported") == 1


def test_bad_names_without_end_are_not_told_without_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    metrics = Metrics()
    for number in range(1_000):
        metrics.update({f"{number} \0": 1.0})
    assert len(capsys.readouterr().err.splitlines()) == WARNINGS
