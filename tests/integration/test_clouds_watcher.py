"""What the clouds are asked in the background, in threads that they share."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

from fakes.fake_cloud import FakeClock, FakeCloud
from spothop_master.clouds.base import Vm
from spothop_master.clouds.watcher import RECORDS_AT_ONCE, CloudWatcher
from spothop_master.core.evidence import EndCause

PATIENCE_S = 10.0
THREADS = 2 * RECORDS_AT_ONCE


class SlowRecords(FakeCloud):
    def __init__(self) -> None:
        super().__init__(clock=FakeClock())
        self.answers = threading.Event()
        self.asked: set[str] = set()

    def end_cause(self, vm_id: str) -> EndCause | None:
        self.asked.add(vm_id)
        self.answers.wait(PATIENCE_S)
        return EndCause.PREEMPTED


class Listed(FakeCloud):
    def __init__(self) -> None:
        super().__init__(clock=FakeClock())
        self.listed = threading.Event()

    def list(self, owner: str) -> Sequence[Vm]:
        self.listed.set()
        return super().list(owner)


def test_records_of_a_hundred_vms_keep_no_listing_waiting() -> None:
    """A zone was emptied, and its cloud takes long to say of what."""
    slow, other = SlowRecords(), Listed()
    watcher = CloudWatcher(
        {"slow": slow, "other": other},
        "owner",
        executor=ThreadPoolExecutor(THREADS),
        clock=lambda: datetime.now(timezone.utc),
        rng=random.Random(1),
    )
    vms = {f"i-{number}" for number in range(100)}
    for vm in vms:
        assert watcher.end_cause("slow", vm, token=vm) == (None, True)
    watcher.ask_listing("other")
    assert other.listed.wait(PATIENCE_S / 2)
    assert len(slow.asked) <= RECORDS_AT_ONCE
    told = threading.Event()
    found: set[str] = set()

    def listed(tokens: frozenset[str]) -> None:
        found.update(tokens)
        if vms <= found:
            told.set()

    watcher.subscribe(listed=listed, offered=lambda: None)
    slow.answers.set()
    assert told.wait(PATIENCE_S), "each of them in its turn"
    assert watcher.end_cause("slow", "i-99", token="i-99") == (EndCause.PREEMPTED, False)
    watcher.close()
