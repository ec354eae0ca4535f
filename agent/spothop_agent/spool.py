"""Reports that the master has not confirmed yet, on disk, in order, numbered without gaps.

One journal: a line per report, written before `add` returns, and a first line that says what is
confirmed. A confirmation rewrites it (aside, then rename). Nothing is synced: a spool is of no use
without its VM (see `paths.write_atomic`).

The master takes each number once, and only the next one. Two rules keep the numbers of an agent
that is started again in step with it, whatever became of the journal:

- A damaged line keeps its number: what follows it is not lost, and a report in its place says so.
- The master may know numbers that the journal does not: of a line that a crash tore, or of reports
  that a full disk did not take. So such an agent asks first (`met`), and what it has made itself
  goes behind what the master knows.

Steps and metrics merge in memory and get their numbers when they are sent, or when a report that
must come after them is made; at most one batch of them waits for its confirmation. Nothing else is
ever dropped. Ages are counted by CLOCK_BOOTTIME, so that a step of the wall clock changes none.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from spothop.wire import AnyReport, Envelope, MessageReport, MetricsReport, StepsReport
from spothop_agent.coalesce import Progress
from spothop_agent.paths import write_atomic
from spothop_agent.reserve import MakeRoom, no_room, with_room

KEYS = 256
"""How many of the newest keys are remembered."""
BATCH = 200
"""Most reports in one sync."""

_log = logging.getLogger(__name__)


class Record(BaseModel):
    """One line of the journal."""

    model_config = ConfigDict(frozen=True)

    seq: int
    made: float
    attempt: int
    key: str | None = None
    report: AnyReport

    @property
    def coalesces(self) -> bool:
        return isinstance(self.report, (StepsReport, MetricsReport))


class Spool:
    """Not thread-safe: used from the event loop only."""

    def __init__(
        self, directory: Path, boottime: Callable[[], float], make_room: MakeRoom = no_room
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "journal"
        self._boottime = boottime
        self._make_room = make_room
        self._records: list[Record] = []
        self._keys: list[str] = []
        self._acked = 0
        self._progress: Progress | None = None
        self.met = not self._path.exists()
        """The numbers of before are known to be the master's."""
        self._load()
        self._loaded = self._last
        self._file: int | None = None
        self._rewrite()

    @property
    def unsent(self) -> int:
        """Reports that wait for a confirmation."""
        return len(self._records)

    def add(self, attempt: int, report: AnyReport, *, key: str | None = None) -> None:
        """Keep a report that must arrive. A `key` that was used before makes it a no-op, so that an
        agent that is started again may report the same fact again."""
        if key is not None and key in self._keys:
            return
        self._seal()
        self._append([self._record(1, attempt, self._boottime(), report, key)])

    def merge(self, attempt: int, report: StepsReport | MetricsReport) -> None:
        """Take progress in; it is sent with the next batch."""
        if self._progress is not None and self._progress.attempt != attempt:
            self._seal()
        made = self._boottime()
        if self._progress is None:
            self._progress = Progress(attempt, made)
        self._progress.merge(report, made=made)

    def batch(self) -> list[Envelope]:
        """The oldest unconfirmed reports, with their ages as of now."""
        if not self._records or not self._records[-1].coalesces:
            self._seal()
        now = self._boottime()
        return [
            Envelope(seq=r.seq, age_s=max(now - r.made, 0.0), attempt=r.attempt, report=r.report)
            for r in self._records[:BATCH]
        ]

    def ack(self, seq: int) -> None:
        """Everything up to `seq` is in the master's database."""
        if not self.met:
            self.met = True
            ahead = max(seq - self._loaded, 0)
            self._records = [
                r.model_copy(update={"seq": r.seq + ahead}) if r.seq > self._loaded else r
                for r in self._records
            ]
        if seq <= self._acked:
            return
        self._acked = seq
        self._records = [record for record in self._records if record.seq > seq]
        self._rewrite()

    def flush(self) -> None:
        """Write what the disk has not taken; harmless at any time."""
        if self._file is None:
            self._rewrite()

    def _record(
        self, ahead: int, attempt: int, made: float, report: AnyReport, key: str | None
    ) -> Record:
        seq = self._last + ahead
        return Record(seq=seq, made=made, attempt=attempt, report=report, key=key)

    @property
    def _last(self) -> int:
        return self._records[-1].seq if self._records else self._acked

    def _seal(self) -> None:
        progress, self._progress = self._progress, None
        if progress is None:
            return
        self._append(
            [
                self._record(ahead, progress.attempt, progress.made, report, None)
                for ahead, report in enumerate(progress.reports(), 1)
            ]
        )

    # --- the journal ----------------------------------------------------------------------------

    def _append(self, records: list[Record]) -> None:
        self._records += records
        self._keys = [*self._keys, *(r.key for r in records if r.key)][-KEYS:]
        if self._file is None:
            self._rewrite()
            return
        data = b"".join(_line(record) for record in records)
        try:
            written = os.write(self._file, data)
        except OSError as error:
            self._behind(error)
        else:
            if written == len(data):
                return
            self._behind(OSError(errno.ENOSPC, "short write"))
        if self._make_room():
            self._rewrite()

    def _behind(self, error: OSError) -> None:
        """A full disk: go on in memory, and write the whole journal at the next chance."""
        if self._file is not None:
            _log.warning("spool %s: %s; reports are kept in memory for now", self._path, error)
            os.close(self._file)
        self._file = None

    def _rewrite(self) -> None:
        head = json.dumps({"acked": self._acked, "keys": self._keys}).encode() + b"\n"
        try:
            data = head + b"".join(_line(r) for r in self._records)
            with_room(lambda: write_atomic(self._path, data), self._make_room)
            if self._file is not None:
                os.close(self._file)
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            self._behind(error)

    def _load(self) -> None:
        if not self._path.exists():
            return
        head, *lines = self._path.read_bytes().split(b"\n")
        found = [_parse(line) for line in lines[:-1]]  # behind the last newline: torn, or nothing
        try:
            header = json.loads(head)
            self._acked, self._keys = int(header["acked"]), [str(key) for key in header["keys"]]
        except (ValueError, TypeError, KeyError):
            _log.warning("spool %s: its first line is damaged", self._path)
            known = [(i, record.seq) for i, record in enumerate(found) if record is not None]
            self._acked = known[0][1] - known[0][0] - 1 if known else 0
        self._records = _mended(found, self._acked)
        self._keys += [r.key for r in self._records if r.key and r.key not in self._keys]


def _parse(line: bytes) -> Record | None:
    try:
        return Record.model_validate_json(line)
    except ValidationError:
        return None


def _mended(found: list[Record | None], acked: int) -> list[Record]:
    """The records, with one in the place of each that is damaged. Damaged ones at the end are cut
    off: nobody can tell how many they were."""
    records: list[Record] = []
    damaged = 0
    for record in found:
        expected = acked + len(records) + damaged + 1
        if record is None or record.seq != expected:
            damaged += 1
            continue
        text = "a report of the agent is lost: its journal is damaged"
        report = MessageReport(level="warning", text=text)
        for seq in range(expected - damaged, expected):
            records.append(record.model_copy(update={"seq": seq, "report": report, "key": None}))
        damaged = 0
        records.append(record)
    return records


def _line(record: Record) -> bytes:
    return record.model_dump_json().encode() + b"\n"
