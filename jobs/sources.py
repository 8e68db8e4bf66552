"""The registry of sources: the module that reads the kind of database which a job file's `source.url` names."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from typing_extensions import assert_never

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.model import JobFile
from tidemark.conf.source import Tls
from tidemark.jobs.recovered_state import source_reached
from tidemark.jobs.sinks import sink_needs
from tidemark.readers.schema_checks import CopiedColumns
from tidemark.readers.signal_rows import SignalRow
from tidemark.readers.source import FoundSource, Lease
from tidemark.readers.table_rows import TableRows
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.job_state import JobState
from tidemark.state.position import Position
from tidemark.state.table import TableId


def find_source(job: JobFile, state: JobState | None = None) -> AbstractContextManager[FoundSource]:
    """Connects to the source and checks it; the connection is open inside the `with` block. Raises SourceNotUsableError or
    SourceUnavailableError if the checks can't run. What they find is in `findings`. `state`: of a job that has started."""
    kind, needs = job.source.url.kind, sink_needs(job.sink)
    copied: dict[TableId, CopiedColumns] = {}
    if state is not None and job.sink.on_schema_change.add_column == "ignore":
        newest = Checkpoint.at(job.checkpoint).newest_schemas()
        copied = {table: CopiedColumns.of(*found) for table, found in newest.items()}
    needs_key, lists = needs.needs_key, needs.takes_lists if state is None else state.lists
    match kind:
        case "mysql" | "mariadb":
            from tidemark.readers.mysql.source import find_mysql

            return find_mysql(
                job,
                needs_key=needs_key,
                appends_keyless=needs.appends_keyless,
                has_started=state is not None,
                followed=() if state is None else [schema.table for schema in state.schemas],
                copied=copied,
            )
        case "postgresql":
            from tidemark.readers.postgres.source import find_postgres

            return find_postgres(
                job,
                needs_key=needs_key,
                appends_keyless=needs.appends_keyless,
                lists=lists,
                has_started=state is not None,
                copied=copied,
                used_keys=_used_keys(job, state),
                reached=_reached(job, state),
            )
        case _:
            assert_never(kind)


def _used_keys(job: JobFile, state: JobState | None) -> dict[TableId, tuple[str, ...]]:
    """The keys by which a job finds the rows of its tables, or found them before they left."""
    if state is None:
        return {}
    newest = Checkpoint.at(job.checkpoint).newest_schemas() if state.left else {}
    return {table: schema.key for table, (schema, _) in newest.items()} | {s.table: s.key for s in state.schemas}


def _reached(job: JobFile, state: JobState | None) -> Position | None:
    """As in `tidemark.readers.postgres.source.find_postgres`. None if the source can't go back."""
    return source_reached(Checkpoint.at(job.checkpoint), state) if state is not None and job.source.standby else None


def selected_tables(job: JobFile) -> list[TableId]:
    """Connects to the source and returns the tables that the job file selects. Raises TidemarkError."""
    kind = job.source.url.kind
    match kind:
        case "mysql" | "mariadb":
            from tidemark.readers.mysql.source import mysql_tables

            return mysql_tables(job)
        case "postgresql":
            from tidemark.readers.postgres.source import postgres_tables

            return postgres_tables(job)
        case _:
            assert_never(kind)


def read_signal_rows(job: JobFile, table: TableId) -> list[SignalRow] | None:
    """Connects to the source and returns the rows of a signal table, None if there is no such table. Raises
    SourceNotUsableError if it can't be read, SourceUnavailableError if the source is out of reach."""
    kind = job.source.url.kind
    match kind:
        case "mysql" | "mariadb":
            from tidemark.readers.mysql.signal_rows import read_mysql_signals

            return read_mysql_signals(job, table)
        case "postgresql":
            from tidemark.readers.postgres.signal_rows import read_postgres_signals

            return read_postgres_signals(job, table)
        case _:
            assert_never(kind)


def table_rows(
    endpoint: Endpoint, tls: Tls | None, table: TableId, columns: Sequence[str]
) -> AbstractContextManager[TableRows]:
    """Connects to a database, and reads these columns of a table inside the `with` block. Raises TidemarkError, also for
    columns that no source may have."""
    match endpoint.kind:
        case "mysql" | "mariadb":
            from tidemark.readers.mysql.snapshot.table_rows import mysql_rows

            return mysql_rows(endpoint, tls, table, columns)
        case "postgresql":
            from tidemark.readers.postgres.snapshot.table_rows import postgres_rows

            return postgres_rows(endpoint, tls, table, columns)
        case _:
            assert_never(endpoint.kind)


def acquire_lease(job: JobFile, *, wait: bool) -> Lease:
    """Takes the job's lease. Raises JobHeldError if another driver has it and `wait` is False."""
    kind = job.source.url.kind
    match kind:
        case "mysql" | "mariadb":
            from tidemark.readers.mysql.source import acquire_mysql_lease

            return acquire_mysql_lease(job, wait=wait)
        case "postgresql":
            from tidemark.readers.postgres.source import acquire_postgres_lease

            return acquire_postgres_lease(job, wait=wait)
        case _:
            assert_never(kind)
