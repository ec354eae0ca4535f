"""Makes one save of the shards that the processes of a VM handed over: all of a step, or none.

Each `backup(..., shard=True)` says which part of how many it is (meta.json), so the outbox alone
tells whether a save is complete, also to an agent that was started again. When all parts of a step
are there, they are moved into one directory, `spothop-shards/<part>/<name>`, which is then a backup
like any other. The moves are noted before the first one (`.join-<id>/meta.json`), so that the next
agent goes on with them. Until then nothing was accepted: parts that stay alone are dropped when a
newer save is accepted, when the script is started again, or at the end.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from spothop_agent.outbox import Meta
from spothop_agent.paths import write_atomic

ROOT = "spothop-shards"
"""Below the job's directory; with the number of the part between it and the shard's name."""
JOIN = ".join-"

_log = logging.getLogger(__name__)


class Shards:
    """`look` says which of the published backups are only parts."""

    def __init__(self, outbox: Path) -> None:
        self._outbox = outbox
        self._seen: dict[str, Meta | None] = {}  # None: a whole save, or unreadable
        self.delayed = False
        """Something is complete, and a full disk does not let it be joined: look again."""
        self._unfinished = [outbox / name for name in os.listdir(outbox) if name.startswith(JOIN)]

    def look(self, names: list[str]) -> tuple[set[str], list[Path]]:
        """The parts that wait, and what is left of those that were joined, to be deleted."""
        left: list[Path] = []
        try:
            while self._unfinished:  # first: until then a part that was moved looks like nothing
                self._finish(self._unfinished[-1])
                self._unfinished.pop()
            self._seen = {name: self._seen.get(name) or self._read(name) for name in names}
            for step in {meta.step for meta in self._seen.values() if meta is not None}:
                parts = self._newest(step)
                if parts and len(parts) == next(iter(parts.values())).parts:
                    left += self._join(parts)
        except OSError as error:
            if not self.delayed:
                _log.warning("shards cannot be joined now: %s", error)
            self.delayed = True
        else:
            self.delayed = False
        if self._unfinished:
            return set(names), left
        return {name for name, meta in self._seen.items() if meta is not None}, left

    def drop(self, *, before: float | None = None, step: int | None = None) -> list[str]:
        """Take out parts that were handed over `before` a moment, or hold a step up to `step`, or
        all; one line for each incomplete save. The folders stay hidden for `outbox.leftovers`."""
        steps: dict[int, list[Meta]] = {}
        for name, meta in [*self._seen.items()]:
            if meta is None or (before is not None and meta.mono >= before):
                continue
            if step is not None and meta.step > step:
                continue
            steps.setdefault(meta.step, []).append(meta)
            self._hide(name)
        return [
            f"the save of step {number} is not complete and was not backed up:"
            f" {len({meta.part for meta in metas})} of {metas[0].parts} shards were handed over"
            for number, metas in sorted(steps.items())
        ]

    def _read(self, name: str) -> Meta | None:
        try:
            meta = Meta.model_validate_json((self._outbox / name / "meta.json").read_bytes())
        except (OSError, ValueError):  # `outbox.read` says what is wrong with it
            return None
        if meta.part is None:
            return None
        try:
            os.lstat(self._outbox / name / "payload" / meta.name)
        except (FileNotFoundError, NotADirectoryError):  # was joined
            self._hide(name)
            return None
        except OSError as error:  # it may be there: looked at again
            _log.warning("shard %s cannot be read now: %s", name, error)
            return None
        return meta

    def _newest(self, step: int) -> dict[int, Meta]:
        """By part: of one that came twice the newer one counts."""
        found: dict[int, Meta] = {}
        for name in sorted(self._seen):
            meta = self._seen[name]
            if meta is not None and meta.step == step and meta.part is not None:
                found[meta.part] = meta
        return found

    def _join(self, parts: dict[int, Meta]) -> list[Path]:
        metas = [parts[number] for number in sorted(parts)]
        answers = next((meta for meta in metas if meta.request is not None), metas[0])
        newest = max(metas, key=lambda meta: meta.id)
        joined: dict[str, Any] = {
            "v": 1,
            "id": f"{newest.id}s",
            "name": ROOT,
            "path": ROOT,
            "is_dir": True,
            "step": newest.step,
            "kind": answers.kind.value,
            "request": answers.request,
            "delta_s": max(meta.delta_s for meta in metas),
            "exact": all(meta.exact for meta in metas),
            "began": min((meta.began for meta in metas if meta.began), default=newest.began),
            "mono": newest.mono,
            "shards": [f"{meta.part}/{meta.name}" for meta in metas],
            "joined": [meta.id for meta in metas],
        }
        aside = self._outbox / f"{JOIN}{joined['id']}"
        aside.mkdir(exist_ok=True)
        if not (aside / "meta.json").exists():  # else the moves may have begun
            write_atomic(aside / "meta.json", json.dumps(joined).encode())
        self._finish(aside)
        return [self._hide(meta.id) for meta in metas]

    def _finish(self, aside: Path) -> None:
        """Move what has not been moved yet, and publish."""
        try:
            joined = json.loads((aside / "meta.json").read_bytes())
        except (OSError, ValueError) as error:  # before the first move: the parts are all there
            _log.info("%s: %s", aside, error)
            return
        places = [aside / "payload" / ROOT / shard for shard in joined["shards"]]
        for place in places:
            place.parent.mkdir(parents=True, exist_ok=True)
        for name, place in zip(joined["joined"], places, strict=True):
            with suppress(FileNotFoundError):  # moved before
                os.replace(self._outbox / name / "payload" / place.name, place)
        os.replace(aside, self._outbox / joined["id"])

    def _hide(self, name: str) -> Path:
        gone = self._outbox / f".gone-{name}"
        os.replace(self._outbox / name, gone)
        self._seen.pop(name, None)
        return gone
