"""Tables of MySQL and MariaDB whose key begins with an ENUM, SET, FLOAT, DOUBLE or UUID: they are split, and their rows move
between splits while these are read."""

import contextlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.epochs import die_at, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.readers.mysql import connect as mysql_connect
from tidemark.readers.mysql.keys import uuid_order
from tidemark.readers.mysql.snapshot import split_reader
from tidemark.readers.mysql.snapshot.split_reader import ReadHooks
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.plan import PlanRecord
from tidemark.state.table import TableId

pytestmark = pytest.mark.integration

TYPES = {
    "enum": "ENUM('d', 'c', 'ö', 'a', '2', '1', '0')",
    "enum and invalid": "ENUM('d', 'c', 'ö', 'a', '2', '1', '0')",
    "set": "SET('c', 'ö', '1', '0')",
    "float": "FLOAT",
    "double": "DOUBLE",
    "uuid": "UUID",
}
UUIDS = (
    "00000000-0000-0000-0000-000000000000",
    "00000000-0000-1000-8000-000000000002",
    "ffffffff-ffff-4fff-bfff-000000000001",
    "01234567-89ab-4def-8123-456789abcdef",
    "01234567-89ab-5def-c123-456789abcdee",
    "00000000-0000-1000-8000-ffffffffffff",
    "01890000-0000-7000-8000-000000000000",
    "01890000-0000-7000-8000-000000000001",
    "ff000000-0000-6000-8000-000000000000",
    "80000000-0000-8000-8100-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "00000000-0000-4000-0000-00000000000a",
)
VALUES: dict[str, Sequence[str]] = {
    "enum": [str(number) for number in range(1, 8)],
    "enum and invalid": [str(number) for number in range(8)],
    "set": [str(number) for number in range(16)],
    "float": [
        *("-3.4028234663852886e38", "-1e0", "-0.0e0", "0e0", "1.401298464324817e-45", "0.1e0", "0.10000000894069672e0"),
        *("16777216e0", "1e30", "3.4028234663852886e38"),
    ],
    "double": [
        *("-1.7976931348623157e308", "-1e0", "-0.0e0", "0e0", "5e-324", "0.1e0", "0.10000000000000002e0"),
        *("1e16", "1e300", "1.7976931348623157e308"),
    ],
    "uuid": [f"'{text}'" for text in UUIDS],
}
ROWS = 36
NO_KEYS_OF_MIRRORS = {"float", "double", "enum and invalid"}
"""A mirror finds no rows by such a key, or refuses its values."""


CASES = [
    pytest.param(server, kind, sink, id=f"{server.removesuffix('_database')}-{kind}-{sink}")
    for kind in TYPES
    for server in ("mysql_database", "mariadb_database")
    for sink in ("files", "mirror")
    if not (kind == "uuid" and server == "mysql_database") and not (kind in NO_KEYS_OF_MIRRORS and sink == "mirror")
]


def changed(source: Database, kind: str, chance: random.Random) -> Callable[[], None]:
    """Returns a function that changes a few rows: mostly it gives them other keys."""
    values = VALUES[kind]

    def act() -> None:
        with source.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_mode = ''")
            for _ in range(4):
                n, k = chance.randrange(ROWS), chance.choice(values)
                cursor.execute(
                    chance.choice(
                        [
                            f"UPDATE t SET k = {k}, v = v + 1 WHERE n = {n}",
                            f"UPDATE t SET k = {k}, v = v + 1 WHERE n = {n}",
                            f"UPDATE t SET v = v + 1 WHERE n = {n}",
                            f"DELETE FROM t WHERE n = {n}",
                            f"INSERT IGNORE INTO t VALUES ({k}, {n}, 100)",
                        ]
                    )
                )
            connection.commit()

    return act


def create(source: Database, kind: str) -> None:
    """`n` alone is unique, too, so that a row can be told from others whatever its key is shown as."""
    source.execute(
        f"CREATE TABLE t (k {TYPES[kind]} NOT NULL, n INT NOT NULL, v INT NOT NULL, PRIMARY KEY (k, n), UNIQUE (n))"
    )
    values = VALUES[kind]
    rows = ", ".join(f"({values[n % len(values)]}, {n}, 0)" for n in range(ROWS))
    with source.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute(f"INSERT INTO t VALUES {rows}")
        connection.commit()


def folded(folder: Path, source: Database) -> list[tuple[Any, ...]]:
    files = sorted((folder / "out" / f"{source.schema}.t").glob("**/*.parquet"))
    history = pa.concat_tables([pq.read_table(file) for file in files], promote_options="default")
    history = history.sort_by([("_commit_version", "ascending"), ("_seq", "ascending")])
    rows: dict[tuple[Any, int], tuple[Any, ...]] = {}
    for row in history.to_pylist():
        key = row["k"], row["n"]
        if row["_change_type"] == "truncate":
            rows.clear()
        elif row["_change_type"] == "delete":
            del rows[key]
        elif row["_change_type"] == "update_preimage":
            continue
        else:
            rows[key] = (row["n"], row["k"], row["v"])
    return sorted(rows.values())


def expected(source: Database, kind: str) -> list[tuple[Any, ...]]:
    shown = "k + 0e0" if kind in {"float", "double"} else "k"
    return sorted(source.query(f"SELECT n, {shown}, v FROM t IGNORE INDEX (PRIMARY)"))


def split_counts(folder: Path) -> int:
    checkpoint = Checkpoint.at(str(folder / "checkpoint"))
    records: list[PlanRecord] = [checkpoint.plan(epoch) for epoch in checkpoint.plan_epochs()]
    return max(table.planned_splits for record in records for table in record.state.tables)


@pytest.mark.parametrize(("server", "kind", "sink"), CASES)
def test_rows_that_move_between_splits_are_copied_through_deaths(
    server: str, kind: str, sink: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source: Database = request.getfixturevalue(server)
    create(source, kind)
    target = {"type": "files", "path": str(tmp_path / "out")}
    if sink == "mirror":
        target = {"type": "mirror", "url": f"{source.server.url}{source.name}", "table": "copy_{table}"}
    job = write_job(
        tmp_path,
        source=source_of(source, tables=[f"{source.schema}.t"]),
        checkpoint=str(tmp_path / "checkpoint"),
        snapshot={"split_rows": 2, "parallelism": 2},
        sink=target,
    )
    act = changed(source, kind, random.Random(f"{server} {kind} {sink}"))
    hooks = ReadHooks(after_low=act, before_select=act, after_select=act)
    monkeypatch.setattr(split_reader, "ReadHooks", lambda: hooks)
    run_epochs(job, at_most=1)
    die_at(job, "sink.before_commit")
    run_epochs(job, at_most=2)
    die_at(job, "driver.epoch_written")
    run_epochs(job)
    assert split_counts(tmp_path) >= 7
    act()
    run_epochs(job)
    if sink == "mirror":
        assert sorted(source.query("SELECT n, k, v FROM copy_t")) == expected(source, kind)
    else:
        assert folded(tmp_path, source) == expected(source, kind)


ALTERED = {
    "in front": "ENUM('new', 'd', 'c', 'ö', 'a', '2', '1', '0')",
    "at the end": "ENUM('d', 'c', 'ö', 'a', '2', '1', '0', 'new')",
    "in another order": "ENUM('0', '1', '2', 'a', 'ö', 'c', 'd')",
}


@pytest.mark.parametrize(("altered", "at_most"), [("in front", 1), ("at the end", 3), ("in another order", 3)])
@pytest.mark.parametrize("server", ["mysql_database", "mariadb_database"])
def test_labels_that_change_while_rows_are_copied(
    server: str, altered: str, at_most: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The labels get other numbers, by which the splits were divided."""
    source: Database = request.getfixturevalue(server)
    create(source, "enum")
    job = write_job(
        tmp_path,
        source=source_of(source, tables=[f"{source.schema}.t"], on_table_error="park"),
        checkpoint=str(tmp_path / "checkpoint"),
        snapshot={"split_rows": 2, "parallelism": 2},
        sink={
            "type": "mirror",
            "url": f"{source.server.url}{source.name}",
            "table": "copy_{table}",
            "on_schema_change": "evolve",
        },
    )
    run_epochs(job, at_most=at_most)
    source.execute(f"ALTER TABLE t MODIFY k {ALTERED[altered]} NOT NULL", "UPDATE t SET k = 'd', v = 7 WHERE n % 5 = 0")
    if "new" in ALTERED[altered]:
        source.execute("UPDATE t SET k = 'new' WHERE n % 7 = 0", "INSERT INTO t VALUES ('new', 1000, 0)")
    run_epochs(job)
    source.execute("UPDATE t SET v = 8 WHERE n % 4 = 0")
    run_epochs(job)
    assert sorted(source.query("SELECT n, k, v FROM copy_t")) == expected(source, "enum")


def test_a_uuid_keyed_table_that_is_locked_when_a_job_starts_again_is_followed(
    mariadb_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its order can't be asked then. It need not be: the rows were read before."""
    source = mariadb_database
    create(source, "uuid")
    job = write_job(
        tmp_path,
        source=source_of(source, tables=[f"{source.schema}.t"]),
        checkpoint=str(tmp_path / "checkpoint"),
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    run_epochs(job)
    source.execute("UPDATE t SET v = 5 WHERE n < 9")
    monkeypatch.setitem(mysql_connect._SESSION, "lock_wait_timeout", "1")
    with contextlib.closing(source.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("LOCK TABLES t WRITE")
        run_epochs(job)
    assert folded(tmp_path, source) == expected(source, "uuid")


def test_the_order_of_a_table_that_is_gone_is_not_known(mariadb_database: Database) -> None:
    with contextlib.closing(mariadb_database.connect()) as connection:
        assert not uuid_order.orders_as_known(connection, TableId(mariadb_database.name, "gone"), "k")
