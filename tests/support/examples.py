"""How many examples Hypothesis tries: a test says its share, the profile says of how many.

The profiles are in `conftest.py`: few in `make test`, many in `make test-all`.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def examples(percent: int, **more: Any) -> settings:
    """The settings of the profile, with this share of its examples; cheap tests take 100 %. What a
    test suppresses comes on top of the profile's: none may fail because the machine is slow."""
    number = settings().max_examples * percent // 100
    own = more.pop("suppress_health_check", ())
    suppressed = {*settings().suppress_health_check, *own}
    return settings(max_examples=max(number, 5), suppress_health_check=[*suppressed], **more)
