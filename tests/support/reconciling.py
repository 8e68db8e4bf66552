"""A copy and its source, which are compared: the job, the comparison, and the damage that it must find."""

import contextlib
import json
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database, fresh_database
from tests.support.sink_state import as_numbers
from tests.support.workload import KEYS
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.reconcile import copy_progress, table_comparison, unread_log
from tidemark.jobs.reconcile.range_looks import TableLook
from tidemark.jobs.reconcile.reconcile import reconcile_tables
from tidemark.jobs.reconcile.table_comparison import TableResult

PAIRS = [
    pytest.param("mysql_database", "postgres_database", id="mysql-gtid-to-postgres"),
    pytest.param("mysql_nogtid_database", "mysql_database", id="mysql-nogtid-to-mysql"),
    pytest.param("postgres18_database", "mysql_database", id="postgres18-to-mysql"),
    pytest.param("postgres18_database", "postgres_database", id="postgres18-to-postgres"),
    pytest.param("mariadb_database", "mariadb_target", id="mariadb-to-mariadb"),
]


def on_pairs(*usual: int) -> pytest.MarkDecorator:
    """Runs a test on all PAIRS, in `make test` on those with these numbers."""
    pairs = [
        pair if number in usual else pytest.param(*pair.values, id=pair.id, marks=pytest.mark.every_server)
        for number, pair in enumerate(PAIRS)
    ]
    return pytest.mark.parametrize(("source", "target"), pairs, indirect=True)


class Silent:
    def ranges(self, done: int, rows: int) -> None:
        pass

    def looking(self, suspects: int, look: int) -> None:
        pass


@pytest.fixture
def mariadb_target(mariadb_server: Any) -> Iterator[Database]:
    with fresh_database(mariadb_server) as database:
        yield database


@pytest.fixture
def source(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def target(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session", autouse=True)
def _quick_looks() -> Iterator[None]:
    """Lets the looks of a comparison in this process follow each other faster than a user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_comparison, "PAUSE_SECONDS", 0.02)
        for module in (copy_progress, unread_log):
            patch.setattr(module, "POLL_SECONDS", 0.02)
        yield


def job_of(origin: Database, target: Database, folder: Path, **changes: Any) -> Path:
    job = {
        "source": source_of(origin),
        "checkpoint": str(folder / "checkpoint"),
        "snapshot": {"split_rows": 40, "parallelism": 2},
        "sink": {"type": "mirror", "url": target.url, "table": "copy_{table}"},
    }
    return write_job(folder, **(job | changes))


def files_job_of(origin: Database, folder: Path, file_format: str = "parquet", **changes: Any) -> Path:
    job = {
        "source": source_of(origin),
        "checkpoint": str(folder / "checkpoint"),
        "snapshot": {"split_rows": 40, "parallelism": 2},
        "sink": {"type": "files", "path": str(folder / "copy"), "format": file_format},
    }
    return write_job(folder, **(job | changes))


Changes = list[dict[str, Any]]


def edit_files(folder: Path, edit: Callable[[Changes], Changes], names: str = "e*") -> None:
    """Gives the rows of each of these files to `edit`, and writes what it returns in their place."""
    for path in sorted(folder.glob(names)):
        temporary = path.with_name(f".{path.name}")  # the checkpoint may have a link to the file
        if path.suffix == ".parquet":
            rows = pq.ParquetFile(path).read()
            # Python's dates begin in year 1, ours do not.
            numbers = pa.schema([field.with_type(as_numbers(field.type)) for field in rows.schema])
            edited = pa.Table.from_pylist(edit(rows.cast(numbers).to_pylist()), numbers)
            pq.write_table(edited.cast(rows.schema), temporary, store_schema=False)
        else:
            changes = edit([json.loads(line) for line in path.read_text().splitlines()])
            temporary.write_text("".join(json.dumps(row) + "\n" for row in changes))
        temporary.replace(path)


def compared(
    path: Path, *tables: TableName, patience_seconds: float | None = 0.0, examples: int = 100
) -> dict[str, TableResult]:
    """Compares source and copy."""
    found = reconcile_tables(
        load_job_file(path), tables, watch=lambda _: Silent(), patience_seconds=patience_seconds, examples=examples
    )
    return {result.schema.table.name: result for result in found}


def in_tasks(look: TableLook, function: Any, tasks: Sequence[Sequence[Any]]) -> list[Any]:
    """Runs tasks in this process, as Spark's workers do."""
    copy = pickle.loads(pickle.dumps(function))
    return [pickle.loads(pickle.dumps(found)) for task in tasks for found in copy([task])]


def in_buckets(
    look: TableLook,
    hashing: Any,
    work: Sequence[Any],
    later: Callable[[], Sequence[Any]],
    buckets: int,
    folding: Any,
) -> list[Any]:
    """The same for tasks whose results are dealt out to others."""
    dealt: dict[int, list[Any]] = {bucket: [] for bucket in range(buckets)}
    found = in_tasks(look, hashing, work)
    for bucket, portion in [*found, *in_tasks(look, hashing, later())]:
        dealt[bucket].append((bucket, portion))
    copy = pickle.loads(pickle.dumps(folding))
    return [found for portions in dealt.values() for found in copy(portions)]


def compared_by_tasks(
    path: Path, *, patience_seconds: float | None = 0.0, folding: Callable[..., list[Any]] = in_buckets
) -> dict[str, TableResult]:
    """Compares source and copy by tasks, which this process runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_comparison, "RANGES_WITHOUT_SPARK", 0)
        found = reconcile_tables(
            load_job_file(path),
            watch=lambda _: Silent(),
            patience_seconds=patience_seconds,
            examples=1000,
            repair=True,
            tasks=in_tasks,
            folding=folding,
        )
        return {result.schema.table.name: result for result in found}


def compared_both(path: Path) -> dict[str, TableResult]:
    """Compares a copy in files by the command and by tasks, which find the same."""
    by_command, by_tasks = compared(path), compared_by_tasks(path)
    for name, result in by_tasks.items():
        other = by_command[name]
        assert (name, result.rows, result.counts, result.behind, result.skipped) == (
            name, other.rows, other.counts, other.behind, other.skipped,
        )  # fmt: skip
        assert found_keys(result) == found_keys(other)
    return by_tasks


def assert_equal(path: Path, rows: dict[str, int], *, patience_seconds: float = 0.0) -> None:
    for name, result in compared(path, patience_seconds=patience_seconds).items():
        assert (name, result.rows, result.differences, result.behind, result.moving, result.skipped) == (
            name, rows[name], 0, 0, 0, None,
        )  # fmt: skip


def row_counts(source: Database) -> dict[str, int]:
    return {table: source.query(f"SELECT count(*) FROM {table}")[0][0] for table in KEYS}


def found_keys(result: TableResult) -> dict[str, set[tuple[str, ...]]]:
    kinds: dict[str, set[tuple[str, ...]]] = {}
    for example in result.examples:
        kinds.setdefault(example.kind, set()).add(example.key)
    return kinds


def damage(target: Database) -> None:
    """A changed cell, a missing row, a surplus row and a stale row in each table."""
    target.execute(
        "UPDATE copy_orders SET note = NULL WHERE id = 5",
        "UPDATE copy_orders SET amount = amount + 0.01 WHERE id = 95",
        "DELETE FROM copy_orders WHERE id IN (7, 100)",
        "INSERT INTO copy_orders (id, uid, version) VALUES (-9, 1, 1), (100000, 1, 1)",
        "UPDATE copy_order_lines SET note = '' WHERE order_id = 3 AND line_no = 2",
        "DELETE FROM copy_order_lines WHERE order_id = 20",
        "INSERT INTO copy_order_lines (order_id, line_no, uid, version) VALUES (3, 9, 1, 1)",
    )
    first, second, third = (row[0] for row in target.query("SELECT code FROM copy_customers ORDER BY uid LIMIT 3"))
    with contextlib.closing(target.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE copy_customers SET version = 0 WHERE code = %s", (first,))
        cursor.execute("DELETE FROM copy_customers WHERE code = %s", (second,))
        cursor.execute("INSERT INTO copy_customers (code, uid, version) VALUES (%s, 1, 1)", (f"{third} Ω no such",))


@contextlib.contextmanager
def following(job: Path, *overrides: str) -> Iterator[None]:
    """Runs the job's epochs inside the block, one run after the other, and once more at its end."""
    stop, errors = threading.Event(), []

    def run() -> None:
        try:
            while not stop.wait(0.02):
                run_epochs(job, *overrides, notes=Notes())
        except BaseException as error:  # noqa: BLE001 -- raised below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if errors:
        raise errors[0]
    run_epochs(job, *overrides)
