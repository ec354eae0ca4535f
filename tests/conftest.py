"""For all tests: how Hypothesis looks for counterexamples."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline: a slow machine is no counterexample. In CI the same examples at every run, so that a
# red gate is about the change; at home new ones each time, so that more is found.
settings.register_profile("home", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "home")  # noqa: TID251  the tests' switch
