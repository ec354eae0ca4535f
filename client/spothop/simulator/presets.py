"""The thesis's two jobs: inputs that fit its tables 6.2 and 6.3 (it states only some of them)."""

from __future__ import annotations

from typing import Any

_COMMON: dict[str, Any] = {
    "steps": 100_000,
    "mttp_s": 10_800,
    "grace_s": 30,
    "notices_kept": 1.0,  # as the thesis assumes
    "emergency": "once",  # as the thesis does
    "vm": "Standard_NC12s_v3",
}

PRESETS: dict[str, dict[str, Any]] = {
    "thesis-117m": {
        **_COMMON,
        "name": "thesis-117m",
        "step_s": 4.60,
        "save_s": 2.5,
        "backup_s": 5,
        "allocation_s": 133.5,
        "boot_s": 140,
        "load_s": 20,
        "periodic_every": 10_000,
        "policies": ["thesis", "notice-aware", "static-10", "static-51", "static-100", "on-demand"],
    },
    "thesis-1.3b": {
        **_COMMON,
        "name": "thesis-1.3b",
        "step_s": 19.75,
        "save_s": 19.5,
        "backup_s": 8,
        "allocation_s": 136,
        "boot_s": 285,
        "load_s": 40,
        "periodic_every": 1_000,
        "policies": ["thesis", "notice-aware", "static-10", "static-33", "static-100", "on-demand"],
    },
}
