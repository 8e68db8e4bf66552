"""Reads rows of a table that is no source: a copy, which is compared with one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import psycopg2
import pyarrow as pa

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.source import Tls
from tidemark.readers.postgres.connect import Connection, connect, error_text, limit_lock_waits, quote_table, sql_errors
from tidemark.readers.postgres.schema.catalog import schema_of
from tidemark.readers.postgres.schema.table_facts import read_tables
from tidemark.readers.postgres.schema.types import select_expression
from tidemark.readers.postgres.snapshot.copy_rows import copy_rows, pass_rows_on
from tidemark.readers.table_rows import ONCE
from tidemark.state.errors import SourceUnavailableError
from tidemark.state.table import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class PostgresRows:
    """A `tidemark.readers.table_rows.TableRows`."""

    connection: Connection
    schema: TableSchema

    def read(self, condition: str) -> pa.Table:
        with self._errors():
            return copy_rows(self.connection, _query(self.schema, condition), self.schema)

    def pass_on(self, condition: str, names: Sequence[str], take: Callable[[pa.RecordBatch], None]) -> None:
        columns = tuple(column for column in self.schema.captured if column.name in names)
        schema = replace(self.schema, columns=columns)
        with self._errors():
            pass_rows_on(self.connection, _query(schema, condition), schema, take)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Closes the connection after an error: the server would wait for the other rows to be fetched."""
        try:
            yield
        except BaseException as error:
            self.connection.close()
            if not isinstance(error, psycopg2.Error):
                raise
            raise SourceUnavailableError(f"{self.schema.table} could not be read: {error_text(error)}", "") from error


def _query(schema: TableSchema, condition: str) -> str:
    columns = ", ".join(map(select_expression, schema.captured))
    return f"SELECT {columns} FROM {quote_table(schema.table)} AS c WHERE {condition}"


@contextmanager
def postgres_rows(
    endpoint: Endpoint, tls: Tls | None, table: TableId, columns: Sequence[str]
) -> Iterator[PostgresRows]:
    """See `tidemark.jobs.sources.table_rows`."""
    with closing(connect(endpoint, tls, reconnect=ONCE)) as connection:
        with sql_errors(connection):
            limit_lock_waits(connection)
            facts = read_tables(connection, [table])[table]
            others = [column.name for column in facts.columns if column.name not in columns]
            schema = schema_of(facts, exclude_columns=others)
        yield PostgresRows(connection, schema)
