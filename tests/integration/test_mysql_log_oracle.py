"""Random transactions on real servers: the log reader against mysql-replication, row by row, also while connections die."""

import contextlib
import random
import threading
import warnings
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pymysql
import pytest
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import GtidEvent, MariadbGtidEvent
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from tests.support.log_reading import Change, LoggedServer, changes_of, logged
from tidemark.readers.mysql.binlog import reading as log_reading
from tidemark.readers.mysql.binlog.reading_state import ReadOptions
from tidemark.state.change_batch import ChangeType
from tidemark.state.log_range import LogRange

__all__ = ["logged"]
pytestmark = pytest.mark.integration

TABLES = ("a", "b", "c")
CREATE = (
    "CREATE TABLE {} (id INT, part SMALLINT UNSIGNED, name VARCHAR(40) CHARACTER SET utf8mb4, price DECIMAL(12, 3), "
    "day DATE, moment DATETIME(6), big BIGINT, ratio DOUBLE, raw VARBINARY(30), kind ENUM('x', 'y', 'ü') "
    "CHARACTER SET utf8mb4, PRIMARY KEY (id, part))"
)


@pytest.fixture
def tables(logged: LoggedServer) -> LoggedServer:
    logged.execute("DROP TABLE IF EXISTS a, b, c", *(CREATE.format(name) for name in TABLES))
    logged.forget()
    return logged


def write(server: LoggedServer, seed: int, transactions: int) -> None:
    """Multi-table transactions of every kind, by one session."""
    rng = random.Random(seed)
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        for _ in range(transactions):
            if not server.is_mariadb and rng.random() < 0.2:
                cursor.execute(f"SET SESSION binlog_transaction_compression = {rng.choice(['ON', 'OFF'])}")
            connection.begin()
            savepoints: list[str] = []
            for _ in range(rng.choice([1, 1, 2, 5, 12])):
                _statement(rng, cursor, savepoints)
            if rng.random() < 0.15:
                connection.rollback()
            else:
                connection.commit()
            if rng.random() < 0.02:
                cursor.execute("FLUSH BINARY LOGS")


def _statement(rng: random.Random, cursor: Any, savepoints: list[str]) -> None:
    table = rng.choice(TABLES)
    low = rng.randint(0, 60)
    match rng.randint(0, 7):
        case 0 | 1:
            rows = [_row(rng) for _ in range(rng.choice([1, 1, 3, 40]))]
            cursor.executemany(f"REPLACE INTO {table} VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)", rows)
        case 2:
            cursor.execute(
                f"UPDATE {table} SET name = %s, big = IF(big > 0, big - 1, big + 1) WHERE id > %s LIMIT 30",
                (_text(rng), low),
            )
        case 3:
            cursor.execute(f"UPDATE IGNORE {table} SET id = id + %s WHERE id > %s LIMIT 9", (rng.randint(1, 9), low))
        case 4:
            cursor.execute(
                f"UPDATE {table} SET raw = NULL, kind = NULL, day = NULL, ratio = -ratio WHERE id = %s", (low,)
            )
        case 5:
            cursor.execute(f"DELETE FROM {table} WHERE id BETWEEN %s AND %s", (low, low + rng.randint(0, 10)))
        case 6:
            savepoints.append(f"s{rng.randint(1, 2)}")
            cursor.execute(f"SAVEPOINT {savepoints[-1]}")
        case 7 if savepoints:
            cursor.execute(f"ROLLBACK TO {savepoints[-1]}")


def _text(rng: random.Random) -> str | None:
    return rng.choice([None, "", "ascii", "ñandú", "表", "😀" * 3, "x" * 39])


def _row(rng: random.Random) -> tuple[Any, ...]:
    return (
        rng.randint(-5, 80),
        rng.choice([0, 1, 65535]),
        _text(rng),
        rng.choice([None, Decimal("-123456789.125"), Decimal("0.001"), Decimal(rng.randint(-999, 999))]),
        rng.choice([None, date(1000, 1, 1), date(2024, 2, 29), date(9999, 12, 31)]),
        rng.choice([None, datetime(1970, 1, 1), datetime(2024, 2, 29, 23, 59, 59, 999999)]),
        rng.choice([None, -(2**63), 2**63 - 1, rng.randint(-99, 99)]),
        rng.choice([None, 0.1, -1e300, 5e-324]),
        rng.choice([None, b"", b"\0\xff\0", rng.randbytes(30)]),
        rng.choice([None, "x", "ü"]),
    )


def plain(value: Any) -> Any:
    """Values in the form that both readers can express."""
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def theirs(server: LoggedServer, part: LogRange) -> list[tuple[Any, ...]]:
    """The rows of mysql-replication with transaction and position, in Tidemark's form: an update is one change or
    two."""
    stream = BinLogStreamReader(
        connection_settings={"host": server.server.host, "port": server.server.port, "user": "root", "password": ""},
        server_id=77,
        log_file=part.start.file,
        log_pos=part.start.pos,
        resume_stream=True,
        blocking=False,
        only_schemas=["d"],
        only_tables=list(TABLES),
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent, GtidEvent, MariadbGtidEvent],
        is_mariadb=False,
    )
    found: list[tuple[Any, ...]] = []
    transaction, seq = None, 0
    with warnings.catch_warnings(), contextlib.closing(stream):
        warnings.simplefilter("ignore")
        for event in stream:
            if isinstance(event, GtidEvent | MariadbGtidEvent):
                transaction, seq = event.gtid, 0
                continue
            for row in event.rows:
                for kind, values in _changes(event, row):
                    found.append((transaction, seq, event.table, kind, {k: plain(v) for k, v in values.items()}))
                    seq += 1
    return found


def _changes(event: Any, row: dict[str, Any]) -> list[tuple[ChangeType, dict[str, Any]]]:
    if isinstance(event, WriteRowsEvent):
        return [(ChangeType.INSERT, row["values"])]
    if isinstance(event, DeleteRowsEvent):
        return [(ChangeType.DELETE, row["values"])]
    before, after = row["before_values"], row["after_values"]
    if (before["id"], before["part"]) == (after["id"], after["part"]):
        return [(ChangeType.UPDATE_POSTIMAGE, after)]
    return [(ChangeType.DELETE, before), (ChangeType.INSERT, after)]


META = {"table", "_change_type", "_commit_version", "_commit_timestamp", "_seq", "_txn_id", "_is_snapshot"}


def ours(changes: list[Change]) -> list[tuple[Any, ...]]:
    return [
        (
            change["_txn_id"],
            change["_seq"],
            change["table"],
            change["_change_type"],
            {name: plain(value) for name, value in change.items() if name not in META},
        )
        for change in changes
    ]


SMALL = ReadOptions(receive_bytes=12_000, unpack_bytes=6_000, column_buffer_bytes=170 * 60)


@pytest.mark.servers_in_turn("logged", always="mysql-gtid")
@pytest.mark.parametrize("seed", [1, 2])
def test_rows_are_those_of_mysql_replication(tables: LoggedServer, seed: int) -> None:
    """mysql-replication skips compressed transactions, so those are compared with what the same seed writes
    uncompressed."""
    if not tables.is_mariadb:
        tables.execute("SET GLOBAL binlog_transaction_compression = OFF")
    write(_Uncompressed(tables), seed, 120)
    part = tables.range()
    expected = theirs(tables, part)
    assert len(expected) > 500
    if tables.name == "mysql-nogtid":  # it does not tell where an anonymous transaction begins
        expected = [(None, None, *row[2:]) for row in expected]
    for options in (ReadOptions(), SMALL):
        found = ours(list(changes_of(tables.reader(*TABLES, options=options), part)))
        if tables.name == "mysql-nogtid":
            found = [(None, None, *row[2:]) for row in found]
        assert found == expected


class _Uncompressed(LoggedServer):
    """The same server, without a session's right to compress."""

    def __init__(self, server: LoggedServer) -> None:
        self.__dict__.update(server.__dict__)

    @property
    def is_mariadb(self) -> bool:
        return True


def content(server: LoggedServer) -> dict[str, list[tuple[Any, ...]]]:
    return {name: sorted(server.query(f"SELECT * FROM {name}"), key=lambda row: row[:2]) for name in TABLES}


def applied(changes: list[Change]) -> dict[str, list[tuple[Any, ...]]]:
    """The tables that result from applying the changes to empty ones. Every change must fit."""
    rows: dict[str, dict[tuple[int, int], tuple[Any, ...]]] = {name: {} for name in TABLES}
    for change in changes:
        table, key = rows[change["table"]], (change["id"], change["part"])
        values = tuple(value for name, value in change.items() if name not in META)
        match change["_change_type"]:
            case ChangeType.INSERT:
                assert key not in table
                table[key] = values
            case ChangeType.UPDATE_POSTIMAGE:
                assert key in table
                table[key] = values
            case ChangeType.DELETE:
                assert table.pop(key) == values
    return {name: sorted(table.values(), key=lambda row: row[:2]) for name, table in rows.items()}


@pytest.mark.pitfall(25)
@pytest.mark.parametrize("seed", [3])
def test_rows_make_the_tables_again(tables: LoggedServer, seed: int) -> None:
    """Three sessions write at a time, with compression; the log is read in pieces."""
    writers = [threading.Thread(target=_write_patiently, args=(tables, seed + i)) for i in range(3)]
    for writer in writers:
        writer.start()
    changes = []
    while any(writer.is_alive() for writer in writers):
        changes += tables.read(*TABLES, options=SMALL)
    for writer in writers:
        writer.join()
    changes += tables.read(*TABLES, options=SMALL)
    assert applied(changes) == content(tables)


def _write_patiently(server: LoggedServer, seed: int) -> None:
    """Sessions deadlock with each other: the transaction is given up, and a new session goes on."""
    for step in range(6):
        with contextlib.suppress(pymysql.err.OperationalError):
            write(server, seed * 100 + step, 15)


@pytest.mark.pitfall(28)
@pytest.mark.pitfall(50)
def test_killed_connections_lose_and_repeat_nothing(tables: LoggedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another session kills the connection whenever a batch was handed out, while the network can't hold the rest."""
    tables.execute("DROP TABLE IF EXISTS big", "CREATE TABLE big (id INT PRIMARY KEY, v LONGTEXT)")
    tables.forget()
    with contextlib.closing(tables.connect()) as connection, connection.cursor() as cursor:
        for number in range(40):
            cursor.execute(f"INSERT INTO big VALUES ({10 * number}, REPEAT('x', 400000)), ({10 * number + 1}, 'y')")
        connection.begin()
        for number in range(40):
            cursor.execute(f"INSERT INTO big VALUES ({10 * number + 2}, REPEAT('z', 400000)), ({10 * number + 3}, 'y')")
        connection.commit()
    part = tables.range()
    expected = list(changes_of(tables.reader("big"), part))
    monkeypatch.setattr(log_reading, "FIRST_DELAY_SECONDS", 0.0)
    reader = tables.reader("big", options=ReadOptions(receive_bytes=1_500_000))
    found: list[Change] = []
    killed = 0
    with contextlib.closing(tables.connect()) as connection, connection.cursor() as cursor:
        for batch in reader.read(part):
            found += [{"table": batch.table.name, **row} for row in batch.rows.to_pylist()]
            killed += _kill_dumps(cursor, tables.server.processlist)
    assert sorted(found, key=_place) == expected
    assert killed > 1
    assert reader.reconnects > 0


def _place(change: Change) -> tuple[int, int]:
    return change["_commit_version"], change["_seq"]


def _kill_dumps(cursor: Any, processlist: str) -> int:
    cursor.execute(f"SELECT id FROM {processlist} WHERE command LIKE 'Binlog Dump%'")
    ids = [row[0] for row in cursor.fetchall()]
    for number in ids:
        with contextlib.suppress(pymysql.err.OperationalError):  # it has ended meanwhile
            cursor.execute(f"KILL {number}")
    return len(ids)


@pytest.mark.pitfall(49)
def test_two_readers_with_the_same_server_ids(tables: LoggedServer) -> None:
    """A retry and a speculative attempt may have the same server ids."""
    write(tables, 5, 60)
    part = tables.range()
    expected = list(changes_of(tables.reader(*TABLES), part))
    found: list[list[Change]] = [[], []]

    def read(which: int) -> None:
        found[which] = list(changes_of(tables.reader(*TABLES, options=SMALL), part))

    threads = [threading.Thread(target=read, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected, expected]
