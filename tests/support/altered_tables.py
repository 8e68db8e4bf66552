"""A small table `t` of a job that is altered, and beside it a table `other`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database

POINTS = [
    "schema.before_altered",
    "schema.after_altered",
    "log.before_report",
    "sink.before_commit",
    "driver.epoch_written",
]
"""Failpoints of a run that follows changed columns."""
TABLE = (
    "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20))",
    "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd'), (5, 'e'), (6, 'f'), (7, 'g')",
)


def job_of(database: Database, folder: Path, target: Database | None = None, **changes: Any) -> Path:
    sink: dict[str, Any] = {"type": "files", "path": str(folder / "out"), "on_schema_change": "evolve"}
    if target is not None:
        sink |= {"type": "mirror", "url": target.url, "table": "copy_{table}"}
        del sink["path"]
    job = {
        "source": source_of(database, on_table_error="park"),
        "checkpoint": str(folder / "checkpoint"),
        "snapshot": {"split_rows": 3, "parallelism": 2},
        "sink": sink,
    }
    return write_job(folder, **(job | changes))


def create(database: Database, table: Sequence[str] = TABLE) -> None:
    """`table`: the statements that create `t` and its rows."""
    database.execute(*table, "CREATE TABLE other (id INT PRIMARY KEY)")


def copied(
    database: Database,
    folder: Path,
    target: Database | None = None,
    table: Sequence[str] = TABLE,
    **changes: Any,
) -> Path:
    """Creates the tables and copies them. Returns the job file."""
    create(database, table)
    job = job_of(database, folder, target, **changes)
    run_epochs(job)
    return job


def rows_of(database: Database, table: str, *columns: str) -> list[Any]:
    return list(database.query(f"SELECT {', '.join(columns)} FROM {table} ORDER BY id"))


def folded(folder: Path, database: Database, *columns: str) -> list[Any]:
    """The table as a reader of its change files gets it."""
    rows: dict[int, tuple[Any, ...]] = {}
    for row in history_of(folder, database).to_pylist():
        if row["_change_type"] == "truncate":
            rows.clear()
        elif row["_change_type"] == "delete":
            rows.pop(row["id"], None)
        else:
            rows[row["id"]] = tuple(row.get(column) for column in columns)
    return [rows[key] for key in sorted(rows)]


def history_of(folder: Path, database: Database) -> pa.Table:
    """Newer files have more columns: their schemas are merged, as Spark's option mergeSchema does."""
    files = sorted((folder / "out" / f"{database.schema}.t").glob("**/*.parquet"))
    whole = pa.concat_tables([pq.read_table(file) for file in files], promote_options="default")
    return whole.sort_by([("_commit_version", "ascending"), ("_seq", "ascending")])


def told(notes: Notes) -> list[str]:
    return [event for event, _ in notes.found if event in {"altered", "parked", "left", "joined"}]
