"""CHAR keys of MariaDB by a collation that does not ignore trailing spaces: their index and SQL compare values differently."""

from pathlib import Path

import pytest

from tests.support.epochs import run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database

pytestmark = pytest.mark.integration

KEYS = [
    "",
    "\0",
    "\t",
    "\x01",
    "\u0301",
    "a",
    "a\t",
    "a\0",
    "a\u0301",
    "e\u200d",
    "\u00ad",
    "b",
    "\u0301b",
    "A\x1f",
    "あ",
]
LATER = ["\x02", "a\x1f", "\0a", "b\t", "\u0301\u0301", "c"]


@pytest.mark.parametrize(
    "collation", ["utf8mb4_uca1400_nopad_as_ci", "utf8mb4_uca1400_nopad_as_cs", "utf8mb4_nopad_bin"]
)
def test_rows_are_copied_changed_and_deleted(collation: str, mariadb_database: Database, tmp_path: Path) -> None:
    source = mariadb_database
    source.execute(
        f"CREATE TABLE texts (k CHAR(8) COLLATE {collation} NOT NULL, n INT NOT NULL, v INT, PRIMARY KEY (k, n))"
    )
    with source.connect() as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO texts VALUES (%s, %s, 0)", [(key, n) for n, key in enumerate(KEYS)])
        connection.commit()
        sink = {"type": "mirror", "url": f"{source.server.url}{source.name}", "table": "copy_{table}"}
        path = write_job(
            tmp_path,
            source=source_of(source, tables=[f"{source.schema}.texts"]),
            snapshot={"split_rows": 2, "parallelism": 2},
            sink=sink,
        )
        run_epochs(path)
        assert _rows(source, "copy_texts") == _rows(source, "texts")
        cursor.executemany("INSERT INTO texts VALUES (%s, %s, 1)", [(key, 100 + n) for n, key in enumerate(LATER)])
        cursor.execute("UPDATE texts SET v = 2 WHERE n % 3 = 0")
        cursor.execute("DELETE FROM texts WHERE n % 4 = 1")
        connection.commit()
    run_epochs(path)
    assert _rows(source, "copy_texts") == _rows(source, "texts")


def _rows(database: Database, table: str) -> list[tuple[object, ...]]:
    return sorted(database.query(f"SELECT n, HEX(k), v FROM {table} IGNORE INDEX (PRIMARY)"))
