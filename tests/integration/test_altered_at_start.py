"""A table that is altered after the catalogs were read and before the start position: the log does not tell."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.jobs.tables.job_tables import TablesAlteredError
from tidemark.readers.mysql import source as mysql_source
from tidemark.readers.mysql.keys.split_keys import MySqlKeys
from tidemark.readers.mysql.schema import table_facts as mysql_facts
from tidemark.readers.mysql.source import FoundMySql
from tidemark.readers.postgres import source as postgres_source
from tidemark.readers.postgres.schema import table_facts as postgres_facts
from tidemark.readers.postgres.source import FoundPostgres
from tidemark.state.key_statistics import KeyStatistics
from tidemark.state.table import TableId

pytestmark = pytest.mark.integration


def job_of(database: Database, tmp_path: Path) -> Path:
    return write_job(
        tmp_path,
        source=source_of(database),
        checkpoint=str(tmp_path / "checkpoint"),
        sink={"type": "files", "path": str(tmp_path / "out")},
    )


@pytest.fixture
def altered_before(any_source_database: Database, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, list[str]], None]:
    """Runs one statement before each call of a method that takes a start position."""
    found = FoundMySql if any_source_database.kind != "postgres" else FoundPostgres

    def arm(method: str, statements: list[str]) -> None:
        whole = getattr(found, method)

        def take(self: object, *given: object) -> object:
            if statements:
                any_source_database.execute(statements.pop(0))
            return whole(self, *given)

        monkeypatch.setattr(found, method, take)

    return arm


@pytest.mark.parametrize("joins", [False, True], ids=["first start", "later table"])
def test_the_column_is_copied(
    joins: bool,
    any_source_database: Database,
    tmp_path: Path,
    altered_before: Callable[[str, list[str]], None],
) -> None:
    database = any_source_database
    job = job_of(database, tmp_path)
    if joins:
        database.execute("CREATE TABLE other (id INT PRIMARY KEY)")
        run_epochs(job)
    database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    altered_before("joining_start" if joins else "first_start", ["ALTER TABLE t ADD COLUMN more INT DEFAULT 7"])
    run_epochs(job)
    assert read_history(tmp_path / "out", database.schema, "t").column("more").to_pylist() == [7]


def test_a_table_that_is_altered_all_the_time_stops_the_start(
    any_source_database: Database, tmp_path: Path, altered_before: Callable[[str, list[str]], None]
) -> None:
    any_source_database.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    altered_before("first_start", [f"ALTER TABLE t ADD COLUMN c{i} INT" for i in range(50)])
    with pytest.raises(TablesAlteredError, match="was altered while"):
        run_epochs(job_of(any_source_database, tmp_path))


@pytest.mark.parametrize("is_first", [True, False], ids=["first start", "later start"])
def test_a_table_that_is_dropped_while_tables_are_looked_at_does_not_stop_the_job(
    is_first: bool, any_source_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the names were read, and before the columns are. Applications create and drop tables all the time."""
    database = any_source_database
    database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    job = job_of(database, tmp_path)
    if not is_first:
        run_epochs(job)
        database.execute("INSERT INTO t VALUES (2)")
    database.execute("CREATE TABLE passing (id INT PRIMARY KEY)")
    module = postgres_source if database.kind == "postgres" else mysql_source
    whole, statements = module.select_tables, ["DROP TABLE passing"]

    def select_tables(*given: Any, **settings: Any) -> list[TableId]:
        found: list[TableId] = whole(*given, **settings)
        while statements:
            database.execute(statements.pop())
        return found

    monkeypatch.setattr(module, "select_tables", select_tables)
    run_epochs(job)
    copied = read_history(tmp_path / "out", database.schema, "t").column("id").to_pylist()
    assert copied == ([1] if is_first else [1, 2])


PASSING = {
    "dropped": ("DROP TABLE t",),
    "renamed": ("ALTER TABLE t RENAME TO r",),
    "created again": ("DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (2)"),
    "swapped": ("ALTER TABLE t RENAME TO r", "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (2)"),
}


@pytest.mark.servers_in_turn(always="postgres18_server")  # whose tables are known by more than their names
@pytest.mark.parametrize("what", PASSING)
@pytest.mark.parametrize("joins", [False, True], ids=["first start", "later table"])
def test_a_table_that_is_replaced_is_looked_for_again(
    joins: bool, what: str, any_source_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tools such as dbt swap tables at each of their runs. No other table waits for the next start because of that."""
    database, notes = any_source_database, Notes()
    found = FoundMySql if database.kind != "postgres" else FoundPostgres
    method = "joining_start" if joins else "first_start"
    whole, statements = getattr(found, method), list(PASSING[what])

    def take(self: object, *given: object) -> object:
        database.execute(*statements)
        statements.clear()
        return whole(self, *given)

    job = job_of(database, tmp_path)
    if joins:
        database.execute("CREATE TABLE first (id INT PRIMARY KEY)")
        run_epochs(job)
    database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    database.execute("CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO other VALUES (5)")
    monkeypatch.setattr(found, method, take)
    run_epochs(job, notes=notes)
    expected = {"other": [5]} | ({"t": [2]} if what in {"created again", "swapped"} else {})
    copied = {name: read_history(tmp_path / "out", database.schema, name).column("id").to_pylist() for name in expected}
    assert copied == expected
    assert not [facts for _, facts in notes.found if "does not join" in facts.get("text", "")]


def test_a_key_that_is_replaced_between_two_queries_of_the_catalog_is_looked_for_again(
    any_source_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The columns are those before it, the indexes those after it."""
    database = any_source_database
    database.execute(
        "CREATE TABLE t (id INT NOT NULL, CONSTRAINT t_pkey PRIMARY KEY (id))", "INSERT INTO t VALUES (1), (2)"
    )
    drop = "CONSTRAINT t_pkey" if database.kind == "postgres" else "PRIMARY KEY"
    statements = [f"ALTER TABLE t ADD COLUMN k INT NOT NULL DEFAULT 7, DROP {drop}, ADD PRIMARY KEY (k, id)"]
    facts = postgres_facts if database.kind == "postgres" else mysql_facts
    method = "_by_table" if database.kind == "postgres" else "_select"
    whole = getattr(facts, method)

    def select(connection: Any, query: str, *given: Any) -> Any:
        if query == facts._INDEXES and statements:
            database.execute(statements.pop())
        return whole(connection, query, *given)

    monkeypatch.setattr(facts, method, select)
    run_epochs(job_of(database, tmp_path))
    rows = read_history(tmp_path / "out", database.schema, "t").select(["k", "id"]).to_pylist()
    assert rows == [{"k": 7, "id": 1}, {"k": 7, "id": 2}]


def test_a_key_that_has_nulls_when_splits_are_planned_is_another_one(
    source_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = source_database
    database.execute("CREATE TABLE t (id INT NOT NULL PRIMARY KEY, k INT NOT NULL)", "INSERT INTO t VALUES (1, 7)")
    whole, statements = (
        MySqlKeys.describe,
        [
            "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (k), MODIFY id INT NULL",
            "INSERT INTO t VALUES (NULL, 8)",
        ],
    )

    def describe(self: MySqlKeys, table: TableId, columns: tuple[str, ...]) -> KeyStatistics:
        database.execute(*statements)
        statements.clear()
        return whole(self, table, columns)

    monkeypatch.setattr(MySqlKeys, "describe", describe)
    source = source_of(database, on_table_error="park")
    sink = {"type": "files", "path": str(tmp_path / "out"), "on_schema_change": "evolve"}
    run_epochs(write_job(tmp_path, source=source, checkpoint=str(tmp_path / "checkpoint"), sink=sink))
    rows = read_history(tmp_path / "out", database.schema, "t").select(["k", "id"]).to_pylist()
    assert rows[-2:] == [
        {"k": 7, "id": 1},
        {"k": 8, "id": None},
    ]  # the first row is the truncate of a table that comes back
