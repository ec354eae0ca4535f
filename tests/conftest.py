"""For all tests: how Hypothesis looks for counterexamples, and that Ctrl-C can be sent."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# No deadline: a slow machine is no counterexample. In CI the same examples at every run, so that a
# red gate is about the change; at home new ones each time, so that more is found.
settings.register_profile("home", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "home")  # noqa: TID251  the tests' switch

# A shell starts background jobs with SIGINT ignored, and their children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
