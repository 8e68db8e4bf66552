"""Reads a signal table of PostgreSQL. It is never written, and nothing but an ordinary table with columns of the server's own
types is read: a view or a type could run code of others with the rights of the job's account."""

from contextlib import closing

import psycopg2

from tidemark.conf.model import JobFile
from tidemark.readers.postgres.connect import connect, error_code, error_text, is_transient, quote_table, sql_errors
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

_TYPES = frozenset({"int2", "int4", "int8", "numeric", "text", "varchar", "bpchar", "uuid", "json", "jsonb"})
_GONE = frozenset({"42P01", "3F000"})


def read_postgres_signals(job: JobFile, table: TableId) -> list[SignalRow] | None:
    """See `tidemark.jobs.sources.read_signal_rows`."""
    name = quote_table(table)
    connection = connect(job.source.url, job.source.tls)
    with closing(connection), sql_errors(connection), connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'; SET statement_timeout = '{QUERY_SECONDS}s'")
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{QUERY_SECONDS}s'")  # if this process freezes
        cursor.execute("BEGIN READ ONLY")
        try:
            cursor.execute(
                f"LOCK TABLE ONLY {name} IN ACCESS SHARE MODE"
            )  # until the end of the transaction it is no other
            cursor.execute("SELECT relkind FROM pg_class WHERE oid = %s::regclass", (name,))
            if cursor.fetchone() != ("r",):
                raise unusable(table, "it is no ordinary table")
            cursor.execute(
                "SELECT a.attname, CASE WHEN n.nspname = 'pg_catalog' THEN t.typname ELSE n.nspname || '.' || t.typname END "
                "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid JOIN pg_namespace n ON n.oid = t.typnamespace "
                "WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped",
                (name,),
            )
            require_columns(table, cursor.fetchall(), _TYPES)
            cursor.execute(
                f"SELECT id::text, type::text, left(data::text, {MAX_CHARACTERS + 1}) FROM ONLY {name} LIMIT {MAX_ROWS + 1}"
            )
        except psycopg2.Error as error:
            if error_code(error) in _GONE:
                return None
            if is_transient(error) or connection.closed:
                raise
            raise unusable(table, error_text(error)) from error
        rows = [SignalRow(*row) for row in cursor.fetchall()]
    require_few(table, rows)
    return rows
