"""Locks tables before a transaction takes its snapshot: TRUNCATE and a DDL that rewrites a table make it look empty to older
snapshots. The lock is the one that a SELECT takes.

LOCK TABLE takes no snapshot, but needs SELECT on the whole table. A SELECT of columns needs no more than these, but takes the
snapshot first. So if the role may only SELECT columns, a second session has the lock until the transaction has it too:

    second session   BEGIN → SELECT … LIMIT 0 ─────────────────────────────────────────→ COMMIT
    transaction                                BEGIN → snapshot → SELECT … LIMIT 0 → …

The second session's COMMIT proves that it, and its lock, lasted that long.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from tidemark.readers.postgres.connect import Connection, limit_lock_waits, quote_identifier, quote_table
from tidemark.state.table import TableId, TableSchema

_BY_COLUMNS = """
SELECT named.n FROM unnest(%s::text[]) WITH ORDINALITY AS named(name, n), to_regclass(named.name) AS found(oid)
WHERE NOT has_table_privilege(found.oid, 'SELECT') AND has_any_column_privilege(found.oid, 'SELECT')"""
_OWN_LOCK = "1s"
"""How long the transaction waits for its own lock. A DDL that asked in between waits for the second session, and the
transaction would wait for the DDL."""


@contextmanager
def locked(connection: Connection, another: Callable[[], Connection], schemas: Sequence[TableSchema]) -> Iterator[None]:
    """Begins a transaction with the tables locked. The caller takes its snapshot inside of the block. `another` opens a
    connection. Raises psycopg2's errors; one of either connection that passes means: try again."""
    with locking(connection, another, schemas) as begin:
        _run(connection, *begin)
        yield


@contextmanager
def locking(
    connection: Connection, another: Callable[[], Connection], schemas: Sequence[TableSchema]
) -> Iterator[Sequence[str]]:
    """The same, but the caller begins the transaction, by the statements that are yielded."""
    by_columns = _read_by_columns(connection, schemas)
    whole = [schema.table for schema in schemas if schema not in by_columns]
    with ExitStack() as stack:
        if by_columns:
            keeper = stack.enter_context(closing(another()))
            limit_lock_waits(keeper)
            _run(keeper, "BEGIN READ ONLY", *map(_select_nothing, by_columns))
        yield ["BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", *_lock(whole)]
        if by_columns:
            _run(
                connection,
                f"SET LOCAL lock_timeout = '{_OWN_LOCK}'",
                *map(_select_nothing, by_columns),
            )
            _run(keeper, "COMMIT")


def _read_by_columns(connection: Connection, schemas: Sequence[TableSchema]) -> list[TableSchema]:
    """Returns those of the tables of which the role may SELECT columns only."""
    with connection.cursor() as cursor:
        cursor.execute(_BY_COLUMNS, ([quote_table(schema.table) for schema in schemas],))
        return [schemas[number - 1] for (number,) in cursor.fetchall()]


def _lock(tables: Sequence[TableId]) -> list[str]:
    return [f"LOCK TABLE {', '.join(map(quote_table, tables))} IN ACCESS SHARE MODE"] if tables else []


def _select_nothing(schema: TableSchema) -> str:
    """Returns a statement that locks the table and its partitions until the transaction ends."""
    columns = ", ".join(quote_identifier(column.name) for column in schema.captured)
    return f"SELECT {columns} FROM {quote_table(schema.table)} LIMIT 0"


def _run(connection: Connection, *statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
