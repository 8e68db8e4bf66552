"""Reads a signal table of MySQL or MariaDB. It is never written, and nothing but an ordinary table is read: a view could run
code of others with the rights of the job's account."""

from contextlib import closing

import pymysql

from tidemark.conf.model import JobFile
from tidemark.readers.mysql.connect import (
    connect,
    error_code,
    error_text,
    flavour_of,
    is_transient,
    quote_table,
    sql_errors,
)
from tidemark.readers.signal_rows import (
    LOCK_SECONDS,
    MAX_CHARACTERS,
    MAX_ROWS,
    QUERY_SECONDS,
    SignalRow,
    require_columns,
    require_few,
    unusable,
)
from tidemark.state.table import TableId

_NUMBERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "decimal"})
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "uuid", "json"})
_GONE = frozenset({1049, 1146})


def read_mysql_signals(job: JobFile, table: TableId) -> list[SignalRow] | None:
    """See `tidemark.jobs.sources.read_signal_rows`."""
    read_timeout = float(2 * (QUERY_SECONDS + LOCK_SECONDS))
    connection = connect(job.source.url, job.source.tls, read_timeout_seconds=read_timeout)
    with closing(connection), sql_errors(connection), connection.cursor() as cursor:
        limit = "max_statement_time = {}" if flavour_of(connection) == "mariadb" else "max_execution_time = {}000"
        cursor.execute(f"SET SESSION lock_wait_timeout = {LOCK_SECONDS}, SESSION {limit.format(QUERY_SECONDS)}")
        cursor.execute(f"SET SESSION wait_timeout = {QUERY_SECONDS}")  # if this process freezes
        cursor.execute("START TRANSACTION READ ONLY")
        try:
            cursor.execute(
                f"SELECT 1 FROM {quote_table(table)} LIMIT 0"
            )  # until the end of the transaction it is no other
            cursor.execute(
                "SELECT table_type FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
                (table.database, table.name),
            )
            if (kind := cursor.fetchone()) is None or kind[0] != "BASE TABLE":
                raise unusable(table, "it is no ordinary table")
            cursor.execute(
                "SELECT LOWER(column_name), LOWER(data_type) FROM information_schema.columns "
                "WHERE table_schema = %s AND table_name = %s",
                (table.database, table.name),
            )
            require_columns(table, cursor.fetchall(), _NUMBERS | _TEXTS)
            cursor.execute(
                f"SELECT CAST(id AS CHAR), CAST(type AS CHAR), LEFT(CAST(data AS CHAR), {MAX_CHARACTERS + 1}) "
                f"FROM {quote_table(table)} LIMIT {MAX_ROWS + 1}"
            )
        except pymysql.MySQLError as error:
            if error_code(error) in _GONE:
                return None
            if is_transient(error) or not connection.open:
                raise
            raise unusable(table, error_text(error)) from error
        rows = [SignalRow(*row) for row in cursor.fetchall()]
    require_few(table, rows)
    return rows
