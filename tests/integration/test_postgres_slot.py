"""The slot and the publication: their guarantees, and that nothing is read once they can't be kept."""

import contextlib
import dataclasses
import threading

import pytest

from devtools.servers import start_server
from tests.support.postgres_log import VERSIONS, LoggedDatabase, changes_of, logged_postgres
from tests.support.postgres_roles import role
from tests.support.servers import fresh_database
from tidemark.readers.findings import raise_refusals
from tidemark.readers.postgres.connect import connect
from tidemark.readers.postgres.pgoutput.reader import LogReader
from tidemark.readers.postgres.slot import publication
from tidemark.readers.postgres.slot.log_source import ConnectionLostError
from tidemark.readers.postgres.slot.open_transactions import wait_for_open_transactions
from tidemark.readers.postgres.slot.server_log import ServerLog
from tidemark.readers.postgres.slot.slot import (
    advance_slot,
    check_position,
    check_slot,
    create_slot,
    drop_slot,
    log_end,
)
from tidemark.state.errors import LogPositionLostError, SourceNotUsableError
from tidemark.state.log_range import LogRange
from tidemark.state.position import WalPosition
from tidemark.state.table import TableId

__all__ = ["logged_postgres"]

pytestmark = pytest.mark.servers_in_turn("logged_postgres")

T = TableId("public", "t")


@pytest.fixture
def log(logged_postgres: LoggedDatabase) -> LoggedDatabase:
    """A database with a table `t` that is followed."""
    logged_postgres.execute("CREATE TABLE t (id int PRIMARY KEY)")
    logged_postgres.publish("t")
    return logged_postgres


def check(log: LoggedDatabase, position: WalPosition | None = None) -> None:
    with log.connected() as connection:
        check_slot(connection, log.place(), log.start if position is None else position)


def confirmed(log: LoggedDatabase) -> int:
    ((lsn,),) = log.query(
        f"SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = '{log.name}'"
    )
    return int(lsn)


@pytest.mark.pitfall(57)
def test_a_slot_that_is_gone_or_was_made_anew_is_not_read(log: LoggedDatabase) -> None:
    check(log)
    log.execute("INSERT INTO t VALUES (1)", f"SELECT pg_drop_replication_slot('{log.name}')")
    with pytest.raises(LogPositionLostError, match="is gone"):
        check(log)
    with pytest.raises(LogPositionLostError, match="is gone"):
        log.read("t")
    log.execute(f"SELECT pg_create_logical_replication_slot('{log.name}', 'pgoutput')")
    with pytest.raises(LogPositionLostError, match="dropped and created again"):
        log.read("t")


@pytest.mark.pitfall(56)
def test_a_slot_that_somebody_advanced_is_not_read(log: LoggedDatabase) -> None:
    log.execute("INSERT INTO t VALUES (1)")
    end = log.end()
    log.execute(f"SELECT pg_replication_slot_advance('{log.name}', '{end}')")
    with pytest.raises(LogPositionLostError, match="somebody else read from it"):
        log.read("t")


@pytest.mark.parametrize("options", ["'test_decoding'", "'pgoutput', false, true"])
def test_a_slot_of_another_kind_is_refused(log: LoggedDatabase, options: str) -> None:
    log.execute(f"SELECT pg_create_logical_replication_slot('{log.name}_x', {options})")
    with log.connected() as connection, pytest.raises(SourceNotUsableError, match="can't read the replication slot"):
        create_slot(connection, f"{log.name}_x")


def test_a_slot_of_another_database_is_refused(log: LoggedDatabase) -> None:
    with fresh_database(log.database.server) as database:
        database.execute(f"SELECT pg_create_logical_replication_slot('{database.name}', 'pgoutput')")
        place = dataclasses.replace(log.place(), slot=database.name)
        with log.connected() as connection, pytest.raises(SourceNotUsableError, match=f"database {database.name}"):
            check_slot(connection, place, log.start)


@pytest.mark.pitfall(45)
def test_another_server_another_timeline_or_a_shorter_log_are_found(log: LoggedDatabase) -> None:
    place = log.place()
    others = [
        dataclasses.replace(place.identity, system="1"),
        dataclasses.replace(place.identity, timeline=place.identity.timeline + 1),
    ]
    with log.connected() as connection:
        for identity in others:
            with pytest.raises(LogPositionLostError):
                check_slot(connection, dataclasses.replace(place, identity=identity), log.start)
        with pytest.raises(LogPositionLostError, match="ends at"):
            check_slot(connection, place, WalPosition(log.end().lsn + (1 << 40)))


@pytest.mark.pitfall(59, 85)
@pytest.mark.integration
@pytest.mark.parametrize("version", VERSIONS)
def test_an_invalidated_slot_stops_the_reading(version: str) -> None:
    options = {"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}
    with start_server("postgres", options, version) as server, fresh_database(server) as database:
        log = LoggedDatabase(database)
        log.execute("CREATE TABLE t (id int PRIMARY KEY)")
        log.publish("t")
        for i in range(6):
            log.execute(f"INSERT INTO t VALUES ({i})", "SELECT pg_switch_wal()", "CHECKPOINT")
        with pytest.raises(LogPositionLostError, match="invalidated the replication slot"):
            log.read("t")


def test_a_slot_in_use_is_waited_for(log: LoggedDatabase) -> None:
    with contextlib.closing(log.database.connect()) as other, other.cursor() as cursor:
        other.autocommit = False
        cursor.execute("CREATE TABLE many AS SELECT i FROM generate_series(1, 200000) AS i")
        other.commit()
        other.autocommit = True
        reading = threading.Thread(
            target=cursor.execute,
            args=(
                "SELECT count(*), pg_sleep(0) FROM pg_logical_slot_peek_binary_changes"
                f"('{log.name}', NULL, NULL, 'proto_version', '1', 'publication_names', '{log.name}')",
            ),
        )
        log.execute("INSERT INTO t SELECT generate_series(1, 100000)")
        reading.start()
        busy = 0
        while reading.is_alive():
            try:
                check(log)
            except ConnectionLostError:
                busy += 1
        reading.join()
    assert busy
    check(log)
    assert len(log.read("t")) == 100_000


@pytest.mark.pitfall(60)
def test_advancing_frees_the_log_of_an_idle_table_and_never_goes_back(log: LoggedDatabase) -> None:
    log.execute("CREATE TABLE busy AS SELECT generate_series(1, 1000)")
    middle = log.end()
    log.execute("INSERT INTO t VALUES (1)")
    with log.connected() as connection:
        advance_slot(connection, log.name, middle)
        assert log.start.lsn < confirmed(log) <= middle.lsn
        reached = confirmed(log)
        advance_slot(connection, log.name, log.start)
        advance_slot(connection, log.name, middle)
        assert confirmed(log) == reached
    log.start = middle
    assert [change["id"] for change in log.read("t")] == [1]


@pytest.mark.pitfall(54)
@pytest.mark.pitfall(55)
def test_reading_consumes_nothing(log: LoggedDatabase) -> None:
    log.execute("INSERT INTO t VALUES (1)")
    first, before = log.start, confirmed(log)
    once = log.read("t")
    assert confirmed(log) == before
    log.start = first
    assert log.read("t") == once


def test_slot_and_publication_are_dropped_once(log: LoggedDatabase) -> None:
    with log.connected() as connection:
        assert drop_slot(connection, log.name)
        assert not drop_slot(connection, log.name)
        assert publication.drop_publication(connection, log.name)
        assert not publication.drop_publication(connection, log.name)
        with pytest.raises(LogPositionLostError):
            check_position(connection, log.name, log.start)


def test_a_slot_is_made_once_and_found_again(log: LoggedDatabase) -> None:
    log.execute("INSERT INTO t VALUES (1)")
    with log.connected() as connection:
        assert create_slot(connection, log.name) == log.start
        assert not publication.create_publication(connection, log.name, [T])


def test_a_role_without_replication_is_told_what_it_lacks(log: LoggedDatabase) -> None:
    with role(log.database, "SELECT ON t") as endpoint, contextlib.closing(connect(endpoint, None)) as connection:
        reader = LogReader(ServerLog(endpoint, None, log.place()), {T: log.schema("t")})
        with pytest.raises(
            SourceNotUsableError, match=rf'may not read the log.*ALTER ROLE "{endpoint.user}" REPLICATION'
        ):
            changes_of(reader, LogRange(log.start, log.end()))
        with pytest.raises(SourceNotUsableError, match=f'ALTER ROLE "{endpoint.user}" REPLICATION'):
            create_slot(connection, f"{log.name}_x")


def test_a_role_that_may_only_read_and_replicate(log: LoggedDatabase) -> None:
    log.execute("INSERT INTO t VALUES (1)")
    with role(log.database, "SELECT ON t", "USAGE ON SCHEMA public", attributes="LOGIN REPLICATION") as endpoint:
        reader = LogReader(ServerLog(endpoint, None, log.place()), {T: log.schema("t")})
        assert [change["id"] for change in changes_of(reader, LogRange(log.start, log.end()))] == [1]
        with contextlib.closing(connect(endpoint, None)) as connection:
            assert publication.check_publication(connection, log.name, [T], partitioned=[]) == []
            assert create_slot(connection, log.name) == log.start
            advance_slot(connection, log.name, log.end())
            assert drop_slot(connection, log.name)
            with pytest.raises(SourceNotUsableError, match=r"must be owner of publication .* Correct what the server"):
                publication.drop_publication(connection, log.name)


@pytest.mark.pitfall(64)
def test_a_table_that_is_added_is_read_only_after_older_transactions_ended(log: LoggedDatabase) -> None:
    log.execute("CREATE TABLE late (id int PRIMARY KEY)")
    with contextlib.closing(log.database.connect()) as writer, writer.cursor() as cursor, log.connected() as connection:
        writer.autocommit = False
        cursor.execute("INSERT INTO late VALUES (1)")
        with pytest.raises(SourceNotUsableError, match="older transactions are open"):
            wait_for_open_transactions(connection, seconds=0.3)
        added = threading.Thread(
            target=publication.add_tables, args=(connection, log.name, [T, TableId("public", "late")])
        )
        added.start()
        added.join(timeout=0.5)
        assert added.is_alive()
        writer.commit()
        added.join(timeout=20)
        assert not added.is_alive()
    log.execute("INSERT INTO late VALUES (2)")
    assert [change["id"] for change in log.read("late")][-1] == 2


@pytest.mark.pitfall(65)
@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root = true, publish = 'insert')",
            "all of insert",
        ),
        ("CREATE PUBLICATION p WITH (publish_via_partition_root = true)", r"does not have public\.t"),
        ("CREATE PUBLICATION p FOR TABLE t WHERE (id > 1) WITH (publish_via_partition_root = true)", "row filter"),
        ("CREATE PUBLICATION p FOR TABLE t (id) WITH (publish_via_partition_root = true)", "column list"),
        ("SELECT", "does not exist"),
    ],
)
def test_a_publication_that_leaves_something_out_is_refused(log: LoggedDatabase, statement: str, message: str) -> None:
    log.execute(statement)
    with log.connected() as connection:
        findings = publication.check_publication(connection, "p", [T], partitioned=[])
        with pytest.raises(SourceNotUsableError, match=message):
            raise_refusals(findings)


@pytest.mark.pitfall(117)
@pytest.mark.parametrize("options", ["", "WITH (publish_via_partition_root = true)"])
@pytest.mark.parametrize("tables", ["ALL TABLES", "TABLES IN SCHEMA public", "TABLE t"])
def test_a_publication_that_has_the_table_will_do(log: LoggedDatabase, tables: str, options: str) -> None:
    log.execute(f"CREATE PUBLICATION p FOR {tables} {options}")
    with log.connected() as connection:
        assert publication.check_publication(connection, "p", [T], partitioned=[]) == []
        known = publication.memberships(connection, "p", [T])
        publication.require_memberships(connection, "p", known, {T: oid(log)})
        assert set(known) == {T}


@pytest.mark.pitfall(65)
@pytest.mark.parametrize(
    "statement",
    [
        "ALTER PUBLICATION {0} DROP TABLE t; ALTER PUBLICATION {0} ADD TABLE t",
        "ALTER PUBLICATION {0} SET (publish = ''); ALTER PUBLICATION {0} SET (publish = 'insert, update, delete, truncate')",
        "DROP PUBLICATION {0}; CREATE PUBLICATION {0} FOR TABLE t WITH (publish_via_partition_root = true)",
        "DROP PUBLICATION {0}",
    ],
)
def test_a_table_that_was_out_of_the_publication_for_a_moment_is_found(log: LoggedDatabase, statement: str) -> None:
    log.execute("CREATE TABLE another (id int PRIMARY KEY)")
    with log.connected() as connection:
        known = publication.memberships(connection, log.name, [T])
        publication.add_tables(connection, log.name, [TableId("public", "another")])
        publication.require_memberships(connection, log.name, known, {T: oid(log)})
        for part in statement.format(log.name).split("; "):
            log.execute(part)
        with pytest.raises(LogPositionLostError, match=r"was altered for public\.t"):
            publication.require_memberships(connection, log.name, known, {T: oid(log)})


def oid(log: LoggedDatabase) -> int:
    return int(log.query("SELECT 'public.t'::regclass::oid::bigint")[0][0])


def written(log: LoggedDatabase) -> WalPosition:
    """The end of the log, flushed or not."""
    return WalPosition(int(log.query("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")[0][0]))


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
def test_the_end_of_the_log_is_waited_for_until_it_can_be_read(log: LoggedDatabase, ending: str) -> None:
    """Commits that are asynchronous or still open are flushed later than snapshots see the end of the log."""
    with contextlib.closing(log.database.connect()) as writer, writer.cursor() as cursor, log.connected() as connection:
        cursor.execute("SET synchronous_commit = off")
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO public.t SELECT generate_series(1, 1000)")
        before = written(log)
        end = log_end(connection)
        check_position(connection, log.name, before)
        cursor.execute(ending)
        after = written(log)
        check_position(connection, log.name, after)
        assert before.lsn <= end.lsn
        assert after.lsn <= log_end(connection).lsn
        with pytest.raises(LogPositionLostError, match="which the job has read"):
            check_position(connection, log.name, WalPosition(written(log).lsn + (1 << 30)))


def test_a_server_that_does_not_flush_is_not_waited_for_forever(log: LoggedDatabase) -> None:
    with contextlib.closing(log.database.connect()) as writer, writer.cursor() as cursor, log.connected() as connection:
        cursor.execute("BEGIN")
        for number in range(100):  # others' commits on this server flush what is written here too
            cursor.execute("INSERT INTO public.t VALUES (%s)", (number,))
            try:
                log_end(connection, seconds=-1.0)
            except SourceNotUsableError as error:
                found = error.message
                break
        else:
            found = "it was flushed at once each time"
    assert "has not flushed its log" in found
