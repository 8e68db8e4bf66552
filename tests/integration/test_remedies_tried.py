"""Remedies, done as they are printed: the job goes on, and its copy is that of the source."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from devtools.server import Server
from tests.support.epochs import run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.postgres_roles import role
from tests.support.remedies import parked_remedy, remedy_of, run_through, setting_in
from tests.support.remedy_ways import mirror_job
from tests.support.servers import Database, fresh_database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.state.errors import (
    LogPositionLostError,
    SinkError,
    SourceNotUsableError,
)

pytestmark = pytest.mark.integration


def mirror_into(folder: Path, source: Database, target: Database, **settings: Any) -> Path:
    folder.mkdir(exist_ok=True)
    return mirror_job(folder, source, target, name=folder.name[:40].replace("_", "-").lower(), **settings)


def test_a_table_of_another_job_is_dropped_with_its_row_in_tidemark_tables(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    mysql_database.execute("CREATE TABLE orders (id INT PRIMARY KEY)", "INSERT INTO orders VALUES (1), (2)")
    first = mirror_into(tmp_path / "first", mysql_database, postgres_database)
    run_epochs(first)
    second = mirror_into(tmp_path / "second", mysql_database, postgres_database)
    remedy = remedy_of(second, SinkError)
    assert "drop that table and delete its row in tidemark_tables" in remedy
    row = "target_schema = 'public' AND target_table = 'copy_orders'"
    postgres_database.execute("DROP TABLE copy_orders", f"DELETE FROM tidemark_tables WHERE {row}")
    run_epochs(second)
    mysql_database.execute("INSERT INTO orders VALUES (3)")
    assert run_epochs(second) == ["stream"]
    assert postgres_database.query("SELECT id FROM copy_orders ORDER BY id") == [(1,), (2,), (3,)]


def test_a_folder_of_another_job_is_deleted(mysql_database: Database, tmp_path: Path) -> None:
    mysql_database.execute("CREATE TABLE orders (id INT PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    sink = {"type": "files", "path": str(tmp_path / "out"), "format": "jsonl"}
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    first = write_job(tmp_path / "first", job="first", source=source_of(mysql_database), sink=sink)
    run_epochs(first)
    second = write_job(tmp_path / "second", job="second", source=source_of(mysql_database), sink=sink)
    assert remedy_of(second, SinkError) == "Set another sink.path, or delete that folder."
    shutil.rmtree(tmp_path / "out" / f"{mysql_database.name}.orders")
    run_epochs(second)
    assert len(lines_in(tmp_path / "out", "orders")) == 1


@pytest.mark.parametrize("in_log", [False, True], ids=["snapshot", "log"])
def test_zero_dates_become_null_although_their_changes_are_in_the_log(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, in_log: bool
) -> None:
    mysql_database.execute(
        "CREATE TABLE days (id INT PRIMARY KEY, d DATE)", "INSERT INTO days VALUES (1, '2024-01-01')"
    )
    job = mirror_into(tmp_path, mysql_database, postgres_database, zero_dates="error")
    if in_log:
        run_epochs(job)
    with mysql_database.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        cursor.execute(f"INSERT INTO {mysql_database.name}.days VALUES (2, '0000-00-00')")
        connection.commit()
    remedy = remedy_of(job, SourceNotUsableError)
    assert "start the job again" in remedy
    run_epochs(job, setting_in(remedy))
    rows = [
        (row[0], row[1] and str(row[1])) for row in postgres_database.query("SELECT id, d FROM copy_days ORDER BY id")
    ]
    assert rows == [(1, "2024-01-01"), (2, None)]


@pytest.mark.parametrize("kind", ["mysql", "mariadb", "postgres"])
def test_a_unique_key_that_is_named_makes_a_mirror_possible(
    request: pytest.FixtureRequest, postgres_database: Database, tmp_path: Path, kind: str
) -> None:
    source: Database = request.getfixturevalue(f"{kind}_database")
    target: Database = request.getfixturevalue("mysql_database") if kind == "postgres" else postgres_database
    source.execute("CREATE TABLE events (a INT NOT NULL, b INT NOT NULL, v INT, UNIQUE (a, b))")
    source.execute("INSERT INTO events VALUES (1, 1, 1), (1, 2, 2)")
    job = mirror_into(tmp_path, source, target)
    setting = setting_in(remedy_of(job, SourceNotUsableError))
    if kind == "postgres":  # the server needs to know the key, too
        source.execute(remedy_of(job, SourceNotUsableError, setting).removesuffix("."))
    run_epochs(job, setting)
    source.execute("UPDATE events SET v = 7 WHERE b = 2", "DELETE FROM events WHERE b = 1")
    run_epochs(job, setting)
    assert target.query("SELECT a, b, v FROM copy_events") == [(1, 2, 7)]


@pytest.mark.parametrize("way", ["NOT NULL", "FULL"])
def test_a_table_whose_identity_is_an_index_gets_a_valid_one_or_whole_rows(
    postgres18_database: Database, tmp_path: Path, way: str
) -> None:
    source = postgres18_database
    source.execute(
        "CREATE TABLE events (code INT UNIQUE, v INT)",
        "INSERT INTO events VALUES (1, 1), (2, 2), (NULL, 3)",
        "ALTER TABLE events ADD CONSTRAINT there NOT NULL code NOT VALID",
        "ALTER TABLE events REPLICA IDENTITY USING INDEX events_code_key",
    )
    job = write_job(tmp_path, source=source_of(source), sink={"type": "files", "path": "./out"})
    valid, _, full = remedy_of(job, SourceNotUsableError).partition(" Or: ")
    if way == "NOT NULL":
        source.execute("UPDATE events SET code = 3 WHERE code IS NULL", valid.partition(": ")[2].removesuffix("."))
    else:
        source.execute(full.removesuffix("."))
    run_epochs(job)
    source.execute("UPDATE events SET v = 7 WHERE code = 2", "DELETE FROM events WHERE v = 3")
    assert run_epochs(job) == ["stream"]
    history = read_history(tmp_path / "out", "public", "events").to_pylist()
    assert [change["_change_type"] for change in history[:3]] == ["insert"] * 3
    changes = [(change["_change_type"], change["code"], change["v"]) for change in history[3:]]
    if way == "NOT NULL":
        assert changes == [("update_postimage", 2, 7), ("delete", 3, None)]
    else:
        assert changes == [("delete", 2, 2), ("insert", 2, 7), ("delete", None, 3)]


def test_a_publication_that_the_role_may_not_create_is_created_by_its_owner(
    postgres_database: Database, tmp_path: Path
) -> None:
    postgres_database.execute(
        'CREATE TABLE "Odd one" (id INT PRIMARY KEY)',
        "CREATE TABLE orders (id INT PRIMARY KEY)",
        "INSERT INTO orders VALUES (1)",
    )
    grants = ("USAGE ON SCHEMA public", "SELECT ON ALL TABLES IN SCHEMA public")
    with role(postgres_database, *grants, attributes="LOGIN REPLICATION") as endpoint:
        source = source_of(postgres_database, url=endpoint.url_with_password())
        job = write_job(
            tmp_path, source=source, sink={"type": "files", "path": str(tmp_path / "out"), "format": "jsonl"}
        )
        remedy = remedy_of(job, SourceNotUsableError)
        command = re.search(r"CREATE PUBLICATION .*\)", remedy)
        assert command is not None, remedy
        postgres_database.execute(command[0])
        run_epochs(job)
        postgres_database.execute("INSERT INTO orders VALUES (2)", 'INSERT INTO "Odd one" VALUES (1)')
        assert run_epochs(job) == ["stream"]
        assert [len(lines_in(tmp_path / "out", name)) for name in ("orders", "Odd one")] == [2, 1]


def lines_in(folder: Path, table: str) -> list[str]:
    """The rows and changes of a table's JSON Lines."""
    (inside,) = (path for path in folder.iterdir() if path.name.replace("%20", " ").endswith(f".{table}"))
    return [line for path in inside.glob("*.jsonl") for line in path.read_text().splitlines()]


def test_a_column_whose_type_is_refused_is_left_out(
    postgres_database: Database, mysql_database: Database, tmp_path: Path
) -> None:
    postgres_database.execute(
        'CREATE TABLE kinds (id INT PRIMARY KEY, "of what" regclass, v INT)',
        "INSERT INTO kinds VALUES (1, 'pg_class', 5)",
    )
    job = mirror_into(tmp_path, postgres_database, mysql_database)
    run_epochs(job, setting_in(remedy_of(job, SourceNotUsableError)))
    assert mysql_database.query("SELECT * FROM copy_kinds") == [(1, 5)]


@pytest.mark.parametrize("in_log", [False, True], ids=["snapshot", "log"])
def test_a_value_that_the_target_cant_hold_is_written_as_the_remedy_says(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, in_log: bool
) -> None:
    mysql_database.execute("CREATE TABLE notes (id INT PRIMARY KEY, v VARCHAR(9))", "INSERT INTO notes VALUES (1, 'a')")
    job = mirror_into(tmp_path, mysql_database, postgres_database)
    if in_log:
        run_epochs(job)
    mysql_database.execute("INSERT INTO notes VALUES (2, 'a\\0b')")
    setting = setting_in(remedy_of(job, SinkError, "sink.on_bad_value=stop"))
    run_epochs(job, "sink.on_bad_value=stop", setting)
    assert postgres_database.query("SELECT id, v FROM copy_notes ORDER BY id") == [(1, "a"), (2, None)]


def test_a_parked_table_of_mode_incremental_is_excluded(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    mysql_database.execute("CREATE TABLE orders (id INT PRIMARY KEY)", "CREATE TABLE notes (id INT PRIMARY KEY)")
    job = mirror_into(tmp_path, mysql_database, postgres_database, on_table_error="park")
    mode = "mode=incremental"
    run_epochs(job, mode)
    mysql_database.execute(
        "INSERT INTO orders VALUES (1)", "ALTER TABLE notes MODIFY id BIGINT", "INSERT INTO notes VALUES (1)"
    )
    run_epochs(job, mode)
    name = f"{mysql_database.name}.notes"
    assert f"Name {name} in source.exclude_tables" in parked_remedy(job, mode)
    mysql_database.execute("INSERT INTO orders VALUES (2)")
    excluded = f"source.exclude_tables=[{name}]"
    run_through(job, mode, excluded)
    assert postgres_database.query("SELECT id FROM copy_orders ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize("policy", ["park", "stop"])
def test_a_copy_that_lacks_a_row_is_read_again(postgres_database: Database, tmp_path: Path, policy: str) -> None:
    """The log leaves a long value out of an update, and somebody has removed the row. Other tables go on if they may."""
    database = postgres_database
    database.execute(
        "CREATE TABLE notes (id INT PRIMARY KEY, stars INT, body TEXT)",
        "ALTER TABLE notes ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO notes SELECT i, i, repeat('x', 9000) FROM generate_series(1, 3) AS i",
        "CREATE TABLE other (id INT PRIMARY KEY)",
    )
    tables = ["public.notes", "public.other"]
    job = mirror_into(tmp_path, database, database, tables=tables, on_table_error=policy)
    run_epochs(job)
    database.execute(
        "DELETE FROM copy_notes WHERE id = 2",
        "UPDATE notes SET stars = 7 WHERE id = 2",
        "UPDATE notes SET id = 30 WHERE id = 3",
        "INSERT INTO other VALUES (1)",
    )
    if policy == "park":
        run_epochs(job)
        assert database.query("SELECT id FROM copy_other") == [(1,)]
        remedy = parked_remedy(job)
    else:
        remedy = remedy_of(job, SinkError)
    assert "tidemark signal JOB.yaml resnapshot --table public.notes" in remedy
    resnapshot(load_job_file(job), [TableName("public", "notes")])
    run_epochs(job)
    for table, columns in (("notes", "id, stars, body"), ("other", "id")):
        held, wanted = (
            database.query(f"SELECT {columns} FROM {name} ORDER BY id") for name in (f"copy_{table}", table)
        )
        assert held == wanted


def test_a_character_that_utf8_lacks_is_left_behind(postgres_server: Server, tmp_path: Path) -> None:
    """A client with the database's encoding may store any byte. The server can't send it as UTF-8, in the log for ever."""
    with fresh_database(postgres_server, "ENCODING 'WIN1252' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0") as source:
        source.execute("CREATE TABLE notes (id int PRIMARY KEY, v text)", "INSERT INTO notes VALUES (1, '€')")
        sink = {"type": "files", "path": str(tmp_path / "out"), "format": "jsonl"}
        job = write_job(tmp_path, source=source_of(source), sink=sink)
        run_epochs(job)
        source.execute(r"INSERT INTO notes VALUES (2, convert_from('\x81', 'WIN1252')), (3, 'é')")
        remedy = remedy_of(job, LogPositionLostError)
        assert "Correct the value in the source." in remedy
        source.execute("UPDATE notes SET v = 'a' WHERE id = 2")
        run_epochs(job, setting_in(remedy))
        assert "é" in "".join(path.read_text() for path in (tmp_path / "out").rglob("*.jsonl"))
