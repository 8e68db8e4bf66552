"""The report as one HTML page without external resources: it includes the library of its charts.

Every text goes through `redact` and is escaped: as HTML by Jinja, as JSON in a script element by `_script_json`.
"""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import vl_convert
from markupsafe import Markup

from tidemark.conf.model import JobFile
from tidemark.jobs.monitoring.run_record import short_text_of, state_of, text_of
from tidemark.jobs.monitoring.times import time_text
from tidemark.jobs.report.charts import splits_chart, timeline_charts
from tidemark.jobs.report.facts import ReportFacts, TableFacts
from tidemark.jobs.report.records import Record, epoch_records, event_records, split_records
from tidemark.jobs.report.templates import redacted, rendered
from tidemark.jobs.sinks import sink_needs
from tidemark.state.checkpoint.history import RunRecord
from tidemark.state.run_state import RunState

MAX_TABLES = 200
MAX_EVENTS = 60

PHASES = {
    "starting": "starting",
    "snapshot": "copying",
    "catch_up": "catching up",
    "stream": "following the log",
    "done": "complete",
}


def render(job: JobFile, facts: ReportFacts, now_us: int) -> str:
    """The page. `now_us`: microseconds since 1970."""
    records, _ = split_records(facts)
    events = event_records(facts)
    epochs = {"recent": epoch_records(facts.epochs.recent)} if facts.epochs.recent else {}
    if len(facts.epochs.whole) < facts.epochs.last_epoch:
        epochs["whole"] = epoch_records(facts.epochs.whole)
    timelines = {name: timeline_charts(one, events) for name, one in epochs.items()}
    phase = "starting" if facts.progress is None else facts.progress.phase
    specs = {
        "splits": splits_chart(records) if records else None,
        "timelines": timelines,
        "data": {"splits": records, "events": events, **epochs},
    }
    names = {"recent": f"newest {len(facts.epochs.recent)}", "whole": "since the start"}
    return rendered(
        "page.html.jinja",
        title=job.job,
        phase=phase,
        phase_text=_phase_text(phase, facts.run, now_us),
        source=f"{job.source.url}",
        sink=sink_needs(job.sink).display_name,
        about=_about(job, facts, now_us),
        notes=_notes(facts, now_us),
        tiles=_tiles(facts),
        tables_lead=_tables_lead(facts),
        tables=_table_rows(facts.tables),
        splits_lead=_splits_lead(facts, records) if records else "",
        timeline_names=[(name, names[name]) for name in timelines],
        timeline_lead=_timeline_lead(facts),
        events=_event_rows(events),
        footer="Drawn from the job's checkpoint. Times are UTC.",
        specs_json=_script_json(specs),
        library=_library(),
    )


def _phase_text(phase: str, run: RunRecord | None, now_us: int) -> str:
    """The phase, if a process runs the job as far as is known; else how the last run ended."""
    state = None if run is None else state_of(run, now_us)
    if run is None or state is None or (run.exit_code == 0 and phase == "done"):
        return PHASES[phase]
    if not state.is_over:
        is_telling = state in (
            RunState.STARTING,
            RunState.PAUSED,
            RunState.WAITING,
            RunState.STOPPING,
        )  # the others are phases
        return f"{PHASES[phase]} · {state.value}" if is_telling else PHASES[phase]
    return short_text_of(run, now_us)


def _notes(facts: ReportFacts, now_us: int) -> tuple[str, ...]:
    """Returns the notes on the job, with the cause of a run that failed."""
    run = facts.run
    failed = run is not None and run.exit_code not in (None, 0)
    return (*facts.notes, text_of(run, now_us)) if run is not None and failed else facts.notes


@cache
def _library() -> Markup:
    return Markup(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed").replace("</script", "<\\/script"))


def _script_json(value: Any) -> Markup:
    return Markup(json.dumps(_redacted_within(value)).replace("<", "\\u003c"))


def _redacted_within(value: Any) -> Any:
    match value:
        case dict():
            return {name: _redacted_within(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_redacted_within(inner) for inner in value]
        case _:
            return redacted(value)


def _about(job: JobFile, facts: ReportFacts, now_us: int) -> str:
    mode = job.mode if facts.progress is None else facts.progress.mode
    told = [f"mode {mode}", f"trigger {job.trigger}", f"first started {time_text(facts.state.created_at_us)}"]
    if facts.watermarks is not None:
        told.append(f"watermarks by {facts.watermarks}")
    return " · ".join([*told, f"as of {time_text(now_us)}"])


def _tiles(facts: ReportFacts) -> list[dict[str, str]]:
    progress = facts.progress
    if progress is None:
        return [{"id": "epochs", "label": "Epochs", "value": "0", "more": "none is planned yet"}]
    tables = progress.tables
    done, total = sum(t.splits_done for t in tables), [t.splits_total for t in tables]
    known = None if None in total else sum(count or 0 for count in total)
    changes = sum(t.inserts + t.updates + t.deletes for t in tables)
    lag = "–" if progress.lag_seconds is None else duration(progress.lag_seconds)
    behind = "" if progress.lag_bytes is None else f"{size(progress.lag_bytes)} behind"
    newest = "since the newest change read"
    return [
        _tile(
            "rows",
            "Rows copied",
            f"{sum(t.rows for t in tables):,}",
            f"{len(tables):,} {'table' if len(tables) == 1 else 'tables'}",
        ),
        _tile("splits-done", "Splits", f"{done:,}", f"of {'an unknown number' if known is None else f'{known:,}'}"),
        _tile("changes", "Changes followed", f"{changes:,}", f"{progress.transactions:,} transactions"),
        _tile("filtered", "Gap-filtered", f"{progress.filtered_changes:,}", "changes already in splits"),
        _tile("lag", "Age of the copy", lag, behind or newest),
        _tile("epochs", "Epochs", f"{progress.committed_epoch:,}", f"{progress.reconnects:,} reconnects"),
    ]


def _tile(name: str, label: str, value: str, more: str) -> dict[str, str]:
    return {"id": name, "label": label, "value": value, "more": more}


def _shown(tables: Sequence[TableFacts]) -> list[TableFacts]:
    """Unfinished tables first, then those with the most changes and rows."""

    def weight(table: TableFacts) -> tuple[bool, int, str]:
        progress = table.progress
        amount = progress.inserts + progress.updates + progress.deletes + progress.rows
        return progress.complete, -amount, progress.table

    return sorted(tables, key=weight)[:MAX_TABLES]


def _tables_lead(facts: ReportFacts) -> str:
    complete = sum(table.progress.complete for table in facts.tables)
    lead = f"{complete:,} of {len(facts.tables):,} are copied. Inserts, updates and deletes came from the log."
    hidden = len(facts.tables) - MAX_TABLES
    return lead if hidden <= 0 else f"{lead} {hidden:,} more tables are counted above but not listed."


def _table_rows(tables: Sequence[TableFacts]) -> list[dict[str, Any]]:
    rows = []
    for table in _shown(tables):
        progress = table.progress
        total = "?" if progress.splits_total is None else f"{progress.splits_total:,}"
        rows.append(
            {
                "name": progress.table,
                "key": ", ".join(table.key) or "none",
                "split_by": ", ".join(table.split_by) or "–",
                "complete": progress.complete,
                "percent": 100 if progress.complete else min(99, round(100 * progress.share)),
                "splits": f"{progress.splits_done:,} / {total}",
                "rows": f"{progress.rows:,}",
                "inserts": f"{progress.inserts:,}",
                "updates": f"{progress.updates:,}",
                "deletes": f"{progress.deletes:,}",
            }
        )
    return rows


def _splits_lead(facts: ReportFacts, records: Sequence[Record]) -> str:
    told = (
        "Each column is a split, a range of the key. Its rows are exact at its high watermark, the bold line: they contain "
        "everything that was logged before the SELECT, and changes logged during it were replayed over them. Later changes of "
        "these keys, the gap, come from the log: its reader goes from bottom to top, skips changes below the line and emits "
        "those above it."
    )
    if all(record["top"] == 0 for record in records):
        told += " The log did not grow while rows were read: all watermarks equal the job's start."
    drawn = max(table.splits_each for table in facts.splits.tables)
    if drawn > 1:
        told += f" To keep this page small, up to {drawn:,} neighbouring splits are drawn as one column."
    planned = sum(table.progress.splits_done for table in facts.tables)
    known = sum(record["splits"] for record in records)
    if known < planned:
        told += f" The history has {known:,} of {planned:,} splits."
    return told


def _timeline_lead(facts: ReportFacts) -> str:
    told = "The rows and changes that each epoch read, and its lag behind the source. Point at an epoch to see its numbers."
    if facts.epochs.epochs_each > 1:
        told += f" In the view since the start, up to {facts.epochs.epochs_each:,} epochs are drawn as one."
    return told


def _event_rows(events: Sequence[Record]) -> list[dict[str, str]]:
    newest = list(reversed(events))[:MAX_EVENTS]
    return [{**event, "at": event["at_text"], "name": event["event"]} for event in newest]


def duration(seconds: float) -> str:
    """The text with the two largest units: `4.2 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, below, size_, part in (("min", "s", 60, 1), ("h", "min", 3600, 60)):
        if whole < size_ * (60 if unit == "min" else 24):
            return f"{whole // size_} {unit} {whole % size_ // part} {below}"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def size(count: int) -> str:
    """`12 B`, `3.4 kB`, `5.6 MB`, …, in powers of 1000."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
        amount /= 1000
    return f"{amount:,.1f} TB"
