"""`tidemark reconcile`: compares source and copy while both move."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from tidemark.conf.model import JobFile
from tidemark.conf.redaction import redact, redact_values
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.drawing import console, table_of
from tidemark.jobs.commands.signal import read_keys_again, resnapshot
from tidemark.jobs.monitoring.events import Notes
from tidemark.jobs.reconcile import EXAMPLES
from tidemark.jobs.reconcile.folding_tasks import FoldedBucket, FoldingBuckets, HashingFiles, Work
from tidemark.jobs.reconcile.range_looks import MAX_SURPLUS, TableLook
from tidemark.jobs.reconcile.reconcile import reconcile_tables
from tidemark.jobs.reconcile.suspects import Verdict
from tidemark.jobs.reconcile.table_comparison import MAX_DIFFERENCES, TableResult, Watcher
from tidemark.jobs.reconcile.tasks import Item, Result, RunsFolding, RunsTasks
from tidemark.jobs.recovered_state import required_state
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.jobs.tables.parking import require_none_parked
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import DifferencesError, JobFileError
from tidemark.state.remedies import in_shell
from tidemark.state.table import TableId

RUN_MEANWHILE = "Run the job (tidemark run JOB.yaml), and compare while it runs, or after it has caught up."


def reconcile(
    job: JobFile,
    tables: Sequence[TableName],
    *,
    as_json: bool,
    repair: bool,
    examples: int = EXAMPLES,
    patience_seconds: float | None = None,
) -> None:
    """Prints the differences. Raises DifferencesError if rows differ or could not be judged, TablesParkedError if all that
    was compared is equal but tables are parked."""
    if repair and job.mode != "full+incremental":
        raise JobFileError(f"Mode {job.mode} can't read rows again.", "Leave out --repair; start another job.")
    sessions = SparkSessions(job, Notes())
    try:
        with _watching() as progress:
            results = list(
                reconcile_tables(
                    job,
                    tables,
                    watch=lambda table: _Bar(progress, table),
                    examples=examples,
                    patience_seconds=patience_seconds,
                    repair=repair,
                    tasks=_runs_tasks(job, sessions),
                    folding=_runs_folding(job, sessions),
                )
            )
    finally:
        sessions.stop()
    checkpoint = Checkpoint.at(job.checkpoint)
    differing = [result for result in results if result.differences]
    if as_json:
        print(json.dumps(redact_values(_facts(job, results, repair=repair))))
    else:
        _draw(results)
    if repair and differing:
        # A script that reads JSON gets only that on stdout.
        with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
            for result in differing:
                if result.repair is not None:
                    read_keys_again(job, result.schema.table, result.repair)
            whole = [_name(result) for result in differing if result.repair is None]
            if whole:
                resnapshot(job, whole)
    _raise_unless_equal(results, repair=repair)
    if not tables:
        require_none_parked(job, required_state(checkpoint, job))


def _runs_tasks(job: JobFile, sessions: SparkSessions) -> RunsTasks | None:
    """None if Spark runs only one task at a time."""
    if _is_alone(job):
        return None

    def run(
        look: TableLook,
        function: Callable[[Iterable[Sequence[Item]]], Iterable[Result]],
        tasks: Sequence[Sequence[Item]],
    ) -> list[Result]:
        return sessions.run(tasks, function, look.job_uuid, _description(job, look))

    return run


def _runs_folding(job: JobFile, sessions: SparkSessions) -> RunsFolding | None:
    if _is_alone(job):
        return None

    def run(
        look: TableLook,
        hashing: HashingFiles,
        work: Sequence[Work],
        later: Callable[[], Sequence[Work]],
        buckets: int,
        folding: FoldingBuckets,
    ) -> list[FoldedBucket]:
        name = _description(job, look)
        return sessions.run_by_buckets(work, later, hashing, buckets, folding, look.job_uuid, name)

    return run


def _is_alone(job: JobFile) -> bool:
    """True if Spark runs only one task at a time."""
    return job.snapshot.parallelism == 1 or job.spark.master in {"local", "local[1]"}


def _description(job: JobFile, look: TableLook) -> str:
    return f"tidemark {job.job}: reconcile {look.schema.table}"


def _raise_unless_equal(results: Sequence[TableResult], *, repair: bool) -> None:
    differing = [result for result in results if result.differences]
    if differing:
        names = ", ".join(str(_name(result)) for result in differing[:5])
        more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
        first = _name(differing[0])
        raise DifferencesError(
            f"The copy differs from the source in {_tables(len(differing))}: {names}{more}.",
            "Their rows are read again by the running job, or at its next start; compare again after that."
            if repair
            else f"To read a table again: tidemark reconcile JOB.yaml --repair, or tidemark signal JOB.yaml resnapshot --table "
            f"{in_shell(first)}.",
        )
    crowded = next((result for result in results if result.unlisted), None)
    if crowded is not None:
        raise DifferencesError(
            f"{crowded.unlisted} rows of {_name(crowded)} were not judged: too many others differ. Some of them may have "
            "changed while the table was read, and the job has not come that far, or the table was truncated.",
            RUN_MEANWHILE,
        )
    if any(result.behind for result in results):
        count = sum(result.behind for result in results)
        raise DifferencesError(
            f"{count} rows differ, but the job has not come that far: they may have changed since.",
            RUN_MEANWHILE,
        )
    skipped = [result for result in results if result.skipped is not None]
    if skipped and skipped[0].error is not None:
        raise skipped[0].error
    if skipped:
        raise DifferencesError(
            f"{_name(skipped[0])} was not compared: {skipped[0].skipped}.",
            "Compare again later." if skipped[0].passes else "Name the tables to compare with --table.",
        )


def _tables(count: int) -> str:
    return "1 table" if count == 1 else f"{count} tables"


def _name(result: TableResult) -> TableName:
    return TableName(result.schema.table.database, result.schema.table.name)


def _facts(job: JobFile, results: Sequence[TableResult], *, repair: bool) -> dict[str, Any]:
    return {
        "job": job.job,
        "equal": not any(result.differences or result.behind or result.skipped for result in results),
        "tables": [
            {
                "table": str(result.schema.table),
                "rows": result.rows,
                "missing": result.counts[Verdict.MISSING],
                "surplus": result.counts[Verdict.SURPLUS],
                "different": result.counts[Verdict.DIFFERENT],
                "changing": result.moving,
                "behind": result.behind,
                "kept": result.kept,
                "complete": not result.cut and result.skipped is None,
                "skipped": result.skipped,
                "repair": _kind_of_repair(result) if repair and result.differences else None,
                "examples": [
                    {"kind": example.kind, "key": dict(zip(result.schema.key, example.key, strict=True))}
                    for example in result.examples
                ],
            }
            for result in results
        ],
    }


def _kind_of_repair(result: TableResult) -> str:
    return "resnapshot" if result.repair is None else "keys"


def _draw(results: Sequence[TableResult]) -> None:
    drawn = table_of(("table", "rows", "missing", "surplus", "different", ""))
    for result in results:
        counts = [f"{result.counts[verdict]:,}" for verdict in (Verdict.MISSING, Verdict.SURPLUS, Verdict.DIFFERENT)]
        drawn.add_row(redact(str(result.schema.table)), f"{result.rows:,}", *counts, redact(_note(result)))
    console().print(drawn)
    for result in results:
        for example in result.examples:
            key = ", ".join(f"{name}={value}" for name, value in zip(result.schema.key, example.key, strict=True))
            print(redact(f"{result.schema.table}: {example.kind}: {key}"))


def _note(result: TableResult) -> str:
    notes = []
    if result.skipped is not None:
        notes.append(f"not compared: {result.skipped}")
    if result.cut:
        notes.append(f"more than {MAX_DIFFERENCES:,} differences: not compared to its end")
    if result.unlisted:
        notes.append(f"{result.unlisted:,} not judged: too many others differ")
    if result.behind > result.unlisted:
        notes.append(f"{result.behind - result.unlisted:,} not judged: the job has not come that far")
    if result.moving:
        notes.append(f"{result.moving:,} not judged: they changed at every look")
    if not notes and not result.differences:
        notes.append("equal")
    if result.kept:
        least = "at least " if result.kept >= MAX_SURPLUS else ""
        notes.append(
            f"{least}{result.kept:,} only in the copy, not counted as differences "
            "(sink.on_schema_change ignores TRUNCATE)"
        )
    return "; ".join(notes)


@contextlib.contextmanager
def _watching() -> Iterator[Progress]:
    """A progress bar on stderr, if that is a terminal."""
    drawn = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    with Progress(*columns, console=drawn, transient=True, disable=not drawn.is_terminal) as progress:
        yield progress


class _Bar(Watcher):
    def __init__(self, progress: Progress, table: TableId) -> None:
        self._progress = progress
        self._task: TaskID = progress.add_task(redact(str(table)), total=None, text="")

    def ranges(self, done: int, rows: int) -> None:
        self._progress.update(self._task, text=f"{done:,} ranges, {rows:,} rows")

    def looking(self, suspects: int, look: int) -> None:
        self._progress.update(self._task, text=f"{suspects:,} suspects, look {look}")
