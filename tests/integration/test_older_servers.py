"""Servers older than those of the other tests. A source is judged by what it offers, a target is used with what it has."""

from pathlib import Path
from typing import Any

import pytest

from devtools.server import Server
from tests.support.cli import CommandLine, job_of
from tests.support.history import read_history
from tests.support.jobs import BY_DRIVER, run_to_end, source_of, write_job
from tests.support.servers import Database, FindServer, fresh_database

pytestmark = [pytest.mark.integration, pytest.mark.every_server]

WITHOUT_NAMES = [pytest.param("mysql", "5.7", id="mysql5.7"), pytest.param("mariadb", "10.2", id="mariadb10.2")]
"""Servers whose log does not name columns. MariaDB names them since 10.5, so 10.3 and 10.4 are refused alike."""
OLDEST = [pytest.param("mysql", "8.0", id="mysql8.0"), pytest.param("mariadb", "10.5", id="mariadb10.5")]
"""Sources of the oldest major versions that are not refused."""

ORDERS = (
    "id BIGINT UNSIGNED PRIMARY KEY, note VARCHAR(200), long_note TEXT, amount DECIMAL(12,2), state ENUM('new', 'paid'), "
    "flags SET('a', 'b'), at DATETIME(6), day DATE, took TIME(3), raw VARBINARY(20), bits BIT(9), real_ DOUBLE, "
    "made TIMESTAMP(3) NULL"
)
ROW = (
    "'Zoë 💡', REPEAT('x', 300), -1.25, 'paid', 'a,b', '2020-02-29 23:59:59.123456', '9999-12-31', '-838:59:59', x'00ff', "
    "b'100000001', 0.1, '2001-09-09 01:46:40.001'"
)


@pytest.mark.parametrize(("kind", "version"), WITHOUT_NAMES)
def test_a_log_without_column_names_is_refused_in_plain_words(
    tidemark: CommandLine, find_server: FindServer, tmp_path: Path, kind: str, version: str
) -> None:
    with fresh_database(find_server(kind, version)) as database:
        database.execute("CREATE TABLE orders (id INT PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
        job = job_of(tmp_path, database)
        commands = (("validate", job, "--connect"), ("plan", job), ("run", job), ("init", database.url))
        for command in commands:
            ended = tidemark(*command)
            assert ended.code == 3
            assert "can't name columns in its log: it has no binlog_row_metadata" in ended.last_line
            assert f"Use {'MySQL 8.0.1' if kind == 'mysql' else 'MariaDB 10.5.0'} or newer" in ended.last_line
    assert not (tmp_path / "out").exists()
    copy_from_a_newer_server(tidemark, find_server(kind), tmp_path)


def copy_from_a_newer_server(tidemark: CommandLine, server: Server, folder: Path) -> None:
    """The job was not refused for anything else, and has no state of the older server."""
    with fresh_database(server) as database:
        database.execute("CREATE TABLE orders (id INT PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
        ended = tidemark("run", job_of(folder, database), *BY_DRIVER)
        assert ended.code == 0, ended.err
        assert read_history(folder / "out", database.schema, "orders")["id"].to_pylist() == [1]


def rows(database: Database, table: str) -> list[tuple[Any, ...]]:
    return database.query(f"SELECT * FROM {table} ORDER BY id")


def follow(source: Database, target: Database, folder: Path) -> None:
    """Copies a table, then its changes and an added column, and compares."""
    source.execute(
        f"CREATE TABLE orders ({ORDERS})",
        *(f"INSERT INTO orders VALUES ({key}, {ROW})" for key in (1, 2, 3, "18446744073709551615")),
    )
    sink = {"type": "mirror", "url": target.url, "table": "copy_{table}", "on_schema_change": "evolve"}
    job = write_job(folder, source=source_of(source), sink=sink)
    run_to_end(job, *BY_DRIVER)
    assert rows(target, "copy_orders") == rows(source, "orders")
    source.execute(
        f"INSERT INTO orders VALUES (4, {ROW})",
        "UPDATE orders SET id = 5, note = NULL WHERE id = 1",
        "DELETE FROM orders WHERE id = 2",
        "ALTER TABLE orders ADD COLUMN seen INT NOT NULL DEFAULT 7, ADD COLUMN place VARCHAR(20) DEFAULT 'here'",
        "UPDATE orders SET seen = 8 WHERE id = 3",
    )
    run_to_end(job, *BY_DRIVER)
    assert rows(target, "copy_orders") == rows(source, "orders")


@pytest.mark.parametrize(("kind", "version"), OLDEST)
def test_the_oldest_sources_are_copied_and_followed(
    find_server: FindServer, mysql_database: Database, tmp_path: Path, kind: str, version: str
) -> None:
    with fresh_database(find_server(kind, version)) as source:
        follow(source, mysql_database, tmp_path)


@pytest.mark.parametrize(("kind", "version"), [*WITHOUT_NAMES, *OLDEST])
def test_an_older_target_is_a_mirror(
    find_server: FindServer, mysql_database: Database, tmp_path: Path, kind: str, version: str
) -> None:
    with fresh_database(find_server(kind, version)) as target:
        follow(mysql_database, target, tmp_path)
