"""The agent: one per VM. It starts the job, watches for notices, and backs checkpoints up."""

import sys

__version__ = "0.1.0"

# httpx imports its own command line where it can, with rich and pygments: a fifth of an agent's
# start. Without that module it does without, as where the two are not installed.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
