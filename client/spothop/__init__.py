"""Train on spot VMs as if they were reliable: four lines save a training script, one resumes it.

    import spothop as sp

    path = sp.latest_checkpoint()                         # resume
    start = load(path) if path else 0
    for step in range(start, steps):
        with sp.step_context():                           # 1
            train()
        if (step + 1) % 100 == 0 or sp.check_save():      # 2
            save("checkpoint.pt")
            sp.backup("checkpoint.pt")                    # 3
    sp.done()                                             # 4

Outside a spothop job every call is a cheap no-op, so the script also runs alone, unchanged.
"""

from spothop.training.api import (
    backup,
    check_save,
    done,
    enter_step,
    exit_step,
    latest_checkpoint,
    log,
    saving,
    step_context,
)

__all__ = [
    "backup",
    "check_save",
    "done",
    "enter_step",
    "exit_step",
    "latest_checkpoint",
    "log",
    "saving",
    "step_context",
]
