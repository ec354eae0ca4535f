"""What protects a job's work, and what to add to a script that nothing protects. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from spothop.wire import Unprotected

DEFAULT_AFTER_S = 300.0
"""How long a script may train, or start, before something is missing (`unprotected_after`)."""

_SAVE = (
    "if sp.check_save():  # after each step",
    '    save("ckpt.pt")',
    '    sp.backup("ckpt.pt")',
)

ADD: Mapping[Unprotected, tuple[str, ...]] = {
    Unprotected.NO_CALLS: (
        "import spothop as sp",
        "path = sp.latest_checkpoint()  # before the loop: load it, if there is one",
        "with sp.step_context():  # around each step",
        *_SAVE,
    ),
    Unprotected.NO_CHECK: _SAVE,
    Unprotected.NO_SAVE: _SAVE,
    Unprotected.STORAGE: (),
}
"""Lines of Python, as they stand in the script; none where the script is not at fault."""

MENDED: Mapping[Unprotected, str] = {
    Unprotected.NO_CALLS: "the script makes spothop calls now",
    Unprotected.NO_CHECK: "the script calls check_save() now",
    Unprotected.NO_SAVE: "a save was handed over",
    Unprotected.STORAGE: "no save waits for the storage",
}
