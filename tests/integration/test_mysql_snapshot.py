"""The split reader: rows that are exact at the high, whatever happens to the source while they are read."""

import contextlib
import itertools
import pickle
import time
from dataclasses import fields, replace
from datetime import datetime, timezone
from typing import Any

import pymysql
import pytest

from tests.support.mysql_snapshot import SourceTable, delayed_server, followed, once, rows_of
from tests.support.servers import Database, FindServer, fresh_database
from tidemark.conf.endpoint import parse_endpoint
from tidemark.readers.bad_values import BadValueRule
from tidemark.readers.mysql.snapshot import split_reader as snapshot_module
from tidemark.readers.mysql.snapshot.anchors import newest_anchor
from tidemark.readers.mysql.snapshot.split_reader import ReadHooks
from tidemark.readers.mysql.snapshot.watermark import Low, Watermarks
from tidemark.state.change_batch import ChangeType
from tidemark.state.errors import LogPositionLostError, SchemaChangedError, SourceNotUsableError, SourceUnavailableError
from tidemark.state.key_encoding import encode_integer
from tidemark.state.position import BinlogPosition
from tidemark.state.split import Bound, KeyRange

pytestmark = pytest.mark.integration

HOOKS = [hook.name for hook in fields(ReadHooks)]
MOMENTS = ["before_low", "after_low", "after_select", "after_high"]
"""Those between which something happens."""


def numbers(database: Database, count: int = 10) -> SourceTable:
    values = ", ".join(f"({i}, 'n{i}', 0)" for i in range(count))
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), v INT NOT NULL)", f"INSERT INTO t VALUES {values}"
    )
    return SourceTable(database)


def bound(value: int) -> Bound:
    return Bound((str(value),), encode_integer(value, unsigned=False).hex())


def ids(start: int | None, end: int | None) -> KeyRange:
    return KeyRange(None if start is None else bound(start), None if end is None else bound(end))


class AtRest(Watermarks):
    """Watermarks of a source at rest: they hide what other tests write on the same server."""

    def high(self, connection: Any, low: Low) -> BinlogPosition:
        super().high(connection, low)
        return low.start


@pytest.mark.pitfall(6)
def test_an_idle_table_is_read_as_it_is(source_database: Database) -> None:
    table = numbers(source_database)
    with table.reader(watermarks=AtRest(table.source.server, table.source.method, table.log)) as reader:
        read = reader.read(table.split(), table.schema, table.anchor)
        assert reader.counters.replays == 0
    assert rows_of(read.rows) == table.rows()
    assert read.rows.schema == table.schema.arrow_schema()
    assert (read.report.row_count, read.report.replayed_changes) == (10, 0)
    assert read.report.high.order >= table.anchor.order
    now = datetime.now(timezone.utc).timestamp()
    assert abs(read.taken_at_us / 1e6 - now) < 60


CHANGES: dict[str, tuple[str, ...]] = {
    "update": ("UPDATE t SET v = v + 1 WHERE id = 1",),
    "insert": ("INSERT INTO t VALUES (100, 'new', 1)",),
    "delete": ("DELETE FROM t WHERE id = 2",),
    "delete and insert again": ("DELETE FROM t WHERE id = 3", "INSERT INTO t VALUES (3, 'again', 9)"),
    "insert and delete again": ("INSERT INTO t VALUES (101, 'brief', 1)", "DELETE FROM t WHERE id = 101"),
    "key change": ("UPDATE t SET id = 200, v = 7 WHERE id = 4",),
    "key swap": ("UPDATE t SET id = 55 WHERE id = 5", "UPDATE t SET id = 5 WHERE id = 6", "UPDATE t SET id = 6 WHERE id = 55"),
    "every row": ("UPDATE t SET v = v + 1",),
    "every key": ("UPDATE t SET id = id + 1 ORDER BY id DESC",),
    "nothing left": ("DELETE FROM t",),
}  # fmt: skip


@pytest.mark.pitfall(4)
@pytest.mark.pitfall(10)
@pytest.mark.pitfall(13)
@pytest.mark.parametrize("change", CHANGES)
def test_changes_at_any_moment_leave_the_rows_exact_at_high(change: str, source_database: Database) -> None:
    """At every hook, one after the other: the rows and the changes after the high make up the source."""
    for moment in MOMENTS:
        source_database.execute("DROP TABLE IF EXISTS t")
        table = numbers(source_database)
        read = table.read(hooks=ReadHooks(**{moment: table.do(*CHANGES[change])}))
        assert followed(table, read) == table.rows(), moment
        if moment == "before_low":
            assert rows_of(read.rows) == table.rows()
            assert table.changes(read.report.high) == []
        if moment == "after_high":
            assert len(table.changes(read.report.high)) > 0


@pytest.mark.pitfall(4)
def test_changes_at_every_moment_together(source_database: Database) -> None:
    table = numbers(source_database, 30)
    hooks = {
        moment: table.do(
            "UPDATE t SET v = v + 1 WHERE id < 5",
            f"DELETE FROM t WHERE id = {10 + i}",
            f"INSERT INTO t VALUES ({100 + i}, 'i{i}', 0)",
            f"UPDATE t SET id = {200 + i} WHERE id = {20 + i}",
        )
        for i, moment in enumerate(HOOKS)
    }
    read = table.read(hooks=ReadHooks(**hooks))
    assert followed(table, read) == table.rows()
    exact = table.source.method == "consistent_snapshot"
    versions = {row[0]: row[2] for row in rows_of(read.rows)}
    assert versions[1] == (1 if exact else 5)


@pytest.mark.pitfall(20)
def test_rows_that_move_between_splits_stand_in_one_of_them(source_database: Database) -> None:
    table = numbers(source_database, 20)
    left, right = table.split(ids(None, 10), split_id=1), table.split(ids(10, None), split_id=2)
    moves = itertools.count(1)

    def move() -> None:
        n = next(moves)
        table.database.execute(f"UPDATE t SET id = {n + 10 * 100}, v = {n} WHERE id = {n % 10}")
        table.database.execute(f"UPDATE t SET id = {-n}, v = {n} WHERE id = {10 + n % 10}")

    hooks = ReadHooks(after_low=move, after_select=move, after_high=move)
    with table.reader(hooks) as reader:
        reads = [reader.read(split, table.schema, table.anchor) for split in (left, right)]
    for read, inside in zip(reads, (lambda n: n < 10, lambda n: n >= 10), strict=True):
        state = {row[0]: row for row in rows_of(read.rows)}
        assert all(inside(key) for key in state)
        for change in table.changes(read.report.high):
            if inside(change.row[0]):
                if change.type is ChangeType.DELETE:
                    del state[change.row[0]]
                else:
                    state[change.row[0]] = change.row
        assert sorted(state.values()) == [row for row in table.rows() if inside(row[0])]


def test_what_is_rolled_back_is_in_neither(source_database: Database) -> None:
    table = numbers(source_database)
    with contextlib.closing(source_database.connect(autocommit=False)) as writer, writer.cursor() as cursor:

        def write() -> None:
            cursor.execute("UPDATE t SET v = 99 WHERE id = 1")
            cursor.execute("SAVEPOINT here")
            cursor.execute("INSERT INTO t VALUES (300, 'no', 0)")

        read = table.read(hooks=ReadHooks(before_low=write, before_high=writer.rollback))
    assert rows_of(read.rows) == table.rows()
    assert (1, "n1", 0) in rows_of(read.rows)


@pytest.mark.pitfall(1)
@pytest.mark.pitfall(2)
@pytest.mark.parametrize("commit_at", ["after_low", "before_select", "after_select", "before_high", "after_high"])
def test_a_transaction_open_across_low_and_select_counts_when_it_commits(
    commit_at: str, source_database: Database
) -> None:
    table = numbers(source_database)
    with contextlib.closing(source_database.connect(autocommit=False)) as writer, writer.cursor() as cursor:

        def write() -> None:
            cursor.execute("UPDATE t SET v = 99 WHERE id = 1")
            cursor.execute("INSERT INTO t VALUES (300, 'late', 0)")
            cursor.execute("DELETE FROM t WHERE id = 2")

        read = table.read(hooks=ReadHooks(**{"before_low": write, commit_at: writer.commit}))
    assert followed(table, read) == table.rows()


@pytest.mark.pitfall(40)
@pytest.mark.parametrize("gtid", [True, False], ids=["gtid", "nogtid"])
def test_an_xa_transaction_across_the_window_counts_when_it_commits(gtid: bool, find_server: FindServer) -> None:
    with fresh_database(delayed_server(find_server, gtid=gtid)) as database:
        for prepared_at, committed_at in itertools.combinations(MOMENTS, 2):
            database.execute("DROP TABLE IF EXISTS t")
            table = numbers(database)
            with contextlib.closing(database.connect()) as writer, writer.cursor() as cursor:

                def prepare(cursor: Any = cursor) -> None:
                    for statement in ("START 'x'", "END 'x'", "PREPARE 'x'"):
                        if statement.startswith("END"):
                            cursor.execute("UPDATE t SET v = 99 WHERE id = 1")
                        cursor.execute(f"XA {statement}")

                def commit(cursor: Any = cursor) -> None:
                    cursor.execute("XA COMMIT 'x'")

                read = table.read(hooks=ReadHooks(**{prepared_at: once(prepare), committed_at: once(commit)}))
            in_rows = (1, "n1", 99) in rows_of(read.rows)
            later = [c for c in table.changes(table.anchor) if c.version > read.report.high.version and c.row[2] == 99]
            assert in_rows != bool(later), (prepared_at, committed_at)
            assert in_rows or committed_at == "after_high"


@pytest.mark.pitfall(24)
def test_a_table_without_a_key_keeps_equal_rows(source_database: Database) -> None:
    source_database.execute("CREATE TABLE t (a INT, b VARCHAR(9))", "INSERT INTO t VALUES (1,'x'),(1,'x'),(2,NULL)")
    table = SourceTable(source_database)
    assert table.schema.key == ()
    for moment in MOMENTS:
        change = once(
            table.do("INSERT INTO t VALUES (1,'x')", "DELETE FROM t WHERE a = 2", "INSERT INTO t VALUES (2,NULL)")
        )
        read = table.read(hooks=ReadHooks(**{moment: change}))
        counts = [list(map(repr, rows)) for rows in (rows_of_any(read), table.database.query("SELECT * FROM t"))]
        later = table.changes(read.report.high)
        for change_after in later:
            if change_after.type is ChangeType.DELETE:
                counts[0].remove(repr(change_after.row))
            else:
                counts[0].append(repr(change_after.row))
        assert sorted(counts[0]) == sorted(counts[1]), moment


def rows_of_any(read: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in read.rows.columns), strict=True))


def test_a_table_without_a_key_that_never_rests_is_given_up(
    mysql_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_module, "MAX_FRESH_READS", 3)
    mysql_database.execute("CREATE TABLE t (a INT)")
    table = SourceTable(mysql_database)
    with pytest.raises(SourceNotUsableError, match=r"read 3 times.*unique key"):
        table.read(hooks=ReadHooks(after_low=table.do("INSERT INTO t VALUES (1)")))


@pytest.mark.pitfall(12)
@pytest.mark.parametrize("moment", ["after_low", "after_select", "after_high"])
@pytest.mark.parametrize(
    "ddl",
    ["ALTER TABLE t COMMENT = 'x'", "ALTER TABLE t ADD INDEX other (v)", "TRUNCATE TABLE t", "ALTER TABLE t FORCE"],
)
def test_a_harmless_ddl_in_the_window_makes_the_split_be_read_again(
    ddl: str, moment: str, source_database: Database
) -> None:
    table = numbers(source_database)
    read = table.read(
        hooks=ReadHooks(**{moment: once(table.do("UPDATE t SET v = 1", ddl, "INSERT INTO t VALUES (77, 'x', 1)"))})
    )
    found, before = rows_of(read.rows), [(i, f"n{i}", 0) for i in range(10)]
    if table.source.method == "consistent_snapshot" and moment == "after_low":
        assert found in (before, table.rows())  # an instant DDL leaves the snapshot readable
    else:
        at_high = moment == "after_high" or table.source.method == "consistent_snapshot"
        assert found == (before if at_high else table.rows())


@pytest.mark.pitfall(12)
@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE t DROP COLUMN name",
        "ALTER TABLE t MODIFY v BIGINT",
        "ALTER TABLE t RENAME COLUMN name TO n",
        "DROP TABLE t",
    ],
)
def test_a_ddl_that_changes_the_columns_stops(ddl: str, source_database: Database) -> None:
    table = numbers(source_database)
    with pytest.raises(SchemaChangedError) as caught:
        table.read(hooks=ReadHooks(after_low=once(table.do("UPDATE t SET v = v + 1", ddl))))
    assert caught.value.table == table.table


@pytest.mark.pitfall(12)
@pytest.mark.parametrize("server", ["mysql_database", "mysql_nogtid_database"])
@pytest.mark.parametrize("ddl", ["DROP TABLE t", "RENAME TABLE t TO u"])
def test_a_table_that_is_gone_after_its_rows_were_read_concerns_no_other(
    ddl: str, server: str, request: pytest.FixtureRequest
) -> None:
    """The log after the SELECT has the statement."""
    table = numbers(request.getfixturevalue(server))
    with pytest.raises(SchemaChangedError, match="no such table") as caught:
        table.read(hooks=ReadHooks(after_select=once(table.do("UPDATE t SET v = v + 1", ddl))))
    assert caught.value.table == table.table


@pytest.mark.pitfall(1)
def test_a_server_whose_sessions_chain_transactions_shows_each_split_the_present(source_database: Database) -> None:
    """A split that is read again ends its transaction. With `completion_type = CHAIN` the next one would begin at once, and the
    later splits would see the past, before their lows."""
    table = numbers(source_database)
    source_database.execute("SET GLOBAL completion_type = 'CHAIN'")
    try:
        with table.reader(ReadHooks(after_select=once(table.do("ALTER TABLE t MODIFY v INT NOT NULL")))) as reader:
            reader.read(table.split(ids(None, 5)), table.schema, table.anchor)
            source_database.execute("UPDATE t SET v = 7")
            read = reader.read(table.split(ids(5, None), split_id=2), table.schema, table.anchor)
    finally:
        source_database.execute("SET GLOBAL completion_type = 'NO_CHAIN'")
    assert rows_of(read.rows) == [(i, f"n{i}", 7) for i in range(5, 10)]


def test_where_limits_the_select_and_never_a_change(source_database: Database) -> None:
    table = numbers(source_database)
    where = {table.table: "id >= 5 OR name = 'n1' -- a comment"}
    read = table.read(table.split(ids(None, 8)), where=where)
    assert [row[0] for row in rows_of(read.rows)] == [1, 5, 6, 7]
    change = table.do(
        "UPDATE t SET v = 1 WHERE id = 2", "UPDATE t SET v = 1 WHERE id = 5", "DELETE FROM t WHERE id = 6"
    )
    read = table.read(table.split(ids(None, 8)), hooks=ReadHooks(after_select=change), where=where)
    found = [(row[0], row[2]) for row in rows_of(read.rows)]
    if table.source.method == "consistent_snapshot":
        assert found == [(1, 0), (5, 0), (6, 0), (7, 0)]
    else:
        assert found == [(1, 0), (2, 1), (5, 1), (7, 0)]


def test_a_where_that_is_no_sql_is_a_clear_error(source_database: Database) -> None:
    table = numbers(source_database)
    with pytest.raises(SourceNotUsableError, match=r"snapshot\.where"):
        table.read(where={table.table: "no such thing"})
    with pytest.raises(SourceNotUsableError, match=r"snapshot\.where"):
        table.read(where={table.table: "nocolumn = 1"})


@pytest.mark.pitfall(23)
@pytest.mark.parametrize("server", ["mysql", "mariadb"])
def test_invisible_columns_are_read_and_excluded_ones_are_not(server: str, request: pytest.FixtureRequest) -> None:
    database: Database = request.getfixturevalue(f"{server}_database")
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, hidden INT NOT NULL DEFAULT 5 INVISIBLE, `odd ``name` INT)",
        "INSERT INTO t (id, `odd ``name`) VALUES (1, 2)",
    )
    table = SourceTable(database)
    assert rows_of(table.read().rows) == [(1, 5, 2)]


@pytest.mark.pitfall(23)
def test_a_generated_primary_key_is_read(mysql_database: Database) -> None:
    mysql_database.execute(
        "SET SESSION sql_generate_invisible_primary_key = ON", "CREATE TABLE t (a INT)", "INSERT INTO t VALUES (7), (7)"
    )
    table = SourceTable(mysql_database)
    assert table.schema.key == ("my_row_id",)
    read = table.read(hooks=ReadHooks(after_select=table.do("INSERT INTO t VALUES (8)")))
    assert rows_of(read.rows) == [(1, 7), (2, 7), (3, 8)]


@pytest.mark.pitfall(36)
@pytest.mark.pitfall(37)
def test_times_are_the_same_from_the_select_and_from_the_log(source_database: Database) -> None:
    source_database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, at TIMESTAMP(3) NULL, d DECIMAL(12,2), s VARCHAR(20), t TIME(6), f FLOAT)",
    )
    table = SourceTable(source_database)
    insert = "INSERT INTO t VALUES ({}, '2024-03-31 01:30:00.125', -0.05, 'é😀', '-00:00:00.5', 0.1)"
    with contextlib.closing(source_database.connect()) as session, session.cursor() as cursor:
        cursor.execute("SET time_zone = '-07:00'")
        cursor.execute(insert.format(1))

        def later() -> None:
            cursor.execute(insert.format(2))

        read = table.read(hooks=ReadHooks(after_select=later))
        if read.report.row_count == 1:
            read = table.read()
    first, second = rows_of(read.rows)
    assert first[1:] == second[1:]
    assert first[1] == datetime(2024, 3, 31, 8, 30, 0, 125000, tzinfo=timezone.utc)


@pytest.mark.pitfall(14)
@pytest.mark.pitfall(15)
@pytest.mark.pitfall(20)
def test_string_keys_belong_where_the_collation_says(source_database: Database) -> None:
    """The window's changes are assigned to splits by key encoding, the SELECT's rows by the server: both must agree."""
    source_database.execute(
        "CREATE TABLE t (k VARCHAR(20) COLLATE utf8mb4_unicode_ci PRIMARY KEY, v INT NOT NULL)",
        "INSERT INTO t VALUES ('a', 0), ('B', 0), ('c', 0), ('É', 0), ('f', 0), ('ß', 0), ('z', 0)",
    )
    table = SourceTable(source_database)
    with table.keys() as keys:
        boundaries = keys.next_bounds(table.table, ("k",), after=None, until=None, rows=2, count=9)
    assert len(boundaries) == 3
    changes = table.do(
        "UPDATE t SET v = v + 1",
        "UPDATE t SET k = 'A ' WHERE k = 'a'",
        "INSERT INTO t VALUES ('b\\t', 1), ('D', 1), ('ss-', 1)",
        "UPDATE t SET k = 'e\u0301\u0301' WHERE k = 'é'",
        "DELETE FROM t WHERE k = 'F'",
    )
    found = []
    for i, (start, end) in enumerate(zip([None, *boundaries], [*boundaries, None], strict=True)):
        source_database.execute(
            "DELETE FROM t", "INSERT INTO t VALUES ('a', 0), ('B', 0), ('c', 0), ('É', 0), ('f', 0), ('ß', 0), ('z', 0)"
        )
        read = table.read(
            table.split(KeyRange(start, end), split_id=i),
            hooks=ReadHooks(after_low=once(changes), after_select=once(table.do("UPDATE t SET v = v + 10"))),
        )
        found += rows_of(read.rows)
    if table.source.method == "consistent_snapshot":
        assert sorted(row[0] for row in found) == sorted(["a", "B", "c", "É", "f", "ß", "z"])
    else:
        assert sorted(found) == table.rows()


def sessions(database: Database) -> list[int]:
    """The ids of all other sessions in this database."""
    found = database.query(
        f"SELECT id FROM {database.server.processlist} WHERE id <> CONNECTION_ID() AND db = %s", (database.name,)
    )
    return sorted(row[0] for row in found)


def kill_sessions(database: Database) -> None:
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        for session in sessions(database):
            with contextlib.suppress(pymysql.MySQLError):  # our own one that asked, or one that has ended
                cursor.execute(f"KILL {session}")


@pytest.mark.parametrize("moment", HOOKS)
def test_a_killed_connection_makes_the_split_be_read_again(moment: str, source_database: Database) -> None:
    table = numbers(source_database)

    def change_and_kill() -> None:
        source_database.execute("UPDATE t SET v = v + 1")
        kill_sessions(source_database)

    with table.reader(ReadHooks(**{moment: once(change_and_kill)})) as reader:
        for i in range(2):
            read = reader.read(table.split(split_id=i), table.schema, table.anchor)
            assert followed(table, read) == table.rows()
        assert reader.counters.splits == 2
        assert reader.counters.lost_connections == 1


def test_a_connection_that_is_lost_each_time_is_given_up(
    source_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.readers.session.FIRST_DELAY_SECONDS", 0.001)
    table = numbers(source_database)
    with table.reader(ReadHooks(before_select=lambda: kill_sessions(source_database))) as reader:
        with pytest.raises(SourceUnavailableError, match=r"lost 5 times while reading .*\.t:"):
            reader.read(table.split(), table.schema, table.anchor)
        assert reader.counters.lost_connections == 5


@pytest.mark.pitfall(11)
def test_another_server_is_refused(
    source_database: Database, mysql_nogtid_database: Database, mysql_database: Database
) -> None:
    """Includes one of the same kind behind the same name: a failover, or a proxy."""
    table = numbers(source_database)
    other = mysql_nogtid_database if table.source.method == "gtid" else mysql_database
    with pytest.raises(LogPositionLostError, match="server"):
        table.read(endpoint=parse_endpoint(other.url))


def test_one_connection_serves_one_split_after_the_other(source_database: Database) -> None:
    table = numbers(source_database, 100)
    seen: list[list[tuple[int]]] = []
    # Later connections have greater numbers. The server may still be ending those that filled the table.
    # The source is at rest, because a replay of the log has a connection of its own.
    query = f"SELECT id FROM {source_database.server.processlist} WHERE id > CONNECTION_ID() AND db = %s"
    with contextlib.closing(source_database.connect()) as watcher, watcher.cursor() as cursor:

        def connections() -> list[tuple[int]]:
            cursor.execute(query, (source_database.name,))
            return list(cursor.fetchall())

        def look() -> None:
            seen.append(connections())

        watermarks = AtRest(table.source.server, table.source.method, table.log)
        reader = table.reader(ReadHooks(after_low=look, after_select=look, after_high=look), watermarks=watermarks)
        with reader:
            for i in range(10):
                reader.read(table.split(ids(i * 10, i * 10 + 10), split_id=i), table.schema, table.anchor)
                while i == 0 and len(connections()) > 1:
                    time.sleep(0.01)  # the first split opens a log connection, which asks when the log's file began
    assert len(seen) == 30
    assert all(found == seen[0] for found in seen), seen
    assert len(seen[0]) == 1


def test_no_transaction_outlives_its_select(source_database: Database) -> None:
    table = numbers(source_database)
    open_transactions = []

    def look() -> None:
        open_transactions.append(
            source_database.query(
                "SELECT COUNT(*) FROM information_schema.innodb_trx x "
                f"JOIN {source_database.server.processlist} p "
                "ON p.id = x.trx_mysql_thread_id WHERE p.db = %s",
                (source_database.name,),
            )[0][0]
        )

    with table.reader(ReadHooks(before_high=look)) as reader:
        reader.read(table.split(), table.schema, table.anchor)
    assert open_transactions == [0]


def test_the_next_split_starts_from_the_newest_anchor(mysql_database: Database) -> None:
    table = numbers(mysql_database)
    change = table.do("UPDATE t SET v = v + 1")
    with table.reader(ReadHooks(after_select=change)) as reader:
        first = reader.read(table.split(), table.schema, table.anchor)
        assert reader.counters.replayed_changes == 10
        reader.read(table.split(split_id=2), table.schema, table.anchor)
        assert reader.counters.replayed_changes == 20  # not 30: the first split's log is not read again
    scope = (table.source.job_uuid, 0, table.source.server.identity)
    newest = newest_anchor(scope, table.anchor)
    assert newest.order > first.report.high.order > table.anchor.order
    assert newest.gtids is not None
    assert newest.gtid_set().contains_all(first.report.high.gtid_set())
    assert newest_anchor(("another job", 0, scope[2]), table.anchor) == table.anchor


def test_a_window_across_log_files_is_replayed(source_database: Database) -> None:
    table = numbers(source_database)
    change = table.do("UPDATE t SET v = 1", "FLUSH BINARY LOGS", "UPDATE t SET v = 2 WHERE id < 5")
    read = table.read(hooks=ReadHooks(after_select=change))
    assert followed(table, read) == table.rows()


def test_a_key_that_is_null_in_the_copy_is_refused(source_database: Database) -> None:
    source_database.execute("CREATE TABLE t (d DATE PRIMARY KEY, v INT)")
    with contextlib.closing(source_database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute("INSERT INTO t VALUES ('0000-00-00', 1), ('2024-01-01', 2)")
    table = SourceTable(source_database)
    table.source = replace(table.source, bad_values=BadValueRule(takes_null_keys=False))
    with pytest.raises(SourceNotUsableError, match="0000-00-00") as caught:
        table.read()
    assert (
        "or name another key (source.keys; not for a table with a primary key), or leave the table out"
        in caught.value.remedy
    )


def test_an_empty_split_has_a_high_too(source_database: Database) -> None:
    table = numbers(source_database)
    read = table.read(table.split(ids(1000, 2000)), hooks=ReadHooks(after_select=table.do("UPDATE t SET v = 1")))
    assert read.rows.num_rows == 0
    assert read.rows.schema == table.schema.arrow_schema()
    assert read.report.high.order >= table.anchor.order


def test_sources_travel_to_other_processes(source_database: Database) -> None:
    source = numbers(source_database).source
    assert pickle.loads(pickle.dumps(source)) == source
