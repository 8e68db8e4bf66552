"""The events that real servers log, read by the log reader: one server of each flavour for the module."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.log_reading import Change, LoggedServer, changes_of, logged, logged_server
from tests.support.mysql_accounts import account
from tests.support.servers import require_logged_generated_columns
from tidemark.readers.mysql.binlog.reader import LogReader
from tidemark.readers.mysql.binlog.reading_state import ReadOptions
from tidemark.state.change_batch import ChangeType
from tidemark.state.errors import (
    IncompleteRowsError,
    LogPositionLostError,
    SchemaChangedError,
    SplitChangedError,
    TableDroppedError,
    TidemarkError,
    UnknownLogEventError,
)
from tidemark.state.gtid import GtidSet
from tidemark.state.log_range import LogRange
from tidemark.state.remedies import LEAVE_OUT
from tidemark.state.table import TableId

__all__ = ["logged"]
pytestmark = pytest.mark.integration

I, U, D = ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE, ChangeType.DELETE  # noqa: E741


def rows(changes: list[Change]) -> list[tuple[Any, ...]]:
    return [(change["_change_type"], change["id"], change["v"]) for change in changes]


@pytest.fixture
def table(logged: LoggedServer) -> LoggedServer:
    """A database with an empty table t (id, v), whose creation is before the part of the log that is read."""
    logged.execute(
        "DROP TABLE IF EXISTS child, t, u, t_new, t_old, m",
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(200))",
        "CREATE TABLE u LIKE t",
    )
    logged.forget()
    return logged


def refused(table: LoggedServer, error: type[TidemarkError], match: str, *statements: str) -> TidemarkError:
    table.execute(*statements)
    with pytest.raises(error, match=match) as caught:
        table.read("t")
    return caught.value


def test_changes_of_every_kind(table: LoggedServer) -> None:
    with contextlib.closing(table.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO t VALUES (1, 'a'), (2, NULL)")
        cursor.execute("UPDATE t SET v = 'b' WHERE id = 1")
        connection.begin()
        cursor.execute("UPDATE t SET id = 3 WHERE id = 2")
        cursor.execute("INSERT INTO u VALUES (7, 'u')")
        cursor.execute("DELETE FROM t WHERE id = 1")
        connection.commit()
        connection.begin()
        cursor.execute("DELETE FROM t")
        connection.rollback()
    changes = table.read("t", "u")
    assert rows(changes) == [
        (I, 1, "a"), (I, 2, None), (U, 1, "b"), (D, 2, None), (I, 3, None), (I, 7, "u"), (D, 1, "b"),
    ]  # fmt: skip
    assert [change["_seq"] for change in changes] == [0, 1, 0, 0, 1, 2, 3]
    assert changes[-1]["_commit_version"] == table.start.version
    now = table.query("SELECT UNIX_TIMESTAMP(NOW(6))")[0][0]
    assert all(0 <= float(now) - change["_commit_timestamp"].timestamp() < 100 for change in changes)


def test_transaction_ids_and_the_gtids_of_the_end(table: LoggedServer) -> None:
    table.execute("INSERT INTO t VALUES (1, 'a')")
    (change,) = table.read("t")
    if table.has_gtid_sets:
        executed = GtidSet.parse(table.query("SELECT @@GLOBAL.gtid_executed")[0][0])
        assert table.start.gtid_set() == executed
        source, number = change["_txn_id"].rsplit(":", 1)
        assert executed.contains((source, ""), int(number))
    elif table.name == "mysql-nogtid":
        assert change["_txn_id"] == str(table.start)
    else:
        assert change["_txn_id"] == table.query("SELECT @@GLOBAL.gtid_binlog_pos")[0][0]


@pytest.mark.parametrize("cut_by_the_log", [True, False])
def test_savepoints(table: LoggedServer, cut_by_the_log: bool) -> None:
    """Servers cut off rows that were rolled back to a savepoint. With a table that can't be rolled back they log
    both."""
    table.execute("CREATE TABLE m (id INT) ENGINE=MyISAM")
    with contextlib.closing(table.connect()) as connection, connection.cursor() as cursor:
        connection.begin()
        cursor.execute("INSERT INTO t VALUES (1, 'a')")
        cursor.execute("SAVEPOINT `s p`")
        cursor.execute("INSERT INTO t VALUES (2, 'b')")
        if not cut_by_the_log and not table.has_gtid_sets:
            cursor.execute("INSERT INTO m VALUES (1)")
        cursor.execute("ROLLBACK TO `s p`")
        cursor.execute("INSERT INTO t VALUES (3, 'c')")
        connection.commit()
    assert rows(table.read("t")) == [(I, 1, "a"), (I, 3, "c")]


def test_transaction_that_was_logged_and_rolled_back(table: LoggedServer) -> None:
    with contextlib.closing(table.connect()) as connection, connection.cursor() as cursor:
        connection.begin()
        cursor.execute("INSERT INTO t VALUES (1, 'a')")
        cursor.execute("CREATE TEMPORARY TABLE x (id INT)")
        connection.rollback()
    table.execute("INSERT INTO t VALUES (2, 'b')")
    assert rows(table.read("t")) == [(I, 2, "b")]


@pytest.mark.pitfall(40)
@pytest.mark.parametrize("compressed", [False, True])
def test_xa_transactions(table: LoggedServer, compressed: bool) -> None:
    with contextlib.closing(table.connect()) as connection, connection.cursor() as cursor:
        if compressed and not table.is_mariadb:
            cursor.execute("SET SESSION binlog_transaction_compression = ON")
        for name, ends in (("k1", []), ("k2", ["ROLLBACK"]), ("k3", ["COMMIT"])):
            cursor.execute(f"XA START '{name}', 'branch', 7")
            cursor.execute(f"INSERT INTO t VALUES ({name[1]}, 'x')")
            cursor.execute("UPDATE t SET v = 'y' WHERE id = " + name[1])
            cursor.execute(f"XA END '{name}', 'branch', 7")
            cursor.execute(f"XA PREPARE '{name}', 'branch', 7")
            for end in ends:
                cursor.execute(f"XA {end} '{name}', 'branch', 7")
            if not ends:  # a session that has one prepared can do nothing else
                connection.close()
                connection.connect()
                cursor = connection.cursor()
        cursor.execute("XA START 'one'")
        cursor.execute("INSERT INTO t VALUES (4, 'z')")
        cursor.execute("XA END 'one'")
        cursor.execute("XA COMMIT 'one' ONE PHASE")
    assert rows(table.read("t")) == [(I, 3, "x"), (U, 3, "y"), (I, 4, "z")]
    assert [xa.xid for xa in table.prepared] == ["X'6b31',X'6272616e6368',7"]
    table.execute("INSERT INTO t VALUES (9, 'before')", "XA COMMIT 'k1', 'branch', 7")
    changes = table.read("t")
    assert rows(changes) == [(I, 9, "before"), (I, 1, "x"), (U, 1, "y")]
    assert changes[1]["_commit_version"] == changes[2]["_commit_version"] == table.start.version
    assert table.prepared == ()


def prepared_and_left(table: LoggedServer, xid: str, row: int) -> None:
    with contextlib.closing(table.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"XA START '{xid}'")
        cursor.execute(f"INSERT INTO t VALUES ({row}, 'x')")
        cursor.execute(f"XA END '{xid}'")
        cursor.execute(f"XA PREPARE '{xid}'")


@pytest.mark.pitfall(40)
@pytest.mark.pitfall(113)
def test_what_was_prepared_before_the_start_is_found_in_the_log(table: LoggedServer) -> None:
    """Such a transaction ended the job, after its whole snapshot, at the XA COMMIT."""
    prepared_and_left(table, "k", 1)
    table.execute("FLUSH BINARY LOGS", "INSERT INTO t VALUES (2, 'between')", "FLUSH BINARY LOGS")
    prepared_and_left(table, "l", 3)
    table.forget()
    table.execute(
        "INSERT INTO t VALUES (4, 'later')", "XA COMMIT 'k'", "XA ROLLBACK 'l'", "INSERT INTO t VALUES (5, 'x')"
    )
    with pytest.raises(SplitChangedError):
        list(changes_of(table.reader("t"), table.range(), replay=True))
    assert rows(table.read("t")) == [(I, 4, "later"), (I, 1, "x"), (I, 5, "x")]
    assert table.prepared == ()


@pytest.mark.pitfall(113)
@pytest.mark.parametrize("flavour", ["mysql-gtid", "mariadb"])
def test_a_forgotten_transaction_stops_the_reading_only_when_it_commits(flavour: str) -> None:
    with logged_server(flavour) as table:
        table.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(200))")
        prepared_and_left(table, "k", 1)
        table.execute("FLUSH BINARY LOGS")
        table.forget()
        while table.query("SHOW BINARY LOGS")[0][0] != table.start.file:  # MariaDB keeps a file for a moment
            table.execute(f"PURGE BINARY LOGS TO '{table.start.file}'")
        table.execute("INSERT INTO t VALUES (2, 'goes on')")
        assert rows(table.read("t")) == [(I, 2, "goes on")]
        table.execute("XA COMMIT 'k'")
        with pytest.raises(LogPositionLostError, match=r"prepared before .*its rows are lost") as caught:
            table.read("t")
        assert "Start over" in caught.value.remedy


@pytest.mark.pitfall(131)
def test_a_tables_swap_by_a_schema_change_tool_stops_the_reading(table: LoggedServer) -> None:
    """gh-ost and pt-online-schema-change fill another table, then rename both. The other table's rows are in the log under its
    name only, so the reading must not go on beyond the swap, also if both tables have the same columns."""
    table.execute("INSERT INTO t VALUES (1, 'a')", "CREATE TABLE _t_gho LIKE t", "INSERT INTO _t_gho SELECT * FROM t")
    table.execute(
        "ALTER TABLE _t_gho ADD INDEX (v)", "INSERT INTO t VALUES (2, 'b')", "INSERT INTO _t_gho VALUES (2, 'b')"
    )
    assert rows(table.read("t")) == [(I, 1, "a"), (I, 2, "b")]
    table.execute("INSERT INTO _t_gho VALUES (3, 'in no log of t')", "RENAME TABLE t TO _t_del, _t_gho TO t")
    table.execute("INSERT INTO t VALUES (4, 'd')")
    try:
        for _ in range(2):  # also when the job is started again
            with pytest.raises(SchemaChangedError, match=r"RENAME.*d\.t") as caught:
                table.read("t")
            assert caught.value.remedy == LEAVE_OUT
        with pytest.raises(SplitChangedError):  # a split that was being read is read again, from the new table
            list(changes_of(table.reader("t"), table.range(), replay=True))
    finally:
        table.execute("DROP TABLE _t_del")
        table.forget()


@pytest.mark.pitfall(108)
def test_what_a_session_keeps_out_of_the_log_is_not_in_it(table: LoggedServer) -> None:
    """No reader of the log can see or notice such a write. docs/operating.md says so."""
    table.execute("SET sql_log_bin = 0", "INSERT INTO t VALUES (1, 'unlogged')")
    table.execute("INSERT INTO t VALUES (2, 'logged')")
    assert rows(table.read("t")) == [(I, 2, "logged")]
    assert "sql_log_bin" in (Path(__file__).parents[2] / "docs" / "operating.md").read_text()


@pytest.mark.pitfall(34)
def test_statement_format_is_refused(table: LoggedServer) -> None:
    error = refused(
        table,
        UnknownLogEventError,
        "as a statement",
        "CREATE TRIGGER copies BEFORE INSERT ON u FOR EACH ROW REPLACE INTO t VALUES (NEW.id, NEW.v)",
        "SET SESSION binlog_format = STATEMENT",
        "INSERT INTO u VALUES (1, '')",
    )
    assert table.query("SELECT * FROM t") == [(1, "")]
    assert "binlog_format=ROW" in error.remedy
    table.forget()
    refused(table, UnknownLogEventError, "as a statement", "SET SESSION binlog_format = STATEMENT", "DELETE FROM t")


@pytest.mark.pitfall(34)
@pytest.mark.pitfall(111)
def test_statement_format_in_another_database_passes(table: LoggedServer) -> None:
    table.execute(
        "CREATE DATABASE IF NOT EXISTS e", "CREATE TABLE IF NOT EXISTS e.x (id INT)",
        "SET SESSION binlog_format = STATEMENT", "INSERT INTO e.x VALUES (1)",
    )  # fmt: skip
    table.execute("INSERT INTO t VALUES (1, 'a')")
    assert rows(table.read("t")) == [(I, 1, "a")]


HEARTBEAT = "INSERT INTO mysql.rds_heartbeat2(id, value) values (1,%s) ON DUPLICATE KEY UPDATE value = %s"


@pytest.mark.pitfall(111)
def test_heartbeat_in_statement_format_passes_and_unrelated_tables_with_the_right_to_see_triggers(
    table: LoggedServer,
) -> None:
    """RDS for MariaDB writes mysql.rds_heartbeat2 in statement format."""
    table.execute("CREATE TABLE IF NOT EXISTS mysql.rds_heartbeat2 (id INT PRIMARY KEY, value BIGINT)")
    table.forget()
    status = "BINLOG MONITOR" if table.is_mariadb else "REPLICATION CLIENT"
    with account(table.server, f"SELECT, REPLICATION SLAVE, {status} ON *.*") as endpoint:
        source = dataclasses.replace(table.source(), endpoint=endpoint)
        reader = LogReader(source, {TableId("d", "t"): table.schema("t")})
        table.execute(
            "SET SESSION binlog_format = STATEMENT", *(HEARTBEAT % (n, n) for n in (1640995200000, 1640995500000))
        )
        table.execute("INSERT INTO t VALUES (1, 'a')")
        assert rows(list(changes_of(reader, table.range()))) == [(I, 1, "a")]
        table.execute("SET SESSION binlog_format = STATEMENT", "REPLACE INTO u SET id = 7")
        with pytest.raises(UnknownLogEventError, match="as a statement"):
            list(changes_of(reader, table.range()))
        table.execute(f"GRANT TRIGGER ON d.* TO {endpoint.user}")
        assert rows(list(changes_of(reader, table.range()))) == [(I, 1, "a")]
        table.execute("CREATE TABLE child (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES u (id) ON DELETE CASCADE)")
        with pytest.raises(UnknownLogEventError, match="as a statement"):
            list(changes_of(reader, table.range()))


@pytest.mark.pitfall(34)
def test_statements_on_named_tables_are_ignored_and_those_on_others_are_not(table: LoggedServer) -> None:
    """Because of the trigger and the function, nothing proves that the statements change no captured table."""
    table.execute(
        "CREATE TRIGGER notes BEFORE INSERT ON u FOR EACH ROW SET NEW.v = 'x'",
        "CREATE TABLE m (id INT PRIMARY KEY)",
        "DROP FUNCTION IF EXISTS seven",
        "CREATE FUNCTION seven() RETURNS INT DETERMINISTIC RETURN 7",
    )
    table.forget()
    beats = (
        "SET SESSION binlog_format = STATEMENT",
        "REPLACE INTO d.u (id, v) VALUES (seven(), 'beat')",
        "UPDATE u SET v = 'y' WHERE id = seven()",
        "DELETE FROM u WHERE id = seven()",
    )
    table.execute(*beats)
    table.execute("INSERT INTO t VALUES (1, 'a')")
    options = ReadOptions(ignored_targets=frozenset([TableId("d", "u"), TableId("d", "t")]))
    reader = table.reader("t", options=options)
    assert rows(list(changes_of(reader, table.range()))) == [(I, 1, "a")]
    with pytest.raises(UnknownLogEventError, match="as a statement") as caught:
        table.read("t")
    assert "log.ignore_statements_on: [d.u]" in caught.value.remedy
    for statement in ("DELETE FROM t", "UPDATE u, t SET t.v = 'z', u.v = 'z'", "INSERT INTO m VALUES (seven())"):
        table.execute("REPLACE INTO t VALUES (1, 'a')", "REPLACE INTO u VALUES (7, 'b')")
        table.forget()
        table.execute(beats[0], statement)
        with pytest.raises(UnknownLogEventError, match="as a statement"):
            list(changes_of(reader, table.range()))


@pytest.mark.pitfall(105)
def test_truncate_by_a_client_without_a_character_set(table: LoggedServer) -> None:
    table.execute("DROP TABLE IF EXISTS `café`", "CREATE TABLE `café` LIKE t", "INSERT INTO `café` VALUES (1, 'a')")
    table.forget()
    table.execute("SET NAMES binary", "TRUNCATE TABLE `café`")
    table.execute("INSERT INTO `café` VALUES (2, 'b')")
    changes = table.read("café")
    assert [change["_change_type"] for change in changes] == [ChangeType.TRUNCATE, I]


@pytest.mark.pitfall(104)
def test_alter_ignore_is_refused(table: LoggedServer) -> None:
    if not table.is_mariadb:
        pytest.skip("MySQL has no ALTER IGNORE TABLE")
    table.execute("INSERT INTO t VALUES (1, 'a'), (2, 'a')")
    table.read("t")
    refused(table, SchemaChangedError, "ALTER IGNORE TABLE on", "ALTER IGNORE TABLE t ADD UNIQUE (v)")
    assert len(table.query("SELECT * FROM t")) == 1


@pytest.mark.pitfall(41)
def test_a_database_that_is_replaced_takes_its_tables_along(table: LoggedServer) -> None:
    if not table.is_mariadb:
        pytest.skip("MySQL has no CREATE OR REPLACE DATABASE")
    replace = ("CREATE OR REPLACE DATABASE other", "CREATE TABLE other.t LIKE t")
    table.execute(*replace, "INSERT INTO other.t VALUES (1, 'a')")
    schema = dataclasses.replace(table.schema("t"), table=TableId("other", "t"))
    table.forget()
    table.execute(*replace, "INSERT INTO other.t VALUES (2, 'b')")
    with pytest.raises(TableDroppedError, match=r"CREATE OR REPLACE DATABASE on other\.t"):
        table.read(schema)


@pytest.mark.pitfall(34)
@pytest.mark.parametrize("analyze", ["ANALYZE", "ANALYZE FORMAT=JSON"])
def test_a_write_that_is_analyzed_in_statement_format_is_refused(table: LoggedServer, analyze: str) -> None:
    if not table.is_mariadb:
        pytest.skip("MySQL has no ANALYZE of a statement")
    statements = ("INSERT INTO t VALUES (1, 'a')", "SET SESSION binlog_format = STATEMENT", f"{analyze} DELETE FROM t")
    refused(table, IncompleteRowsError, "DELETE as a statement", *statements)
    assert table.query("SELECT * FROM t") == []


@pytest.mark.pitfall(34)
@pytest.mark.parametrize("binlog_format", ["STATEMENT", "MIXED"])
def test_a_function_that_fills_a_temporary_table_may_write(table: LoggedServer, binlog_format: str) -> None:
    """MariaDB lets it, and logs only CREATE TEMPORARY TABLE. MySQL refuses the statement if it does."""
    begin = f"SET SESSION binlog_format = {binlog_format}"
    if not table.is_mariadb:
        table.execute(begin, "CREATE TEMPORARY TABLE filled SELECT 1 AS a")
        assert table.read("t") == []
        return
    body = "RETURNS INT DETERMINISTIC MODIFIES SQL DATA BEGIN DELETE FROM t; RETURN 1; END"
    table.execute("INSERT INTO t VALUES (1, 'a')", f"CREATE OR REPLACE FUNCTION writes() {body}")
    table.read("t")
    statements = (begin, "CREATE TEMPORARY TABLE filled SELECT writes()")
    error = refused(table, IncompleteRowsError, "CREATE TEMPORARY TABLE … SELECT as a statement", *statements)
    assert error.table == TableId("d", "t")
    assert "log.ignore_statements_on: [d.filled]" in error.remedy
    options = ReadOptions(ignored_targets=frozenset([TableId("d", "filled")]))
    assert list(changes_of(table.reader("t", options=options), table.range())) == []
    assert table.query("SELECT * FROM t") == []


@pytest.mark.pitfall(106)
def test_a_lost_key_is_noticed_in_its_own_epoch(table: LoggedServer) -> None:
    table.execute("ALTER TABLE t DROP PRIMARY KEY, ADD UNIQUE INDEX k (id), ADD INDEX other (v)")
    table.forget()
    keyed = dataclasses.replace(table.schema("t"), key=("id",))
    replaced = "CREATE OR REPLACE UNIQUE INDEX k ON t (v)" if table.is_mariadb else "DROP INDEX k ON t"
    for statement in (replaced, "ALTER TABLE t DROP INDEX other"):
        table.execute(statement)
        with pytest.raises(SchemaChangedError, match="may no longer be unique"):
            table.read(keyed)
        table.forget()
    table.execute("ALTER TABLE t ADD PRIMARY KEY (id), ADD INDEX other (v)")
    table.forget()
    table.execute("ALTER TABLE t DROP INDEX other", "INSERT INTO t VALUES (1, 'a')")
    assert rows(table.read(keyed)) == [(I, 1, "a")]


@pytest.mark.pitfall(103)
def test_a_cascading_foreign_key_added_to_a_captured_table(table: LoggedServer) -> None:
    table.execute("INSERT INTO u VALUES (1, 'a')", "INSERT INTO t VALUES (1, 'a')")
    table.read("t")
    added = "ALTER TABLE t ADD FOREIGN KEY (id) REFERENCES u (id) ON DELETE CASCADE"
    if not table.source().logs_cascades:
        refused(table, SchemaChangedError, "adds a foreign key", added)
    else:
        table.execute(added, "DELETE FROM u")
        assert rows(table.read("t")) == [(D, 1, "a")]


@pytest.mark.pitfall(32)
def test_minimal_row_images_are_refused(table: LoggedServer) -> None:
    table.execute("INSERT INTO t VALUES (1, 'a')")
    table.read("t")
    for image in ("MINIMAL", "NOBLOB"):
        if image == "NOBLOB":
            table.execute("ALTER TABLE u ADD w BLOB", "INSERT INTO u VALUES (1, 'a', 'b')")
            table.read("t")
        name = "u" if image == "NOBLOB" else "t"
        table.execute(f"SET SESSION binlog_row_image = {image}", f"UPDATE {name} SET v = CONCAT(v, 'x')")
        with pytest.raises(UnknownLogEventError, match="all columns") as caught:
            table.read(name)
        assert "binlog_row_image=FULL" in caught.value.remedy
        table.forget()


@pytest.mark.pitfall(31)
def test_minimal_row_metadata_is_refused(table: LoggedServer) -> None:
    missing = "NO_LOG" if table.is_mariadb else "MINIMAL"
    try:
        for value in ("MINIMAL", missing):
            table.execute(f"SET GLOBAL binlog_row_metadata = {value}", "INSERT INTO t SELECT COUNT(*), 'a' FROM t")
            with pytest.raises(UnknownLogEventError, match="does not name") as caught:
                table.read("t")
            assert "binlog_row_metadata=FULL" in caught.value.remedy
            table.forget()
    finally:
        table.execute("SET GLOBAL binlog_row_metadata = FULL")


@pytest.mark.pitfall(25)
@pytest.mark.pitfall(26)
@pytest.mark.parametrize(
    "options", [ReadOptions(), ReadOptions(receive_bytes=20_000, unpack_bytes=9000, column_buffer_bytes=40_000)]
)
def test_compressed_transactions(table: LoggedServer, options: ReadOptions) -> None:
    with contextlib.closing(table.connect()) as connection, connection.cursor() as cursor:
        if table.is_mariadb:
            cursor.execute("SET GLOBAL log_bin_compress = ON, log_bin_compress_min_len = 10")
        else:
            cursor.execute("SET SESSION binlog_transaction_compression = ON")
        try:
            cursor.execute("INSERT INTO t VALUES (0, 'first')")
            connection.begin()
            values = ", ".join(f"({i}, '{'x' * 150}')" for i in range(1, 3000))
            cursor.execute(f"INSERT INTO t VALUES {values}")
            cursor.execute("UPDATE t SET v = 'y' WHERE id > 2900")
            cursor.execute("SAVEPOINT s")
            cursor.execute("DELETE FROM t")
            cursor.execute("ROLLBACK TO s")
            connection.commit()
            cursor.execute("DELETE FROM t WHERE id < 3")
        finally:
            if table.is_mariadb:
                cursor.execute("SET GLOBAL log_bin_compress = OFF")
    changes = table.read("t", options=options)
    assert rows(changes) == [
        (I, 0, "first"), *((I, i, "x" * 150) for i in range(1, 3000)), *((U, i, "y") for i in range(2901, 3000)),
        *((D, i, "first" if i == 0 else "x" * 150) for i in range(3)),
    ]  # fmt: skip
    assert len({change["_commit_version"] for change in changes}) == 3
    kinds = {kind for _, _, kind, *_ in table.query(f"SHOW BINLOG EVENTS IN '{table.start.file}'")}
    assert kinds & {"Transaction_payload", "Write_rows_compressed_v1", "Write_rows_compressed"}


@pytest.mark.pitfall(83)
def test_transaction_larger_than_the_buffers(table: LoggedServer) -> None:
    with contextlib.closing(table.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO t VALUES (0, 'first')")
        connection.begin()
        for start in range(1, 20_001, 4000):
            cursor.execute("INSERT INTO t VALUES " + ", ".join(f"({i}, 'v{i}')" for i in range(start, start + 4000)))
        cursor.execute("UPDATE t SET id = -id WHERE id > 19990")
        connection.commit()
        cursor.execute("DELETE FROM t WHERE id < 0")
    part = table.range()
    reader = table.reader("t", options=ReadOptions(receive_bytes=40_000, column_buffer_bytes=100_000))
    sizes, found = [], []
    for batch in reader.read(part):
        sizes.append(batch.rows.num_rows)
        found += batch.rows.select(["id", "_commit_version", "_seq"]).to_pylist()
    assert max(sizes) < 5000
    assert len(found) == 1 + 20_000 + 20 + 10
    assert [row["_seq"] for row in found[1:-10]] == list(range(20_020))
    assert len({row["_commit_version"] for row in found}) == 3
    assert reader.report.transactions == 3
    assert reader.reconnects == 0
    whole = list(changes_of(table.reader("t"), part))
    assert [(row["id"], row["_commit_version"], row["_seq"]) for row in whole] == [
        (row["id"], row["_commit_version"], row["_seq"]) for row in found
    ]


@pytest.mark.pitfall(44)
def test_rotation_and_restart(table: LoggedServer) -> None:
    table.execute("INSERT INTO t VALUES (1, 'a')", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (2, 'b')")
    table.execute("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    table.server.restart()
    table.execute("INSERT INTO t VALUES (3, 'c')")
    table.server.kill()
    table.server.start()
    table.execute("INSERT INTO t VALUES (4, 'd')")
    changes = table.read("t")
    assert rows(changes) == [(I, i, v) for i, v in ((1, "a"), (2, "b"), (3, "c"), (4, "d"))]
    versions = [change["_commit_version"] for change in changes]
    assert versions == sorted(set(versions))


def test_checksums_switched_off_and_on(table: LoggedServer) -> None:
    try:
        table.execute(
            "INSERT INTO t VALUES (1, 'a')", "SET GLOBAL binlog_checksum = NONE", "INSERT INTO t VALUES (2, 'b')"
        )
        middle = table.end()
        table.execute(
            "INSERT INTO t VALUES (3, 'c')", "SET GLOBAL binlog_checksum = CRC32", "INSERT INTO t VALUES (4, 'd')"
        )
        part = table.range()
        assert [row[1] for row in rows(table.read("t"))] == [1, 2, 3, 4]
        later = LogRange(middle, part.stop)
        assert [row[1] for row in rows(list(changes_of(table.reader("t"), later)))] == [3, 4]
    finally:
        table.execute("SET GLOBAL binlog_checksum = CRC32")


@pytest.mark.pitfall(41)
def test_truncations_are_changes_in_their_order(table: LoggedServer) -> None:
    schema = table.schema("t")
    table.execute(
        "INSERT INTO t VALUES (1, 'a')", "TRUNCATE TABLE t", "TRUNCATE t /* c */", "INSERT INTO t VALUES (2, 'b')"
    )
    part = table.range()
    changes = table.read(schema)
    truncation = (ChangeType.TRUNCATE, None, None)
    assert rows(changes) == [(I, 1, "a"), truncation, truncation, (I, 2, "b")]
    assert [change["_commit_version"] for change in changes] == sorted(
        {change["_commit_version"] for change in changes}
    )
    with pytest.raises(SplitChangedError, match=r"d\.t"):
        list(changes_of(table.reader(schema), part, replay=True))
    with contextlib.closing(table.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_format = STATEMENT")
        cursor.execute("CREATE TEMPORARY TABLE t (id INT)")
        cursor.execute("TRUNCATE t")
    with pytest.raises(SchemaChangedError, match="TRUNCATE TABLE on"):
        table.read(schema)


@pytest.mark.pitfall(41)
@pytest.mark.pitfall(42)
@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE u, t"],
        ["ALTER TABLE t ADD w INT"],
        ["ALTER TABLE t MODIFY v VARCHAR(100)"],
        ["ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, v)"],
        ["CREATE TABLE t_new LIKE t", "RENAME TABLE t TO t_old, t_new TO t"],
        ["CREATE TABLE t_new LIKE t", "ALTER TABLE t RENAME t_old", "ALTER TABLE t_new RENAME t"],
        ["ALTER TABLE t CONVERT TO CHARACTER SET latin1"],
    ],
)
def test_ddl_that_changes_the_table_stops(table: LoggedServer, statements: list[str]) -> None:
    schema = table.schema("t")
    table.execute("INSERT INTO t VALUES (1, 'a')", *statements)
    with pytest.raises(SchemaChangedError, match=r"d\.t"):
        table.read(schema)
    with pytest.raises(SplitChangedError, match=r"d\.t"):
        list(changes_of(table.reader(schema), table.range(), replay=True))
    assert rows(table.read("u") if "u, t" not in statements[0] else []) == []


def test_ddl_that_leaves_the_table_alone_passes(table: LoggedServer) -> None:
    with contextlib.closing(table.connect()) as connection, connection.cursor() as cursor:
        for number, statement in enumerate(
            [
                "CREATE INDEX i ON t (v)",
                "ALTER TABLE t ADD UNIQUE KEY k (v, id), COMMENT 'DROP COLUMN v'",
                "ALTER TABLE t ENGINE=InnoDB ROW_FORMAT=DYNAMIC",
                "ALTER TABLE t DROP INDEX k, AUTO_INCREMENT=7",
                "OPTIMIZE TABLE t",
                "ANALYZE TABLE t",
                "CREATE TABLE m AS SELECT * FROM t",
                "DROP TABLE m",
                "CREATE VIEW w AS SELECT * FROM t",
                "DROP VIEW w",
                "CREATE TRIGGER r BEFORE INSERT ON t FOR EACH ROW INSERT INTO u VALUES (NEW.id, 'trigger')",
                "CREATE TEMPORARY TABLE t_old (a INT)",
                "DROP TEMPORARY TABLE t_old",
                "GRANT SELECT ON d.* TO root@localhost",
                "FLUSH TABLES",
                "ALTER TABLE t PARTITION BY HASH (id) PARTITIONS 3",
                "ALTER TABLE t REMOVE PARTITIONING",
                "ALTER TABLE t DEFAULT CHARACTER SET latin1",
            ]
        ):
            cursor.execute(statement)
            cursor.fetchall()
            cursor.execute(f"INSERT INTO t VALUES ({number}, 'a')")
    changes = [change for change in table.read("t", "u") if change["table"] == "t"]
    assert [change["id"] for change in changes] == list(range(18))


@pytest.mark.pitfall(43)
def test_yesterdays_table_is_not_read_as_todays(table: LoggedServer) -> None:
    schema = table.schema("t")
    table.execute(
        "INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t RENAME COLUMN v TO w", "INSERT INTO t VALUES (2, 'b')"
    )
    with pytest.raises(SchemaChangedError, match="'w'"):
        table.read("t")
    with pytest.raises(SchemaChangedError):
        table.read(schema)


def test_generated_invisible_and_excluded_columns(table: LoggedServer) -> None:
    require_logged_generated_columns(table.server)
    table.execute(
        "DROP TABLE u",
        "CREATE TABLE u (a INT, id INT PRIMARY KEY, g INT AS (a + 1) VIRTUAL, v VARCHAR(9) INVISIBLE, s INT AS (a * 2) STORED)",
    )
    table.forget()
    table.execute("INSERT INTO u (a, id, v) VALUES (1, 2, 'x')", "UPDATE u SET a = 5")
    changes = table.read("u")
    assert [(row["a"], row["id"], row["g"], row["v"], row["s"]) for row in changes] == [
        (1, 2, 2, "x", 2),
        (5, 2, 6, "x", 10),
    ]


def test_names_and_texts_of_any_alphabet(table: LoggedServer) -> None:
    table.execute(
        "DROP TABLE IF EXISTS `täble 表`",
        "CREATE TABLE `täble 表` (`ключ` INT PRIMARY KEY, `v``w` TEXT) CHARACTER SET utf8mb4",
    )
    table.forget()
    table.execute("INSERT INTO `täble 表` VALUES (1, '😀 ñ')")
    (change,) = table.read("täble 表")
    assert (change["ключ"], change["v`w"]) == (1, "😀 ñ")
    table.execute(
        "INSERT INTO `täble 表` VALUES (2, '')", "TRUNCATE TABLE `täble 表`", "INSERT INTO `täble 表` VALUES (3, '')"
    )
    changes = table.read("täble 表")
    assert [(change["_change_type"], change["ключ"]) for change in changes] == [
        (I, 2),
        (ChangeType.TRUNCATE, None),
        (I, 3),
    ]
    assert len({change["_txn_id"] for change in changes}) == 3


@pytest.fixture(scope="module")
def gtids() -> Iterator[LoggedServer]:
    with logged_server("mysql-gtid") as server:
        server.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9))")
        yield server


@pytest.mark.pitfall(47)
def test_tagged_gtids(gtids: LoggedServer) -> None:
    gtids.forget()
    gtids.execute(
        "SET gtid_next = 'AUTOMATIC:red'", "INSERT INTO t VALUES (1, 'a'), (2, 'b')", "DELETE FROM t WHERE id = 2"
    )
    gtids.execute("INSERT INTO t VALUES (3, 'c')", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (4, 'd')")
    changes = gtids.read("t")
    assert [row[1] for row in rows(changes)] == [1, 2, 2, 3, 4]
    assert [":red:" in change["_txn_id"] for change in changes] == [True, True, True, False, False]
    assert gtids.start.gtid_set() == GtidSet.parse(gtids.query("SELECT @@GLOBAL.gtid_executed")[0][0])
    gtids.execute("SET gtid_next = 'AUTOMATIC:red'", "INSERT INTO t VALUES (5, 'e')")
    skip = GtidSet.parse(gtids.query("SELECT @@GLOBAL.gtid_executed")[0][0])
    gtids.execute("INSERT INTO t VALUES (6, 'f')")
    assert [row[1] for row in rows(gtids.read("t", skip=skip))] == [6]


@pytest.mark.pitfall(33)
def test_partial_json_is_refused(gtids: LoggedServer) -> None:
    gtids.execute(
        "CREATE TABLE u (id INT PRIMARY KEY, v VARCHAR(9), j JSON)",
        """INSERT INTO u VALUES (1, 'a', '{"a": 1, "b": "xxxxxxxxxxxxxxxxxxxxxxxx"}')""",
    )
    gtids.forget()
    for image in ("MINIMAL", "FULL"):
        gtids.execute(
            f"SET SESSION binlog_row_value_options = PARTIAL_JSON, binlog_row_image = {image}",
            "UPDATE u SET j = JSON_SET(j, '$.a', 1 + JSON_EXTRACT(j, '$.a'))",
        )
        with pytest.raises(UnknownLogEventError, match="JSON") as caught:
            gtids.read("u")
        assert "binlog_row_value_options" in caught.value.remedy
        gtids.read("t")


def test_skipped_transactions(gtids: LoggedServer) -> None:
    table = gtids
    table.execute("DELETE FROM t")
    table.forget()
    table.execute("INSERT INTO t VALUES (1, 'a')")
    skip = GtidSet.parse(table.query("SELECT @@GLOBAL.gtid_executed")[0][0])
    table.execute("INSERT INTO t VALUES (2, 'b')")
    assert rows(table.read("t", skip=skip)) == [(I, 2, "b")]
    table.execute("ALTER TABLE t ADD w INT", "TRUNCATE t")
    skip = GtidSet.parse(table.query("SELECT @@GLOBAL.gtid_executed")[0][0])
    table.execute("INSERT INTO t VALUES (3, 'c', 4)")
    assert rows(table.read("t", skip=skip)) == [(I, 3, "c")]
