"""Names of metrics that no message can carry."""

from __future__ import annotations

import pytest

from spothop.training import pipes
from spothop.training.metrics import Metrics


class Pipe:
    """Takes everything that can be encoded."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def offer(self, message: dict[str, object]) -> bool:
        pipes.encode(message)
        self.values.update(message["values"])  # type: ignore[call-overload]
        return True


@pytest.mark.parametrize("name", ["\ud800", "x\udfffy", "n" * 100_000])
def test_a_name_that_cannot_be_sent_is_left_out_and_told_once(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics, pipe = Metrics(), Pipe()
    metrics.update({name: 1.0, "lr": 0.1})
    assert metrics.offer(pipe, 1)  # type: ignore[arg-type]
    assert pipe.values == {"lr": 0.1}
    assert "not reported" in capsys.readouterr().err
