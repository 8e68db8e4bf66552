"""The commands that look and change nothing: validate --connect, plan, status, checkpoints."""

import json
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from rich.console import Console
from rich.table import Table

from conf.model import JobFile
from conf.redaction import redact
from enumerator.pages import pages_per_split
from enumerator.splitting import MAX_SPLIT_BYTES
from jobs.checkpoint import Checkpoint
from jobs.opening import make_sink
from jobs.progress import read_progress
from jobs.projections import lines_of, projections_of
from jobs.sources import FoundSource, find_source
from readers.findings import raise_refusals
from readers.statistics import TableStatistics
from sinks.sink import JobIdentity
from state.errors import CheckpointError, SinkError
from state.plan import LogWork
from state.projection import outputs_of
from state.table import TableId, TableSchema

_WIDTH = 160


def validate(job: JobFile) -> None:
    """Prints every finding; raises the first refusal's error class, with all refusals in its text."""
    with find_source(job) as found:
        _print_findings(found)
        problems = _print_sink_findings(job, found)
    raise_refusals(found.findings)
    if problems:
        raise SinkError(" ".join(text for text, _ in problems), " ".join(remedy for _, remedy in problems))


def plan(job: JobFile) -> None:
    """Tables, keys, watermark method, estimated splits, and what the sink would create."""
    with find_source(job) as found:
        console = _console()
        console.print(f"source    {job.source.url} · {found.name} · watermarks by {found.watermarks()}")
        console.print(f"mode      {job.mode}, trigger {job.trigger} · {job.snapshot.parallelism} splits at a time")
        drawn = Table(box=None, pad_edge=False)
        for heading in ("table", "key", "split by", "columns", "rows (estimate)", "splits (estimate)"):
            drawn.add_column(heading, overflow="fold")
        for schema, output in zip(found.schemas, _outputs(job, found), strict=True):
            statistics = found.statistics(schema.table)
            rows = statistics.row_estimate
            split_by, splits = _split_by(found, schema.table, statistics, job.snapshot.split_rows)
            drawn.add_row(
                str(schema.table),
                ", ".join(schema.key) or "none",
                split_by,
                str(len(output.captured)),
                "?" if rows is None else f"{rows:,}",
                "?" if splits is None else f"{splits:,}",
            )
        console.print(drawn)
        for line in lines_of(job):
            console.print(f"columns   {line}")
        _print_findings(found)
        _print_sink_findings(job, found)


def status(job: JobFile, *, as_json: bool) -> None:
    """What the checkpoint says. Raises CheckpointError where the job was never started."""
    checkpoint = Checkpoint.at(job.checkpoint)
    state = checkpoint.job_state()
    if state is None:
        raise CheckpointError(f"Job {job.job} has no checkpoint in {job.checkpoint}.", "Start it: tidemark run.")
    epochs = checkpoint.plan_epochs()
    committed = checkpoint.committed_epoch()
    progress = read_progress(checkpoint, job, state, committed)
    mode = state.mode if progress is None else progress.mode
    if as_json:
        facts: dict[str, Any] = {"job": job.job, "job_uuid": state.job_uuid, "mode": mode}
        facts |= {"start": str(state.start), "planned_epoch": max(epochs, default=0), "phase": "starting"}
        print(json.dumps(facts | ({} if progress is None else asdict(progress)), indent=2))
        return
    console = _console()
    console.print(f"job       {job.job} ({mode}), started {_moment(state.created_at_us)}")
    if progress is None:
        console.print("phase     starting: no epoch is planned yet")
        return
    lag = "?" if progress.lag_seconds is None else f"{progress.lag_seconds:,.1f} s since the newest change taken"
    console.print(f"phase     {progress.phase}, epoch {progress.committed_epoch} committed, {max(epochs)} planned")
    behind = "" if progress.lag_bytes is None else f" · {progress.lag_bytes:,} bytes of log behind"
    console.print(f"position  {progress.position} · {lag}{behind}")
    drawn = Table(box=None, pad_edge=False)
    drawn.add_column("table")
    for heading in ("splits", "rows", "inserts", "updates", "deletes"):
        drawn.add_column(heading, justify="right")
    drawn.add_column("")
    for table in progress.tables:
        total = "?" if table.splits_total is None else f"{table.splits_total:,}"
        counts = (table.rows, table.inserts, table.updates, table.deletes)
        done = "done" if table.complete else ""
        drawn.add_row(table.table, f"{table.splits_done:,}/{total}", *(f"{count:,}" for count in counts), done)
    console.print(drawn)


def checkpoints(job: JobFile) -> None:
    """One line a consistent cut: epoch, phase, what it read, the log position after it."""
    checkpoint = Checkpoint.at(job.checkpoint)
    if checkpoint.job_state() is None:
        raise CheckpointError(f"Job {job.job} has no checkpoint in {job.checkpoint}.", "Start it: tidemark run.")
    committed = checkpoint.committed_epoch()
    drawn = Table(box=None, pad_edge=False)
    for heading in ("epoch", "phase", "read", "log position", ""):
        drawn.add_column(heading)
    for epoch in checkpoint.plan_epochs():
        record = checkpoint.plan(epoch)
        work = record.plan.work
        if isinstance(work, LogWork):
            read = f"log from {work.range.start}"
            position = str(checkpoint.log_report(epoch).end) if epoch <= committed else ""
        else:
            read = f"{sum(map(len, work.tasks))} splits"
            position = str(record.state.position)
        drawn.add_row(
            str(epoch), record.plan.phase.value, read, position, "" if epoch <= committed else "not committed"
        )
    _console().print(drawn)


def _estimated_splits(statistics: TableStatistics, split_rows: int) -> int | None:
    if statistics.row_estimate is None:
        return None
    rows = max(1, min(split_rows, MAX_SPLIT_BYTES // max(1, statistics.average_row_bytes or 1)))
    return statistics.row_estimate // rows + 1


def _split_by(
    found: FoundSource, table: TableId, statistics: TableStatistics, split_rows: int
) -> tuple[str, int | None]:
    """What the table is cut by, and into how many splits."""
    if columns := found.split_columns[table]:
        return ", ".join(columns), _estimated_splits(statistics, split_rows)
    pages = found.pages(table)
    splits = 1 if pages is None else -(-pages.page_count // pages_per_split(pages, split_rows))
    return ("pages", splits) if splits > 1 else ("whole table", 1)


def _print_findings(found: FoundSource) -> None:
    for finding in found.findings:
        where = ".".join(str(part) for part in (finding.table, finding.column) if part is not None)
        print(redact(f"{finding.severity}: {where + ': ' if where else ''}{finding.message} Remedy: {finding.remedy}"))


def _print_sink_findings(job: JobFile, found: FoundSource) -> list[tuple[str, str]]:
    problems = []
    for finding in make_sink(job).check(_outputs(job, found), _identity(job)):
        where = "" if finding.table is None else f"{finding.table}: "
        if finding.remedy is None:
            print(redact(f"sink: {where}{finding.text}"))
        else:
            problems.append((f"{where}{finding.text}", finding.remedy))
            print(redact(f"refuse: sink: {where}{finding.text} Remedy: {finding.remedy}"))
    return problems


def _outputs(job: JobFile, found: FoundSource) -> tuple[TableSchema, ...]:
    """The tables as the sink gets them; those that are refused as they are."""
    refused = {finding.table for finding in found.findings if finding.severity == "refuse"}
    projections = projections_of(job, [schema for schema in found.schemas if schema.table not in refused])
    return outputs_of(found.schemas, projections)


def _identity(job: JobFile) -> JobIdentity | None:
    state = Checkpoint.at(job.checkpoint).job_state()
    return None if state is None else JobIdentity(state.job_uuid, state.job_name)


def _console() -> Console:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=_WIDTH)


def _moment(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / 1e6, timezone.utc).isoformat(timespec="seconds")
