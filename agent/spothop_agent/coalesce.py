"""Progress reports merge until they are sent: one step report, and a bounded number of metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from spothop.wire import MAX_METRICS, MetricsReport, StepsReport

MOST = 128
"""Logged steps kept while the master is away; above, every second one goes."""


@dataclass
class Progress:
    """What the steps and metrics of one attempt since the last report come to."""

    attempt: int
    made: float
    """CLOCK_BOOTTIME of the newest part."""
    steps: StepsReport | None = None
    metrics: list[MetricsReport] = field(default_factory=list)

    def merge(self, report: StepsReport | MetricsReport, *, made: float) -> None:
        self.made = made
        if isinstance(report, StepsReport):
            self.steps = merge_steps(self.steps, report)
        else:
            self._merge_metrics(report)

    def _merge_metrics(self, report: MetricsReport) -> None:
        last = self.metrics[-1] if self.metrics else None
        if last is not None and last.step == report.step:
            values = {**last.values, **report.values}
            if len(values) <= MAX_METRICS:
                self.metrics[-1] = MetricsReport(step=report.step, values=values)
                return
        self.metrics.append(report)
        if len(self.metrics) > MOST:
            # From the end, so that the newest value always stays.
            self.metrics = self.metrics[::-2][::-1]

    def reports(self) -> list[StepsReport | MetricsReport]:
        return [*([self.steps] if self.steps else []), *self.metrics]


def merge_steps(old: StepsReport | None, new: StepsReport) -> StepsReport:
    """Newest step, sum of counts, means weighted by count."""
    if old is None:
        return new
    count = max(old.count + new.count, 1)
    return StepsReport(
        step=new.step,
        count=old.count + new.count,
        step_s=(old.step_s * old.count + new.step_s * new.count) / count,
        load_s=(old.load_s * old.count + new.load_s * new.count) / count,
    )
