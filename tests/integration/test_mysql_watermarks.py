"""Watermarks on real servers: a low has everything that a SELECT may miss in the log after it, under any writers."""

import contextlib
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pymysql
import pytest

from tests.support.mysql_snapshot import Change, SourceTable, delayed_server, rows_of
from tests.support.servers import Database, FindServer, fresh_database
from tidemark.readers.mysql.connect import connect
from tidemark.readers.mysql.server import read_log_status, read_server
from tidemark.readers.mysql.snapshot import xa_commits as waiting_module
from tidemark.readers.mysql.snapshot.split_reader import SplitRead
from tidemark.readers.mysql.snapshot.watermark import (
    STATUS_LOCK,
    STATUS_LOCK_SECONDS,
    Low,
    Watermarks,
    _stable_position,
)
from tidemark.state.errors import LogPositionLostError, SourceNotUsableError
from tidemark.state.gtid import GtidSet
from tidemark.state.position import BinlogPosition

pytestmark = pytest.mark.integration

WRITERS = 6
ROWS = 300


class NaiveWatermarks(Watermarks):
    """A wrong low: the log's end. A transaction before it may not be visible yet."""

    def low(self, connection: Any, anchor: BinlogPosition) -> Low:
        status = read_log_status(connection, self._server)
        return Low(BinlogPosition(status.file, status.pos), GtidSet(), exact=False, taken_at_us=0)


@dataclass
class Writers:
    """Threads that raise the version of a few rows at a time, each row by one in each transaction."""

    database: Database
    stop: threading.Event
    threads: list[threading.Thread]
    errors: list[BaseException]
    started: threading.Semaphore
    transactions: int = 0

    def run(self, seed: int) -> None:
        chance = random.Random(seed)
        try:
            with (
                contextlib.closing(self.database.connect(autocommit=False)) as connection,
                connection.cursor() as cursor,
            ):
                while not self.stop.is_set():
                    for uid in sorted(chance.sample(range(ROWS), chance.choice([1, 1, 2, 3]))):
                        cursor.execute("UPDATE t SET version = version + 1 WHERE uid = %s", (uid,))
                    connection.commit()
                    self.transactions += 1
                    self.started.release()
        except BaseException as error:  # noqa: BLE001  the test's thread raises it
            self.errors.append(error)


@contextlib.contextmanager
def writing(database: Database) -> Iterator[Writers]:
    writers = Writers(database, threading.Event(), [], [], threading.Semaphore(0))
    writers.threads += [threading.Thread(target=writers.run, args=(seed,)) for seed in range(WRITERS)]
    for thread in writers.threads:
        thread.start()
    try:
        for _ in range(10 * WRITERS):
            assert writers.started.acquire(timeout=60)
        yield writers
    finally:
        writers.stop.set()
        for thread in writers.threads:
            thread.join()
    assert not writers.errors, writers.errors


def versioned(database: Database) -> SourceTable:
    values = ", ".join(f"({uid}, 0, 'x')" for uid in range(ROWS))
    database.execute(
        "CREATE TABLE t (uid INT PRIMARY KEY, version INT NOT NULL, pad VARCHAR(50))", f"INSERT INTO t VALUES {values}"
    )
    return SourceTable(database)


def broken(reads: Sequence[SplitRead], table: SourceTable) -> list[str]:
    """The changes that are lost, repeated or go back when each read is followed by the log after its high."""
    later: defaultdict[int, list[Change]] = defaultdict(list)
    for change in table.changes(min((read.report.high for read in reads), key=lambda high: high.order)):
        later[change.row[0]].append(change)
    source = {row[0]: row[1] for row in table.rows()}
    found = []
    for number, read in enumerate(reads):
        rows = rows_of(read.rows)
        assert [row[0] for row in rows] == list(range(ROWS))
        for uid, version, _ in rows:
            for change in later.get(uid, []):
                if change.version <= read.report.high.version:
                    continue
                if change.row[1] != version + 1:
                    found.append(f"read {number}: row {uid} goes from version {version} to {change.row[1]}")
                version = change.row[1]
            if version != source[uid]:
                found.append(f"read {number}: row {uid} ends at version {version}, not {source[uid]}")
    return found


def read_under_writers(table: SourceTable, count: int, watermarks: type[Watermarks] = Watermarks) -> list[SplitRead]:
    source = table.source
    with (
        writing(table.database),
        table.reader(watermarks=watermarks(source.server, source.method, table.log)) as reader,
    ):
        return [reader.read(table.split(), table.schema, table.anchor) for _ in range(count)]


@pytest.mark.pitfall(1)
@pytest.mark.parametrize("gtid", [True, False], ids=["gtid", "nogtid"])
def test_no_change_is_lost_under_concurrent_writers(gtid: bool, find_server: FindServer) -> None:
    """The low is gtid_executed or log_status; 200 reads of each were seen to be exact. With file:pos as the low
    (NaiveWatermarks) the same check fails: see the next test."""
    with fresh_database(delayed_server(find_server, gtid=gtid)) as database:
        table = versioned(database)
        assert table.source.method == ("gtid" if gtid else "log_status")
        assert broken(read_under_writers(table, 40), table) == []


@pytest.mark.pitfall(1)
@pytest.mark.parametrize("gtid", [True, False], ids=["gtid", "nogtid"])
def test_a_low_of_file_and_offset_does_lose_changes(gtid: bool, find_server: FindServer) -> None:
    """How the check above was seen to fail: `low` is replaced by the log's end, nothing else. With six writers and
    binlog_group_commit_sync_delay=2000, 16 of 60 reads with GTIDs and 23 of 60 without them missed a change that is
    before the low but was not yet visible to the SELECT ("row 12 goes from version 1 to 3")."""
    with fresh_database(delayed_server(find_server, gtid=gtid)) as database:
        table = versioned(database)
        found: list[str] = []
        for _ in range(20):
            found = broken(read_under_writers(table, 10, NaiveWatermarks), table)
            if found:
                break
        assert found


@pytest.mark.pitfall(2)
def test_no_change_is_lost_under_concurrent_writers_on_mariadb(mariadb_database: Database) -> None:
    table = versioned(mariadb_database)
    reads = read_under_writers(table, 60)
    assert broken(reads, table) == []
    assert len({read.report.high.order for read in reads}) > 10


@pytest.mark.pitfall(1)
def test_no_change_is_lost_without_a_delay_either(mysql_database: Database) -> None:
    table = versioned(mysql_database)
    assert broken(read_under_writers(table, 40), table) == []


@contextlib.contextmanager
def connected(table: SourceTable) -> Iterator[Any]:
    with contextlib.closing(connect(table.endpoint, None)) as connection:
        yield connection


def test_a_low_has_what_was_committed_and_nothing_later(source_database: Database) -> None:
    table = versioned(source_database)
    watermarks = Watermarks(table.source.server, table.source.method, table.log)
    source_database.execute("UPDATE t SET version = 1")
    before = table.log_end()
    with connected(table) as connection:
        low = watermarks.low(connection, table.anchor)
        source_database.execute("UPDATE t SET version = 2")
        high = watermarks.high(connection, low)
    after = table.log_end()
    match table.source.method:
        case "gtid":
            assert low.start == table.anchor
            assert low.contained.contains_all(before.gtid_set())
            assert not low.contained.contains_all(after.gtid_set())
            assert before.order < high.order <= after.order
        case "log_status":
            assert before.order <= low.start.order < high.order <= after.order
            assert low.contained == GtidSet()
        case "consistent_snapshot":
            assert low.exact
            assert before.order <= low.start.order == high.order < after.order


@pytest.mark.pitfall(1)
def test_a_low_waits_for_the_anchors_transactions(mysql_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The anchor's GTIDs are in the log. A replica, or a server that waits for one, may not have executed them yet."""
    table = versioned(mysql_database)
    stranger = "00000000-0000-4000-8000-00000000000a"
    waited: list[float] = []

    def commit_while_waiting(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            mysql_database.execute(
                f"SET gtid_next = '{stranger}:{ids[0]}'", "BEGIN", "COMMIT", "SET gtid_next = 'AUTOMATIC'"
            )

    executed = GtidSet.parse(table.anchor.gtids or "").intervals.get((stranger, ""), ())
    ids = [max((end for _, end in executed), default=1)]
    anchor = replace(table.anchor, gtids=f"{table.anchor.gtids},{stranger}:{ids[0]}")
    monkeypatch.setattr(waiting_module.time, "sleep", commit_while_waiting)
    with connected(table) as connection:
        low = Watermarks(table.source.server, "gtid", table.log).low(connection, anchor)
    assert len(waited) == 3
    assert low.contained.contains_all(anchor.gtid_set())


def test_an_anchor_that_never_becomes_visible_is_an_error(
    mysql_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = versioned(mysql_database)
    monkeypatch.setattr(waiting_module, "VISIBILITY_WAIT_SECONDS", 0.0)
    anchor = replace(table.anchor, gtids="00000000-0000-4000-8000-00000000000b:1-5")
    with connected(table) as connection, pytest.raises(SourceNotUsableError, match="not executed"):
        Watermarks(table.source.server, "gtid", table.log).low(connection, anchor)


@pytest.mark.pitfall(45)
def test_a_log_that_ends_before_the_low_was_reset(mysql_database: Database) -> None:
    table = versioned(mysql_database)
    anchor = replace(table.anchor, pos=table.anchor.pos + 10**9)
    with pytest.raises(LogPositionLostError, match="ends at"), table.reader() as reader:
        reader.read(table.split(), table.schema, anchor)


@pytest.mark.pitfall(1)
def test_log_status_needs_a_grant_and_says_which(mysql_nogtid_database: Database) -> None:
    table = versioned(mysql_nogtid_database)
    user = f"u{mysql_nogtid_database.name[-12:]}"
    mysql_nogtid_database.execute(
        f"CREATE USER {user} IDENTIFIED BY ''", f"GRANT SELECT, REPLICATION CLIENT ON *.* TO {user}"
    )
    try:
        endpoint = replace(table.endpoint, user=user)
        with contextlib.closing(connect(endpoint, None)) as connection:
            server = read_server(connection, "mysql")
            with pytest.raises(SourceNotUsableError, match="BACKUP_ADMIN"):
                Watermarks(server, "log_status", table.log).low(connection, table.anchor)
    finally:
        mysql_nogtid_database.execute(f"DROP USER {user}")


@pytest.mark.pitfall(47)
def test_tagged_gtids_are_part_of_a_low(mysql_database: Database) -> None:
    table = versioned(mysql_database)
    with contextlib.closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
        try:
            cursor.execute("SET gtid_next = 'AUTOMATIC:shop'")
        except pymysql.MySQLError:
            pytest.fail("the server knows no tagged GTIDs: MySQL 8.3 or newer is wanted here")
        cursor.execute("UPDATE t SET version = version + 1")
    read = table.read()
    assert {row[1] for row in rows_of(read.rows)} == {1}
    assert ":shop:" in str(read.report.high.gtids)


def test_readers_of_mariadb_are_not_shown_each_others_positions(mariadb_database: Database) -> None:
    """The server mixes up the answers of sessions that ask at the same moment."""
    mariadb_database.execute("CREATE TABLE mixed (id int PRIMARY KEY)")
    with contextlib.closing(mariadb_database.connect()) as connection:
        info = read_server(connection, "mariadb")
        status = read_log_status(connection, info)
    watermarks = Watermarks(info, "consistent_snapshot", SourceTable(mariadb_database, "mixed").log)
    anchor = BinlogPosition(status.file, status.pos)
    starts: list[tuple[Any, BinlogPosition]] = []
    wrong: list[str] = []
    with contextlib.ExitStack() as stack:
        for number in range(3):
            mariadb_database.execute(f"INSERT INTO mixed VALUES ({number})")
            connection = stack.enter_context(contextlib.closing(mariadb_database.connect()))
            starts.append((connection, watermarks.low(connection, anchor).start))

        def ask(connection: Any, start: BinlogPosition) -> None:
            with connection.cursor() as cursor:
                for _ in range(300):
                    wrong.extend({_stable_position(cursor)["binlog_snapshot_position"]} - {str(start.pos)})

        threads = [threading.Thread(target=ask, args=pair) for pair in starts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({start.pos for _, start in starts}) == 3
    assert wrong == []


def test_readers_of_mariadb_take_turns_and_outlast_one_that_was_cut_off(mariadb_database: Database) -> None:
    table = versioned(mariadb_database)
    with (
        contextlib.closing(mariadb_database.connect()) as cut_off,
        contextlib.closing(mariadb_database.connect()) as connection,
        cut_off.cursor() as holder,
    ):
        info = read_server(connection, "mariadb")
        status = read_log_status(connection, info)
        watermarks = Watermarks(info, "consistent_snapshot", table.log)
        anchor = BinlogPosition(status.file, status.pos)
        watermarks.low(connection, anchor)
        holder.execute("SELECT GET_LOCK(%s, 5)", (STATUS_LOCK,))
        assert holder.fetchone() == (1,)
        began = time.monotonic()
        low = watermarks.low(connection, anchor)
        assert time.monotonic() - began >= STATUS_LOCK_SECONDS
        assert low.exact
        assert low.start.order >= anchor.order
