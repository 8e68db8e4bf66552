"""Every type with its edge values by SELECT, by replay and by log: the same values, and those that the server shows.

The servers are set as unkindly as they can be: a time zone with summer time, and SQL modes that change what a SELECT
returns and how a literal is read. Whether GTIDs are on makes no difference to a row image, so there is one MySQL.
"""

import contextlib
import zoneinfo
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from tests.support.all_types import create_all_types, insert_edge_rows
from tests.support.mysql_snapshot import SourceTable, once
from tests.support.reference_rows import differences, reference_rows
from tests.support.servers import Database, FindServer, fresh_database
from tidemark.readers.mysql.snapshot.split_reader import ReadHooks
from tidemark.state.change_batch import ChangeType

pytestmark = pytest.mark.integration

SQL_MODE = "ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,NO_ZERO_DATE,STRICT_ALL_TABLES"
ZONE = "Europe/Berlin"
LATER = 1000


@pytest.fixture(
    params=[("mysql", None), ("mariadb", None), ("mariadb", "11.8")], ids=lambda p: "-".join(filter(None, p))
)
def odd_database(request: pytest.FixtureRequest, find_server: FindServer) -> Iterator[Database]:
    kind, version = request.param
    server = find_server(kind, version, sql_mode=SQL_MODE)
    with contextlib.closing(server.connect()) as connection:
        _set_global_zone(connection)
    with fresh_database(server) as database:
        yield database


def _set_global_zone(connection: Any) -> None:
    """Fills the server's tables of time zones, which are empty, with one zone's changes of this time. Tests in other processes
    may have the same server."""
    zone, second = zoneinfo.ZoneInfo(ZONE), timedelta(seconds=1)
    with connection.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK('zones', 60)")  # until the connection ends
        assert cursor.fetchone()[0] == 1
        cursor.execute("SELECT COUNT(*) FROM mysql.time_zone_name WHERE name = %s", (ZONE,))
        if cursor.fetchone()[0] == 0:
            cursor.execute("INSERT INTO mysql.time_zone (Use_leap_seconds) VALUES ('N')")
            number = cursor.lastrowid
            cursor.execute("INSERT INTO mysql.time_zone_name VALUES (%s, %s)", (ZONE, number))
            for kind, hours in enumerate((1, 2)):
                cursor.execute(
                    "INSERT INTO mysql.time_zone_transition_type VALUES (%s, %s, %s, %s, %s)",
                    (number, kind, hours * 3600, kind, ("CET", "CEST")[kind]),
                )
            hour = datetime(2020, 1, 1, tzinfo=timezone.utc)
            while hour.year < 2038:
                hour += timedelta(hours=1)
                after, before = (moment.astimezone(zone).dst() for moment in (hour, hour - second))
                if after != before:
                    cursor.execute(
                        "INSERT INTO mysql.time_zone_transition VALUES (%s, %s, %s)",
                        (number, int(hour.timestamp()), int(bool(after))),
                    )
        cursor.execute("SET GLOBAL time_zone = %s", (ZONE,))


def logged(table: SourceTable) -> pa.Table:
    """The log from the table's anchor on: the captured columns, then those of a change."""
    rows = pa.Table.from_batches(table.batches(table.anchor))
    assert rows.select(table.schema.arrow_schema().names).schema == table.schema.arrow_schema()
    rows.validate(full=True)
    return rows


def of_type(rows: pa.Table, kind: ChangeType) -> list[dict[str, Any]]:
    """The captured columns of the changes of one type, in order of id."""
    plain = rows.filter(pa.compute.equal(rows["_change_type"], int(kind))).sort_by("id")
    return [{k: v for k, v in row.items() if not k.startswith("_")} for row in plain.to_pylist()]


def with_ids(rows: list[dict[str, Any]], step: int) -> list[dict[str, Any]]:
    """The rows under other ids, which no other column is computed from."""
    return [{**row, "id": row["id"] + step} for row in rows]


@pytest.mark.pitfall(35)
@pytest.mark.pitfall(36)
@pytest.mark.pitfall(37)
@pytest.mark.pitfall(38)
def test_half_by_select_half_by_log(odd_database: Database) -> None:
    """Covers each image of the log: an insert, before and after an update of the key, after another update, a
    delete."""
    connection = odd_database.connect()
    create_all_types(connection)
    count = insert_edge_rows(connection)
    table = SourceTable(odd_database, "all_types")
    early = table.read().rows
    assert early.schema == table.schema.arrow_schema()
    by_select = early.sort_by("id").to_pylist()
    expected = reference_rows(odd_database.connect(), table.schema)
    assert len(by_select) == count
    assert not differences(by_select, expected)

    assert insert_edge_rows(connection, first_id=LATER) == count
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE all_types SET id = id + {LATER} WHERE id >= {LATER} ORDER BY id DESC")
        cursor.execute(f"DELETE FROM all_types WHERE id >= {2 * LATER}")
        cursor.execute("UPDATE all_types SET tinyint_1 = IFNULL(tinyint_1, 0) ^ 1")
    changes = logged(table)
    inserted = of_type(changes, ChangeType.INSERT)
    deleted = of_type(changes, ChangeType.DELETE)
    for step, rows in ((1, inserted[:count]), (2, inserted[count:]), (1, deleted[:count]), (2, deleted[count:])):
        assert not differences(rows, with_ids(expected, step * LATER))
    updated = of_type(changes, ChangeType.UPDATE_POSTIMAGE)
    assert not differences(updated, reference_rows(odd_database.connect(), table.schema))
    assert len(updated) == count


@pytest.mark.pitfall(37)
def test_a_split_that_is_half_replayed(odd_database: Database) -> None:
    """Rows that come between SELECT and high are decoded from the log, and are beside the selected ones."""
    connection = odd_database.connect()
    create_all_types(connection)
    count = insert_edge_rows(connection)
    table = SourceTable(odd_database, "all_types")

    def insert_more() -> None:
        insert_edge_rows(connection, first_id=LATER)

    with table.reader(ReadHooks(after_select=once(insert_more))) as reader:
        read = reader.read(table.split(), table.schema, table.anchor)
        replayed = reader.counters.replayed_changes
    assert read.rows.schema == table.schema.arrow_schema()
    expected = reference_rows(odd_database.connect(), table.schema)
    exact = table.source.method == "consistent_snapshot"  # its high is its low: nothing to replay
    assert replayed == (0 if exact else count)
    assert not differences(read.rows.sort_by("id").to_pylist(), expected[:count] if exact else expected)


@pytest.mark.pitfall(36)
def test_an_hour_that_the_server_has_twice(odd_database: Database) -> None:
    """02:30 comes twice on this day; defaults take the session's zone, DATETIME keeps what the clock on the wall showed."""
    odd_database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), "
        "wall DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6))"
    )
    table = SourceTable(odd_database)
    moments = [1729989000.25, 1729992600.25]
    for number, moment in enumerate(moments):
        odd_database.execute(f"SET timestamp = {moment}", f"INSERT INTO t (id) VALUES ({number})")
    wall = datetime(2024, 10, 27, 2, 30, 0, 250000)
    expected = [(i, datetime.fromtimestamp(moment, timezone.utc), wall) for i, moment in enumerate(moments)]
    by_log = logged(table)
    assert sorted(zip(*(by_log[name].to_pylist() for name in ("id", "at", "wall")), strict=True)) == expected
    by_select = table.read().rows
    assert sorted(zip(*(column.to_pylist() for column in by_select.columns), strict=True)) == expected
