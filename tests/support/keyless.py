"""Table `t` without a key: its rows, its writer, and a check that files hold its rows."""

import contextlib
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from tests.support.servers import Database

ROWS = 6000
NUMBERS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"
CREATE_MYSQL = (
    "CREATE TABLE t (uid bigint, version int, note text)",
    *(
        f"INSERT INTO t {NUMBERS} SELECT (i + {first}) % 4000, 1, repeat('x', (i + {first}) % 90) FROM n"
        for first in range(0, ROWS, 1000)
    ),
    "ANALYZE TABLE t",
)
CREATE = (
    "CREATE TABLE t (uid bigint, version int, note text)",
    "ALTER TABLE t REPLICA IDENTITY FULL",
    f"INSERT INTO t SELECT i % 4000, 1, repeat('x', (i % 90)::int) FROM generate_series(1, {ROWS}) i",  # some are alike
    "ANALYZE t",
)
HOLDERS = (
    "datname = current_database() AND application_name = 'tidemark' AND state = 'idle in transaction' "
    "AND backend_xmin IS NOT NULL"
)


class KeylessWriter(threading.Thread):
    """Changes rows of `t`, and twice, on PostgreSQL, ends a session that shares a snapshot."""

    def __init__(self, database: Database) -> None:
        super().__init__(daemon=True)
        self._database, self._stopped, self.ended = database, threading.Event(), 0

    def __enter__(self) -> "KeylessWriter":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join()

    def run(self) -> None:
        number = 0
        with contextlib.closing(self._database.connect()) as connection, connection.cursor() as cursor:
            while not self._stopped.wait(0.01):
                number += 1
                cursor.execute("UPDATE t SET version = version + 1 WHERE uid = %s", (number * 37 % 4000,))
                cursor.execute("INSERT INTO t VALUES (%s, 1, 'new'), (%s, 1, 'new')", (number, number))
                if self._database.kind == "postgres" and number % 10 == 0 and self.ended < 2:
                    cursor.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {HOLDERS}")
                    self.ended += len(cursor.fetchall())
                if number % 3 == 0:
                    cursor.execute("DELETE FROM t WHERE uid = %s", (number * 11 % 4000,))


def assert_keyless_copied(folder: Path, database: Database, format_: str = "parquet", table: str = "t") -> None:
    """Equal rows are told apart only by their number."""
    copy = Counter[tuple[object, ...]]()
    root = folder / "out" / f"{database.schema}.{table}"
    if format_ == "parquet":
        changes = ds.dataset(root, format="parquet", exclude_invalid_files=False).to_table().to_pylist()
    else:
        changes = [json.loads(line) for path in root.rglob("*.jsonl") for line in path.read_text().splitlines()]
    emptied = max((_place(change) for change in changes if change["_change_type"] == "truncate"), default=(-1, -1))
    for change in (change for change in changes if _place(change) > emptied):
        copy[change["uid"], change["version"], change["note"]] += {"insert": 1, "delete": -1}[change["_change_type"]]
    assert {row: count for row, count in copy.items() if count} == Counter(database.query(f"SELECT * FROM {table}"))


def _place(change: dict[str, Any]) -> tuple[int, int]:
    return change["_commit_version"], change["_seq"]
