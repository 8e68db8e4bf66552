"""Metrics for Prometheus, served by the driver while a job runs: names, labels and the HTTP endpoint.

Counters come from the checkpoint and count since the job's first start: a restart does not reset them.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidemark.conf.model import JobFile
from tidemark.jobs.monitoring.events import Events
from tidemark.jobs.monitoring.progress import JobProgress, TableProgress
from tidemark.state.errors import JobFileError
from tidemark.state.phase import Phase
from tidemark.state.run_state import RunState, after_event, after_progress

if TYPE_CHECKING:
    from prometheus_client.core import Metric

MAX_TABLES = 500
"""The number of tables with series of their own; the others are added up."""
OTHER_TABLES = "(others)"


class JobMetrics:
    """Returns the metrics of a scrape. Implements prometheus_client's Collector; each scrape runs in its own thread."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._shown: tuple[JobProgress, float] | None = None
        self._state = RunState.STARTING

    def show(self, progress: JobProgress) -> None:
        self._shown = (progress, time.time())
        self._state = after_progress(self._state, Phase(progress.phase), paused=progress.paused)

    def note(self, event: str) -> None:
        self._state = after_event(self._state, event)
        if self._state is RunState.WAITING and self._shown is not None:
            progress, shown_at = self._shown  # nobody looks at the log now, and the copies grow older
            self._shown = replace(progress, caught_up=False, lag_bytes=None), shown_at

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.core import GaugeMetricFamily

        states = GaugeMetricFamily("tidemark_run_state", "1 for the state that the run is in.", labels=["job", "state"])
        for state in RunState:
            if state is not RunState.DEAD:  # a dead driver serves no metrics
                states.add_metric([self._job, state.value], float(state is self._state))
        yield states
        if self._shown is not None:
            progress, shown_at = self._shown
            yield from self._of_job(progress, shown_at)
            yield from self._of_tables(_bounded(progress.tables))

    def _of_job(self, progress: JobProgress, shown_at: float) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

        def counter(name: str, text: str, value: float) -> "Metric":
            family = CounterMetricFamily(f"tidemark_{name}", text, labels=["job"])
            family.add_metric([self._job], value)
            return family

        def gauge(name: str, text: str, value: float) -> "Metric":
            family = GaugeMetricFamily(f"tidemark_{name}", text, labels=["job"])
            family.add_metric([self._job], value)
            return family

        phases = GaugeMetricFamily("tidemark_phase", "1 for the phase that the job is in.", labels=["job", "phase"])
        for phase in Phase:
            phases.add_metric([self._job, phase.value], float(progress.phase == phase.value))
        yield phases
        yield counter("epochs", "Epochs committed since the job's first start.", progress.committed_epoch)
        yield counter("transactions", "Transactions read from the log.", progress.transactions)
        yield counter(
            "filtered_changes",
            "Changes skipped because splits contain them, or will contain them when they are read.",
            progress.filtered_changes,
        )
        yield counter("log_reconnects", "Log connections that broke and were opened again.", progress.reconnects)
        yield gauge("caught_up", "1 while the job has read the whole log.", float(progress.caught_up))
        yield gauge("paused", "1 while a signal has paused the job.", float(progress.paused))
        yield gauge(
            "snapshot_stopped", "1 while a signal has stopped the reading of splits.", float(progress.snapshot_stopped)
        )
        yield gauge("progress_timestamp_seconds", "When the job last made progress, or became idle.", shown_at)
        if progress.lag_seconds is not None or progress.caught_up:
            lag = 0.0 if progress.caught_up else (progress.lag_seconds or 0.0) + time.time() - shown_at
            yield gauge("lag_seconds", "Age of the newest transaction read; 0 while caught up.", lag)
        if progress.lag_bytes is not None:
            yield gauge("lag_bytes", "Log that is not read yet, as of the newest plan.", progress.lag_bytes)
        epochs = SummaryMetricFamily(
            "tidemark_epoch_seconds", "Time in which this run's epochs were read and written.", labels=["job"]
        )
        epochs.add_metric([self._job], progress.epochs, progress.epoch_seconds)
        yield epochs

    def _of_tables(self, tables: Sequence[TableProgress]) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ["job", "table"]
        rows = CounterMetricFamily("tidemark_table_rows", "Rows copied by the snapshot.", labels=labels)
        done = GaugeMetricFamily("tidemark_table_splits_done", "Splits copied.", labels=labels)
        total = GaugeMetricFamily("tidemark_table_splits", "Splits; an estimate until all are planned.", labels=labels)
        changes = CounterMetricFamily("tidemark_table_changes", "Changes from the log.", labels=[*labels, "kind"])
        for table in tables:
            where = [self._job, table.table]
            rows.add_metric(where, table.rows)
            done.add_metric(where, table.splits_done)
            if table.splits_total is not None:
                total.add_metric(where, table.splits_total)
            for kind, count in (("insert", table.inserts), ("update", table.updates), ("delete", table.deletes)):
                changes.add_metric([*where, kind], count)
        yield from (rows, done, total, changes)


def _bounded(tables: Sequence[TableProgress]) -> Sequence[TableProgress]:
    if len(tables) <= MAX_TABLES:
        return tables
    others = tables[MAX_TABLES:]
    return (
        *tables[:MAX_TABLES],
        TableProgress(
            table=OTHER_TABLES,
            splits_done=sum(table.splits_done for table in others),
            splits_total=sum(table.splits_total or 0 for table in others),
            rows=sum(table.rows for table in others),
            estimated_rows=None,
            complete=all(table.complete for table in others),
            inserts=sum(table.inserts for table in others),
            updates=sum(table.updates for table in others),
            deletes=sum(table.deletes for table in others),
        ),
    )


class MeasuredEvents:
    """Passes events on and also serves their progress. Implements `events.Events`."""

    def __init__(self, events: Events, metrics: JobMetrics) -> None:
        self._events = events
        self._metrics = metrics

    def note(self, event: str, **facts: Any) -> None:
        self._events.note(event, **facts)
        self._metrics.note(event)

    def progress(self, progress: JobProgress) -> None:
        self._metrics.show(progress)
        self._events.progress(progress)


@contextmanager
def serve_metrics(job: JobFile, events: Events) -> Iterator[Events]:
    """Serves metrics inside the `with` block if the job file has a section `metrics`. Raises JobFileError if the port is not
    available."""
    if job.metrics is None:
        yield events
        return
    from prometheus_client import CollectorRegistry, start_http_server

    metrics, registry = JobMetrics(job.job), CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    host, port = job.metrics.host, job.metrics.port
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise JobFileError(
            f"metrics: {host} port {port} can't be listened on: {error.strerror or error}.",
            "Set another metrics.port (0: any free one) or metrics.host. Perhaps another job uses this port.",
        ) from error
    try:
        events.note("metrics", url=f"http://{host}:{server.server_port}/metrics")
        yield MeasuredEvents(events, metrics)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
