"""How many examples Hypothesis tries: a test says its share, the profile says of how many.

The profiles are in `conftest.py`: few in `make test`, many in `make test-all`.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def examples(percent: int, **more: Any) -> settings:
    """The settings of the profile, with this share of its examples; cheap tests take 100 %."""
    number = settings().max_examples * percent // 100
    return settings(max_examples=max(number, 5), **more)
