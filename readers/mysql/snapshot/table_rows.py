"""Reads rows of a table that is no source: a copy, which is compared with one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
import pymysql

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.source import Tls
from tidemark.readers.mysql.connect import Connection, connect, error_text, quote_table, sql_errors
from tidemark.readers.mysql.decoding.columns import ColumnPlan
from tidemark.readers.mysql.keys.key_columns import column_list
from tidemark.readers.mysql.schema.catalog import load_schema
from tidemark.readers.mysql.schema.table_facts import read_tables
from tidemark.readers.mysql.snapshot.result import stream_select
from tidemark.readers.snapshot.gathered_rows import GatheredRows
from tidemark.readers.table_rows import ONCE
from tidemark.state.errors import SourceUnavailableError
from tidemark.state.table import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class MySqlRows:
    """A `tidemark.readers.table_rows.TableRows`."""

    connection: Connection
    schema: TableSchema

    def read(self, condition: str) -> pa.Table:
        gathered = GatheredRows(self.schema.arrow_schema())
        self._pass_on(self.schema, condition, gathered.add)
        return gathered.table()

    def pass_on(self, condition: str, names: Sequence[str], take: Callable[[pa.RecordBatch], None]) -> None:
        columns = tuple(column for column in self.schema.captured if column.name in names)
        self._pass_on(replace(self.schema, columns=columns), condition, take)

    def _pass_on(self, schema: TableSchema, condition: str, take: Callable[[pa.RecordBatch], None]) -> None:
        columns = column_list(column.name for column in schema.captured)
        query = f"SELECT {columns} FROM {quote_table(schema.table)} AS c WHERE {condition}"
        try:
            plan = ColumnPlan.for_result(schema)
            with closing(stream_select(self.connection, query, plan, zero_dates_null=False)) as batches:
                for batch in batches:
                    take(batch)
        except pymysql.MySQLError as error:
            raise SourceUnavailableError(f"{schema.table} could not be read: {error_text(error)}", "") from error


@contextmanager
def mysql_rows(endpoint: Endpoint, tls: Tls | None, table: TableId, columns: Sequence[str]) -> Iterator[MySqlRows]:
    """See `tidemark.jobs.sources.table_rows`."""
    with closing(connect(endpoint, tls, reconnect=ONCE)) as connection:
        with sql_errors(connection):
            known = read_tables(connection, [table])[table].column_names
            others = [name for name in known if name not in columns]
            schema = load_schema(connection, table, exclude_columns=others)
        yield MySqlRows(connection, schema)
