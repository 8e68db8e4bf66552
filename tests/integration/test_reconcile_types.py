"""`tidemark reconcile` takes no value of any type for different that the mirror wrote, and finds each changed cell."""

import contextlib
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_types_into_sinks import TOO_MANY_DECIMALS, insert_rows
from tests.support.all_types import create_all_types
from tests.support.epochs import run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.postgres_values import EDGE_VALUES, MAKE_TYPES
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.jobs.reconcile.reconcile import reconcile_tables
from tidemark.jobs.reconcile.table_comparison import TableResult

pytestmark = pytest.mark.integration

TOO_WIDE = ("numeric(38,38)", "mysql")
"""MySQL has at most 30 decimals."""


class Silent:
    def ranges(self, done: int, rows: int) -> None:
        pass

    def looking(self, suspects: int, look: int) -> None:
        pass


def job_of(source: Database, target: Database, folder: Path, **settings: Any) -> Path:
    return write_job(
        folder,
        source=source_of(source, **settings),
        snapshot={"split_rows": 10, "parallelism": 2},
        sink={"type": "mirror", "url": target.url, "table": "copy_{table}", "on_bad_value": "null"},
    )


def compared(job: Path) -> TableResult:
    """Without a range of keys that a job has to pass: nothing else writes to the source's server."""
    (result,) = reconcile_tables(load_job_file(job), watch=lambda _: Silent(), examples=1000, patience_seconds=0)
    assert result.behind == result.moving == 0
    assert result.skipped is None
    return result


def assert_each_cell_counts(target: Database, job: Path, columns: list[str]) -> None:
    """Sets a cell of each column to NULL, one after the other row of those that have a value there."""
    changed = set()
    quote = '"' if target.kind == "postgres" else "`"
    with contextlib.closing(target.connect()) as connection, connection.cursor() as cursor:
        for number, column in enumerate(columns):
            name = f"{quote}{column}{quote}"
            cursor.execute(f"SELECT id FROM copy_all_types WHERE {name} IS NOT NULL ORDER BY id")
            ids = [row[0] for row in cursor.fetchall()]
            free = [row_id for row_id in ids if (str(row_id),) not in changed] or ids
            cursor.execute(f"UPDATE copy_all_types SET {name} = NULL WHERE id = {free[number % len(free)]}")
            changed.add((str(free[number % len(free)]),))
    result = compared(job)
    assert {example.key for example in result.examples} == changed
    assert {example.kind for example in result.examples} == {"different"}


@pytest.mark.parametrize(
    ("source_kind", "target_kind"),
    [
        ("mysql", "postgres"),
        pytest.param("mysql", "mariadb", marks=pytest.mark.every_server),
        pytest.param("mariadb", "postgres", marks=pytest.mark.every_server),
        ("mariadb", "mysql"),
    ],
)
def test_every_type_of_mysql(
    source_kind: str, target_kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: Database = request.getfixturevalue(f"{source_kind}_database")
    target: Database = request.getfixturevalue(f"{target_kind}_database")
    create_all_types(source.connect())
    excluded = TOO_MANY_DECIMALS if (source_kind, target_kind) == ("mariadb", "mysql") else ()
    columns = {f"{source.schema}.all_types": {"exclude": list(excluded)}} if excluded else {}
    insert_rows(source, 0, target_kind)
    job = job_of(source, target, tmp_path, columns=columns)
    run_epochs(job)
    insert_rows(source, 1000, target_kind)
    run_epochs(job)
    (count,) = source.query("SELECT count(*) FROM all_types")[0]
    result = compared(job)
    assert (result.rows, result.differences, result.examples) == (count, 0, [])
    shown = source.query(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = 'all_types'",
        (source.name,),
    )
    copied = [name for (name,) in shown if name not in {"id", *excluded} and not name.startswith("generated")]
    assert_each_cell_counts(target, job, copied)


@pytest.mark.parametrize("target_kind", ["postgres", "mysql"])
def test_every_type_of_postgresql(
    postgres18_database: Database, target_kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source, target = postgres18_database, request.getfixturevalue(f"{target_kind}_database")
    types = {kind: values for kind, values in EDGE_VALUES.items() if (kind, target_kind) != TOO_WIDE}
    names = [f"c{i}" for i in range(len(types))]
    declared = ", ".join(f"{name} {kind}" for name, kind in zip(names, types, strict=True))
    source.execute(*MAKE_TYPES, f"CREATE TABLE all_types (id int PRIMARY KEY, {declared})")

    def insert(first_id: int) -> None:
        for i, values in enumerate(zip_longest(*types.values(), fillvalue="NULL")):
            source.execute(f"INSERT INTO all_types VALUES ({first_id + i}, {', '.join(values)})")

    insert(0)
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    insert(1000)
    run_epochs(job)
    (count,) = source.query("SELECT count(*) FROM all_types")[0]
    result = compared(job)
    assert (result.rows, result.differences, result.examples) == (count, 0, [])
    held = target.query(f"SELECT {', '.join(f'count({name})' for name in names)} FROM copy_all_types")[0]
    assert_each_cell_counts(target, job, [name for name, count in zip(names, held, strict=True) if count])


@pytest.mark.parametrize("target_kind", ["postgres", "mysql"])
def test_the_least_change_of_a_number_is_found(
    mariadb_database: Database, target_kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source, target = mariadb_database, request.getfixturevalue(f"{target_kind}_database")
    source.execute(
        "CREATE TABLE numbers (id INT PRIMARY KEY, f FLOAT, d DOUBLE, t VARCHAR(20), at DATETIME(6))",
        "INSERT INTO numbers VALUES (1, 0.1, 0.1, 'a', '2024-01-01'), (2, 16777216, 1e22, 'a', '2024-01-01'), "
        "(3, 1, 1, 'A', '2024-01-01'), (4, 1, 1, '', '2024-01-01'), (5, 1, 1, 'a', '2024-01-01')",
    )
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    assert compared(job).differences == 0
    target.execute(
        "UPDATE copy_numbers SET d = 0.1 + 1e-17 * 2 WHERE id = 1",
        "UPDATE copy_numbers SET f = 16777218 WHERE id = 2",
        "UPDATE copy_numbers SET t = 'a' WHERE id = 3",
        "UPDATE copy_numbers SET t = ' ' WHERE id = 4",
        "UPDATE copy_numbers SET at = '2024-01-01 00:00:00.000001' WHERE id = 5",
    )
    assert {example.key for example in compared(job).examples} == {("1",), ("2",), ("3",), ("4",), ("5",)}
