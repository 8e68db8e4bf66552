"""VECTOR columns of MariaDB 11.7 and later, which its log and its results have as bytes."""

import struct
from pathlib import Path
from typing import Any

import pytest

from devtools.databases import fresh_database
from tests.support.epochs import run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database, FindServer

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(37)]

VECTORS = "id INT PRIMARY KEY, v VECTOR(3) NOT NULL, w VECTOR(100), VECTOR INDEX (v)"
ZEROS = f"Vec_FromText('[{'0,' * 98}1,0]')"


@pytest.mark.parametrize("target", ["mariadb 11.8", "mariadb 10.11", "mysql 9", "postgres 18"])
def test_they_are_copied_and_followed(target: str, find_server: FindServer, tmp_path: Path) -> None:
    kind, version = target.split()
    with (
        fresh_database(find_server("mariadb", version="11.8")) as source,
        fresh_database(find_server(kind, version=version)) as copies,
    ):
        source.execute(
            f"CREATE TABLE a ({VECTORS})",
            f"INSERT INTO a VALUES (1, Vec_FromText('[1,2,3]'), NULL), (2, Vec_FromText('[0.5,-1,0]'), {ZEROS})",
        )
        sink = {"type": "mirror", "url": copies.url, "table": "{table}"}
        job = write_job(tmp_path, source=source_of(source), sink=sink)
        run_epochs(job)
        assert rows(source) == rows(copies)
        source.execute(
            f"INSERT INTO a VALUES (3, Vec_FromText('[0,0,0]'), {ZEROS})",
            "UPDATE a SET v = Vec_FromText('[9,9,9]'), w = NULL WHERE id = 2",
            "UPDATE a SET id = 10 WHERE id = 1",
        )
        run_epochs(job)
        assert rows(source) == rows(copies)
        assert len(rows(copies)) == 3
        if target == "mariadb 11.8":
            assert [row[1] for row in copies.query("SHOW COLUMNS FROM a")][1:] == ["vector(3)", "vector(100)"]


def rows(database: Database) -> list[tuple[Any, ...]]:
    columns = "v, w" if database.kind == "postgres" else "HEX(v), HEX(w)"
    found = database.query(f"SELECT id, {columns} FROM a ORDER BY id")
    return [(number, *map(_floats, vectors)) for number, *vectors in found]


def _floats(vector: str | list[float] | None) -> list[float] | None:
    return [*struct.unpack(f"<{len(vector) // 8}f", bytes.fromhex(vector))] if isinstance(vector, str) else vector
