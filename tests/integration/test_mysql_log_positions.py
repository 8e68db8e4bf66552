"""Positions in a real server's log: anchors under concurrent writers, every form of `log.start`, and lost logs."""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest

from tests.support.log_reading import LoggedServer, changes_of, logged, logged_server
from tidemark.conf.reading import StartAfterGtids, StartAtEnd, StartAtFile, StartAtTime
from tidemark.readers.mysql.binlog import reading as log_reading
from tidemark.readers.mysql.binlog.positions import LogPositions, binary_logs, log_end
from tidemark.state.errors import JobFileError, LogPositionLostError
from tidemark.state.gtid import GtidSet
from tidemark.state.log_range import LogRange
from tidemark.state.position import BinlogPosition

__all__ = ["logged"]
pytestmark = pytest.mark.integration


@pytest.fixture
def table(logged: LoggedServer) -> LoggedServer:
    logged.execute("DROP TABLE IF EXISTS t", "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(200))")
    logged.forget()
    return logged


@contextlib.contextmanager
def positions_of(server: LoggedServer) -> Iterator[LogPositions]:
    positions = server.positions()
    with contextlib.closing(positions.connection):
        yield positions


def executed(server: LoggedServer) -> GtidSet:
    return GtidSet.parse(server.query("SELECT @@GLOBAL.gtid_executed")[0][0])


def ids_from(server: LoggedServer, start: BinlogPosition) -> list[int]:
    end = server.end()
    part = LogRange(start, end)
    return [change["id"] for change in changes_of(server.reader("t"), part)]


def test_anchor_has_exactly_the_gtids_before_it(table: LoggedServer) -> None:
    """The transactions of the anchor and those read after it are all there are, without overlap, whatever is committed
    meanwhile."""
    stopped = threading.Event()

    def write() -> None:
        with contextlib.closing(table.connect()) as connection, connection.cursor() as cursor:
            number = threading.get_ident() % 1000 * 1_000_000
            while not stopped.is_set():
                number += 1
                cursor.execute(f"REPLACE INTO t VALUES ({number % 2**31}, 'x')")
                if number % 100 == 0:
                    cursor.execute("FLUSH BINARY LOGS")

    writers = [threading.Thread(target=write) for _ in range(3)]
    for writer in writers:
        writer.start()
    try:
        anchors = [table.anchor() for _ in range(5)]
    finally:
        stopped.set()
        for writer in writers:
            writer.join()
    end = table.end()
    for anchor in anchors:
        reader = table.reader("t")
        list(reader.read(LogRange(anchor, end)))
        assert (reader.report.end.file, reader.report.end.pos) == (end.file, end.pos)
        if table.has_gtid_sets:
            assert reader.report.end.gtid_set() == executed(table)
        else:
            assert anchor.gtids is None


def test_files_and_end(table: LoggedServer) -> None:
    table.execute("FLUSH BINARY LOGS")
    with positions_of(table) as positions:
        files = binary_logs(positions.connection)
        end = log_end(positions.connection, positions.server)
        assert (end.file, end.pos) == files[-1]
        assert positions.resolve(StartAtEnd("latest")) == positions.find_anchor()
        assert positions.resolve(StartAtEnd("earliest")).file == files[0][0]
        assert positions.resolve(StartAtEnd("earliest")).pos == 4


@pytest.mark.pitfall(27)
@pytest.mark.pitfall(30)
def test_start_at_a_place_must_be_a_boundary(table: LoggedServer) -> None:
    table.execute("INSERT INTO t VALUES (1, 'a')")
    place = table.end()
    table.execute("INSERT INTO t VALUES (2, 'b')")
    with positions_of(table) as positions:
        found = positions.resolve(StartAtFile(place.file, place.pos))
        assert (found.file, found.pos) == (place.file, place.pos)
        assert ids_from(table, found) == [2]
        if table.has_gtid_sets:
            assert len(str(found.gtids)) > 10
            assert table.anchor().gtid_set() == executed(table)
        for offset in (1, -1, 80):
            with pytest.raises(JobFileError, match="inside a transaction"):
                positions.resolve(StartAtFile(place.file, place.pos + offset))
        for file, pos in ((place.file, 10**9), ("binlog.999999", 4)):
            with pytest.raises(LogPositionLostError, match=r"binlog\.0"):
                positions.resolve(StartAtFile(file, pos))


def test_start_after_gtids(table: LoggedServer) -> None:
    table.execute("INSERT INTO t VALUES (1, 'a')", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (2, 'b')")
    variable = "gtid_binlog_pos" if table.is_mariadb else "gtid_executed"
    with positions_of(table) as positions:
        if table.name == "mysql-nogtid":
            with pytest.raises(JobFileError, match="gtid_mode"):
                positions.resolve(StartAfterGtids("00000000-0000-0000-0000-000000000001:1"))
            return
        middle = table.query(f"SELECT @@GLOBAL.{variable}")[0][0]
        table.execute("INSERT INTO t VALUES (3, 'c')", "FLUSH BINARY LOGS")
        found = positions.resolve(StartAfterGtids(middle))
        assert ids_from(table, found) == [3]
        if not table.is_mariadb:
            assert found.gtid_set() == GtidSet.parse(middle)
        assert (
            ids_from(table, positions.resolve(StartAfterGtids(table.query(f"SELECT @@GLOBAL.{variable}")[0][0]))) == []
        )


@pytest.mark.pitfall(46)
def test_gtids_that_name_no_place_are_refused(table: LoggedServer) -> None:
    table.execute("INSERT INTO t VALUES (1, 'a')", "INSERT INTO t VALUES (2, 'b')")
    with positions_of(table) as positions:
        if table.is_mariadb:
            for text in ("0-1-99999999", "5-1-1", "0-7-1"):
                with pytest.raises((JobFileError, LogPositionLostError)):
                    positions.resolve(StartAfterGtids(text))
        elif table.has_gtid_sets:
            source, _, last = str(executed(table)).rpartition("-")
            gap = f"{source}-{int(last) - 2}:{last}"
            with pytest.raises(JobFileError, match="come after other transactions"):
                positions.resolve(StartAfterGtids(gap))
            with pytest.raises(JobFileError, match="does not have"):
                positions.resolve(StartAfterGtids(f"{source}-{int(last) + 5}"))


def test_start_at_a_time(table: LoggedServer) -> None:
    table.execute("INSERT INTO t VALUES (1, 'a')", "FLUSH BINARY LOGS")
    with positions_of(table) as positions:
        table.execute("SELECT SLEEP(1.1)")  # MariaDB's log has seconds
        moment = datetime.fromtimestamp(float(table.query("SELECT UNIX_TIMESTAMP(NOW(6))")[0][0]), timezone.utc)
        table.execute("SELECT SLEEP(1.1)", "INSERT INTO t VALUES (2, 'b')")
        assert ids_from(table, positions.resolve(StartAtTime(moment))) == [2]
        soon = positions.resolve(StartAtTime(moment + timedelta(seconds=30)))
        assert (soon.file, soon.pos) == (table.end().file, table.end().pos)
        with pytest.raises(JobFileError, match="in the future"):
            positions.resolve(StartAtTime(moment + timedelta(days=1)))
        first = positions.resolve(StartAtTime(moment - timedelta(days=1)))
        assert first.file == binary_logs(positions.connection)[0][0]


# Lost logs


@pytest.fixture(params=["mysql-gtid", "mysql-nogtid", "mariadb"])
def own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoggedServer]:
    """A server of the test's own, whose log will be lost."""
    monkeypatch.setattr(log_reading, "FIRST_DELAY_SECONDS", 0.0)
    with logged_server(request.param) as server:
        server.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(200))", "INSERT INTO t VALUES (1, 'a')")
        server.forget()
        yield server


@pytest.mark.pitfall(85)
@pytest.mark.pitfall(46)
@pytest.mark.pitfall(45)
def test_logs_that_are_purged_or_reset_stop_the_reading(own: LoggedServer) -> None:
    before = own.start
    own.execute("INSERT INTO t VALUES (2, 'b')", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (3, 'c')")
    end = own.end()
    while own.query("SHOW BINARY LOGS")[0][0] != end.file:  # MariaDB keeps a file for a moment
        own.execute(f"PURGE BINARY LOGS TO '{end.file}'")
    with pytest.raises(LogPositionLostError, match="no longer has") as caught:
        own.read("t")
    assert "checkpoint" in caught.value.remedy
    with positions_of(own) as positions:
        assert positions.resolve(StartAtEnd("earliest")).file == end.file
        with pytest.raises(LogPositionLostError):
            positions.resolve(StartAtTime(datetime(2001, 1, 1, tzinfo=timezone.utc)))
        if own.name == "mysql-gtid":
            with pytest.raises(LogPositionLostError, match="starts after"):
                positions.resolve(StartAfterGtids(str(before.gtids)))
    reset = "RESET MASTER" if own.is_mariadb else "RESET BINARY LOGS AND GTIDS"
    own.execute(reset, *(f"INSERT INTO t VALUES ({number}, 'x')" for number in range(10, 40)))
    if own.name == "mysql-gtid":  # without GTIDs the same file and offset may be a boundary of the new log
        with pytest.raises(LogPositionLostError):
            own.read("t")
        own.start = BinlogPosition(own.end().file, 4, before.gtids)
        with pytest.raises(LogPositionLostError, match="comes after"):
            own.read("t")
    own.start = end
    with pytest.raises(LogPositionLostError):
        own.read("t")


@pytest.mark.pitfall(45)
def test_positions_of_another_server_are_refused(table: LoggedServer) -> None:
    with logged_server(table.name, server_id=9) as other:
        reader = table.reader("t")
        reader.source = dataclasses.replace(other.source(), identity=table.source().identity)
        with pytest.raises(LogPositionLostError, match="This is server"):
            list(reader.read(LogRange(BinlogPosition("binlog.000001", 4), BinlogPosition("binlog.000001", 9999))))
