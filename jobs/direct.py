"""`spark.readStream.format("tidemark")` for one table: options instead of a job file, typed rows instead of change batches.

Options: `url`, `table` and `checkpoint`, and any key of the job file with dots (`snapshot.split_rows`, `source.tls.ca`).
Spark shows options in its UI: write the password as `${NAME}` or `${file:/run/secrets/x}`, which are read where the
job's planner runs.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from conf.load import load_job_options
from conf.model import JobFile
from jobs.checkpoint import Checkpoint
from jobs.context import RunContext
from jobs.events import JsonEvents
from jobs.opening import hold_job, look_at_source
from readers.findings import raise_refusals
from state.change_batch import CHANGE_TYPE_NAMES, META_FIELDS, ChangeBatch, PartEnd
from state.errors import JobFileError
from state.table import TableSchema

_REQUIRED = ("url", "table", "checkpoint")
_RENAMED = {"url": "source.url"}
_TYPED_META = tuple(
    pa.field("_change_type", pa.string(), nullable=False)
    if field.name == "_change_type"
    else pa.field("_txn_id", pa.string())
    if field.name == "_txn_id"
    else field
    for field in META_FIELDS
)


def job_of_options(options: Mapping[str, str]) -> JobFile:
    """Raises JobFileError for missing, unknown or wrong options."""
    missing = [name for name in _REQUIRED if not options.get(name)]
    if missing:
        raise JobFileError(
            f"Option {missing[0]} of format tidemark is missing.",
            "Give url, table (database.table) and checkpoint; any key of the job file may follow.",
        )
    name = re.sub(r"[^a-z0-9-]+", "-", options["table"].lower()).strip("-")[:50] or "table"
    base = json.dumps({"job": name, "sink": {"type": "console"}, "source": {"tables": [options["table"]]}})
    settings = [f"{_RENAMED.get(key, key)}={value}" for key, value in options.items() if key not in {"table", "path"}]
    return load_job_options(base, settings, Path.cwd())


def table_schema(options: Mapping[str, str]) -> TableSchema:
    """The one table, as the job knows it or, before its first start, as it is now."""
    job = job_of_options(options)
    state = Checkpoint.at(job.checkpoint).job_state()
    if state is None:
        with look_at_source(job) as looked:
            raise_refusals(looked.findings)
            schemas = looked.schemas
    else:
        schemas = state.schemas
    if len(schemas) != 1:
        raise JobFileError(f"Option table matches {len(schemas)} tables.", "Name one: database.table.")
    return schemas[0]


def context_of_options(options: Mapping[str, str]) -> RunContext:
    """Opens the job in the planner's process, which holds its lease until it ends."""
    job = job_of_options(options)
    held = ExitStack().enter_context(hold_job(job, JsonEvents()))
    return RunContext(job, held.server, held.method, held.state, stop_file=None)


def typed_schema(schema: TableSchema) -> pa.Schema:
    """The table's columns, then the changelog columns with their names as text."""
    return pa.schema([*schema.arrow_schema(), *_TYPED_META])


def typed_batches(items: Iterable[ChangeBatch | PartEnd]) -> Iterator[pa.RecordBatch]:
    """Rows as Spark gets them."""
    names = pa.array(CHANGE_TYPE_NAMES)
    for item in items:
        if isinstance(item, PartEnd):
            continue
        rows = item.rows
        columns = []
        for field, column in zip(rows.schema, rows.columns, strict=True):
            if field.name == "_change_type":
                column = names.take(column)
            elif pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            columns.append(column)
        fields = [*list(rows.schema)[: -len(_TYPED_META)], *_TYPED_META]
        yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
