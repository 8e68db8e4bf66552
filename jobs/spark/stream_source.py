"""`spark.readStream.format("tidemark")` for one table: options instead of a job file, typed rows instead of change batches.

Options: `url`, `table` and `checkpoint`, and any key of the job file's sections with dots (`snapshot.split_rows`,
`source.tls.ca`). Spark shows options in its UI: write the password as `${NAME}` or `${file:/run/secrets/x}`, which are
read in the process of the job's planner.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tidemark.conf.load import load_job_options
from tidemark.conf.model import JobFile
from tidemark.jobs.epoch.read_parts import LogTask, SplitsTask, read_part, tasks_of
from tidemark.jobs.epoch.run_context import RunContext
from tidemark.jobs.monitoring.events import JsonEvents
from tidemark.jobs.sources import find_source
from tidemark.jobs.startup import HeldJob, hold_job
from tidemark.readers.findings import raise_refusals
from tidemark.readers.projection.settings import projections_of
from tidemark.readers.snapshot.publish import is_published
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import CheckpointError, JobFileError
from tidemark.state.projection import outputs_of
from tidemark.state.table import TableSchema

_REQUIRED = ("url", "table", "checkpoint")
_RENAMED = {"url": "source.url"}
_NOT_OURS = frozenset({"sink", "spark", "trigger", "path", "metrics"})
_FIXED = frozenset({"source.url", "source.tables", "source.exclude_tables"})


def job_of_options(options: Mapping[str, str]) -> JobFile:
    """Raises JobFileError for missing, unknown or wrong options."""
    missing = [name for name in _REQUIRED if not options.get(name)]
    if missing:
        raise JobFileError(
            f"Option {missing[0]} of format tidemark is missing.",
            "Set url, table (database.table) and checkpoint. Any key of the job file may be added.",
        )
    useless = [key for key in options if key in _FIXED or key.partition(".")[0] in _NOT_OURS]
    if useless:
        raise JobFileError(
            f"Option {useless[0]} is not allowed with format tidemark.",
            "Name the source by url and table. Set trigger, sink and session in the query.",
        )
    name = re.sub(r"[^a-z0-9-]+", "-", options["table"].lower()).strip("-")[:50] or "table"
    base = json.dumps({"job": name, "sink": {"type": "console"}})
    settings = [f"{_RENAMED.get(key, key)}={value}" for key, value in options.items() if key != "table"]
    settings.append(f"source.tables={json.dumps([options['table']])}")
    return load_job_options(base, settings, Path.cwd())


def table_schema(options: Mapping[str, str]) -> TableSchema:
    """The schema of the one table: as the job has stored it or, before its first start, as it is now."""
    job = job_of_options(options)
    state = Checkpoint.at(job.checkpoint).job_state()
    if state is not None:
        return _the_table(job, state.outputs)
    with find_source(job) as found:
        raise_refusals(found.findings)
        return _the_table(job, outputs_of(found.schemas, projections_of(job, found.schemas)))


def _the_table(job: JobFile, schemas: tuple[TableSchema, ...]) -> TableSchema:
    (wanted,) = job.source.tables
    if len(schemas) != 1:
        raise JobFileError(f"Option table matches {len(schemas)} tables.", "Name one: database.table.")
    (schema,) = schemas
    if not wanted.matches(schema.table.database, schema.table.name):
        raise CheckpointError(
            f"The checkpoint {job.checkpoint} belongs to a stream of {schema.table}, not of {wanted}.",
            "Give each stream a checkpoint folder of its own.",
        )
    return schema


class DirectPlanner:
    """The planner of a job whose query belongs to its user. That query may commit an epoch without reading all of it."""

    def __init__(self, context: RunContext, held: HeldJob) -> None:
        self._context = context
        self._held = held
        self._planner = context.planner()
        self._complete_epoch = 0

    def end_at_log_end(self) -> None:
        self._planner.end_at_log_end()

    def next_epoch(self, committed: int) -> int:
        """Plans the next epoch as Planner.next_epoch does. Raises JobHeldError once the lease is lost."""
        self._held.require_lease()
        if committed > self._complete_epoch:
            _read_what_was_left(self._context, committed)
            self._complete_epoch = committed
        epoch = self._planner.next_epoch(committed)
        while epoch == committed and self._planner.waits(
            committed
        ):  # a query that ends here would take the copy for complete
            time.sleep(0.1)
            self._held.require_lease()
            epoch = self._planner.next_epoch(committed)
        if epoch > committed:
            for text in self._context.checkpoint.plan(epoch).warnings:
                JsonEvents().note("warning", text=text)
        return epoch


def _read_what_was_left(context: RunContext, epoch: int) -> None:
    """Reads the parts of the newest epoch that its query committed without reading them to the end, as `show()` and
    `isEmpty()` do. Their rows are dropped, but the next plan needs their reports."""
    checkpoint = context.checkpoint
    if max(checkpoint.plan_epochs(), default=0) != epoch:
        return  # the next plan exists, so all were read
    for task in tasks_of(context, epoch):
        match task.work:
            case SplitsTask(splits):
                was_read = all(is_published(checkpoint.store, epoch, split) for split in splits)
            case LogTask():
                was_read = checkpoint.has_log_report(epoch)
        if not was_read:
            for _ in read_part(task):
                pass


@contextmanager
def open_options(options: Mapping[str, str]) -> Iterator[tuple[RunContext, DirectPlanner]]:
    """Holds the job inside the `with` block. Raises what `startup.hold_job` raises."""
    job = job_of_options(options)
    for text in job.clear_text_warnings():
        JsonEvents().note("warning", text=text)
    with hold_job(job, JsonEvents()) as held:
        _the_table(job, held.state.schemas)
        context = RunContext(job, held.server, held.state)
        yield context, DirectPlanner(context, held)
