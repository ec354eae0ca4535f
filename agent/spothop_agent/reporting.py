"""How the end of an attempt is reported to the master and written into the job's log.

The log goes before the report: the master closes the attempt when it reads the report. Outputs go
before both, because the report says whether they are lost.
"""

from __future__ import annotations

import logging
import signal

from spothop.wire import ExitedReport, FencedReport, PreparationFailedReport
from spothop_agent.context import Context
from spothop_agent.logs import LogShipper
from spothop_agent.prepare import PreparationFailed
from spothop_agent.process import Exit, TrainingProcess
from spothop_agent.retry import in_words

OUTPUTS_S = 300.0
"""A store that refuses the outputs, or a disk that cannot be read, has the last word after that."""
FLUSH_S = 20.0
"""The log's last part may take this long; what is left goes on after the exit is reported."""

_log = logging.getLogger(__name__)


class Reporting:
    """One per attempt; each method reports one end."""

    def __init__(self, context: Context, process: TrainingProcess, shipper: LogShipper) -> None:
        self._context = context
        self._process = process
        self._shipper = shipper

    async def failed(self, failed: PreparationFailed) -> None:
        """The preparation, or the start, came to nothing."""
        self._context.note(f"{failed.phase} failed: {failed}")
        await self._shipper.flush(FLUSH_S)
        report = PreparationFailedReport(phase=failed.phase, message=str(failed), user=failed.user)
        self._context.report(report, key="failed")

    def fenced(self, by: int) -> None:
        """A newer attempt was in the chain before this one could begin."""
        self._context.state_file.set(fenced_by=by)
        self._context.report(FencedReport(by=by), key="fenced")

    async def never_started(self) -> None:
        """A stop came before the training process started."""
        await self._shipper.flush(FLUSH_S)
        reason = self._context.state.stop or ""
        message = f"ended before the training process started: {reason}"
        self._context.report(ExitedReport(stopped=True, message=message), key="exited")

    def succeeds(self, ended: Exit) -> bool:
        """No other attempt will be made: as the master decides it (I8)."""
        state = self._context.state
        if ended.code != 0 or state.given_up or state.fenced_by is not None:
            return False
        taken = state.stop is not None or state.notice is not None
        return self._context.paths.done.exists() or not taken

    async def exited(self, ended: Exit, *, step: int | None) -> None:
        """The process is over and its backups are worked off: outputs, log, exit."""
        lost = await self._upload_outputs()
        await self._shipper.flush(FLUSH_S)
        self._context.report(self._exited(ended, step, lost), key="exited")

    async def _upload_outputs(self) -> str:
        """Why they are lost; empty when they are not."""
        if self._context.state.fenced_by is not None:
            return ""  # the newer attempt has its own
        outputs, store = self._context.paths.outputs, self._context.checkpoint_store
        began, tries, retrier = self._context.now(), 0, self._context.retrier
        while True:
            skipped: list[str] = []
            try:
                count = await retrier.call(store.upload_outputs, outputs, skipped.append)
                break
            except Exception as error:  # whatever it is, an agent started again would meet it too
                text = in_words(error)
                _log.warning("outputs: %s", text, exc_info=error)
                if self._context.now() - began >= OUTPUTS_S:
                    self._context.tell_user(f"outputs could not be uploaded: {text}", level="error")
                    return text
            tries += 1
            if tries == 1:
                self._context.tell_user(
                    f"outputs are not uploaded yet: {text}; trying on for {OUTPUTS_S / 60:.0f} min",
                    level="warning",
                )
            await retrier.pause_slowly(tries)
        for text in dict.fromkeys(skipped):
            self._context.tell_user(f"outputs: left out: {text}", level="warning")
        if count:
            self._context.note(f"outputs: {count} files uploaded")
        return ""

    def _exited(self, ended: Exit, step: int | None, outputs_lost: str) -> ExitedReport:
        state = self._context.state
        stopped = state.stop is not None
        before, after = state.oom_kills, self._process.oom_kills()
        grown = before is not None and after is not None and after > before
        return ExitedReport(
            code=ended.code,
            signal=ended.signal,
            done=self._context.paths.done.exists(),
            stopped=stopped,
            hang=state.hung,
            out_of_memory=ended.killed and not stopped and grown,
            step=step,
            uncommitted=state.given_up,
            outputs_lost=outputs_lost,
            message=state.stop or ended.message,
        )


def how_it_ended(ended: Exit) -> str:
    """For people."""
    if ended.signal is not None:
        return f"signal {signal.Signals(ended.signal).name}"
    return f"exit code {ended.code}" if ended.code is not None else ended.message
