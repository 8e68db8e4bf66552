"""Tables with one kind of DDL each: a job that copies them into a mirror, the writes, and the comparison in the end."""

from collections.abc import Sequence
from pathlib import Path

from tests.support.ddl_kinds import Kind
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database, logs_generated_columns

POINTS = (
    "planner.after_plan",
    "log.before_report",
    "sink.before_commit",
    "sink.after_commit",
    "driver.epoch_written",
    "sink.after_adding",
    "sink.key_tried",
    "sink.key_replaced",
    "sink.after_key",
    "schema.before_altered",
    "schema.after_altered",
    "tables.parked",
    "tables.before_joined",
    "tables.after_joined",
    "signals.joined",
)
"""Failpoints on the way of a change of a table."""


def job_of(database: Database, target: Database, folder: Path) -> Path:
    sink = {"type": "mirror", "url": target.url, "table": "copy_{table}", "on_schema_change": "evolve"}
    source = source_of(database, on_table_error="park", tables=[f"{database.schema}.k*"])
    return write_job(folder, source=source, checkpoint=str(folder / "checkpoint"), sink=sink)


def numbered(kinds: Sequence[Kind]) -> list[tuple[str, Kind]]:
    return [(f"k{number:02}", kind) for number, kind in enumerate(kinds)]


def create(database: Database, kinds: Sequence[Kind]) -> None:
    for table, kind in numbered(kinds):
        early = [text for text in kind.setup if text.startswith("CREATE TYPE")]
        late = [text for text in kind.setup if text not in early]
        if kind.columns is not None:
            statements = [*early, "CREATE TABLE {t} (" + kind.columns + ")", *late, kind.rows]
            database.execute(*(text.replace("{t}", table) for text in statements))


def change(database: Database, kinds: Sequence[Kind]) -> None:
    for table, kind in numbered(kinds):
        statements = (*(kind.before if kind.columns is not None else ()), *kind.ddl, *kind.after)
        database.execute(*(text.replace("{t}", table) for text in statements))


def columns_of(database: Database, table: str) -> list[str]:
    """Returns the columns that are copied."""
    generated = "" if logs_generated_columns(database.server) else "AND is_generated = 'NEVER'"
    query = (
        "SELECT column_name FROM information_schema.columns "
        f"WHERE table_schema = '{database.schema}' AND table_name = '{table}' {generated} ORDER BY ordinal_position"
    )
    return [name for (name,) in database.query(query)]


def rows_of(database: Database, table: str, columns: Sequence[str]) -> list[tuple[str, ...]]:
    return sorted(tuple(map(str, row)) for row in database.query(f"SELECT {', '.join(columns)} FROM {table}"))


def assert_equal(source: Database, target: Database, kinds: Sequence[Kind]) -> None:
    wrong = []
    for table, kind in numbered(kinds):
        for name in [*([] if kind.gone or kind.parked else [table]), *(f"{table}{suffix}" for suffix in kind.now)]:
            columns = columns_of(source, name)
            if not set(columns) <= set(columns_of(target, f"copy_{name}")):
                wrong.append((kind.what, name, columns, columns_of(target, f"copy_{name}")))
            elif (expected := rows_of(source, name, columns)) != (found := rows_of(target, f"copy_{name}", columns)):
                wrong.append((kind.what, name, expected, found))
    assert not wrong, "\n".join(map(str, wrong))
