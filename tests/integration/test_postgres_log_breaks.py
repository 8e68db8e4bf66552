"""Connections that break while the log is read: nothing is lost, repeated or waited for without end."""

import contextlib
import itertools
from collections.abc import Iterator

import psycopg2
import pytest
from psycopg2.extras import LogicalReplicationConnection

from devtools.servers import start_server
from tests.support.postgres_log import VERSIONS, LoggedDatabase, logged_postgres
from tests.support.servers import fresh_database
from tidemark.conf import reconnect as reconnecting
from tidemark.readers.postgres.connect import APPLICATION_NAME
from tidemark.readers.postgres.pgoutput.reading import ReadOptions
from tidemark.readers.postgres.slot.slot import require_slot
from tidemark.state.errors import SourceNotUsableError, SourceUnavailableError
from tidemark.state.log_range import LogRange

__all__ = ["logged_postgres"]

pytestmark = [pytest.mark.servers_in_turn("logged_postgres"), pytest.mark.servers_in_turn("own_server")]

ROWS = 40_000
OPTIONS = ReadOptions(buffer_bytes=1 << 20)


def emitted(log: LoggedDatabase) -> None:
    """Writes more than fits between server and reader: one transaction of two thirds of the rows, then small ones."""
    log.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    log.publish("t")
    log.execute(f"INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(0, {ROWS * 2 // 3 - 1}) AS i")
    log.execute(
        f"DO $$ BEGIN FOR i IN {ROWS * 2 // 3}..{ROWS - 1} LOOP INSERT INTO t VALUES (i, repeat('x', 1000)); "
        "IF i % 10 = 0 THEN COMMIT; END IF; END LOOP; END $$"
    )


@pytest.fixture(params=[pytest.param(version, marks=pytest.mark.integration) for version in VERSIONS])
def own_server(request: pytest.FixtureRequest) -> Iterator[LoggedDatabase]:
    with start_server("postgres", None, request.param) as server, fresh_database(server) as database:
        yield LoggedDatabase(database)


@pytest.mark.pitfall(28)
def test_ended_connections_are_made_anew(logged_postgres: LoggedDatabase) -> None:
    log = logged_postgres
    emitted(log)
    reader = log.reader("t", options=OPTIONS)
    found, ended = [], 0
    for batch in reader.read(LogRange(log.start, log.end())):
        found += batch.rows["id"].to_pylist()
        if ended < 3:
            ended += len(
                log.query(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND query LIKE 'COPY%' AND state = 'active'"
                )
            )
    assert found == list(range(ROWS))
    assert reader.reconnects >= 1
    assert reader.report.emitted_changes == ROWS
    assert reader.report.transactions == len({i // 10 for i in range(ROWS * 2 // 3 + 9, ROWS + 9)}) + 1


def test_a_restarted_server_goes_on(own_server: LoggedDatabase) -> None:
    log = own_server
    emitted(log)
    reader = log.reader("t", options=OPTIONS)
    found = []
    for number, batch in enumerate(reader.read(LogRange(log.start, log.end()))):
        found += batch.rows["id"].to_pylist()
        if number == 1:
            log.database.server.kill()
            log.database.server.start()
    assert found == list(range(ROWS))
    assert reader.reconnects >= 1


@pytest.mark.pitfall(28)
def test_a_slot_that_stays_in_use_ends_the_attempts(logged_postgres: LoggedDatabase) -> None:
    log = logged_postgres
    log.execute("CREATE TABLE t (id int PRIMARY KEY)")
    log.publish("t")
    with contextlib.closing(
        psycopg2.connect(log.database.url, connection_factory=LogicalReplicationConnection)
    ) as other:
        cursor = other.cursor()
        cursor.start_replication(log.name, options={"proto_version": "1", "publication_names": log.name})
        reader = log.reader("t", options=ReadOptions(reconnect_attempts=2, max_delay_seconds=0.01))
        with pytest.raises(SourceUnavailableError, match=r"3 times in a row.*in use by process"):
            list(reader.read(LogRange(log.start, log.end())))
    assert reader.reconnects == 3


def test_a_reading_that_is_given_up_frees_the_slot(logged_postgres: LoggedDatabase) -> None:
    log = logged_postgres
    emitted(log)
    part = LogRange(log.start, log.end())
    reading = log.reader("t", options=OPTIONS).read(part)
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    ids = itertools.chain.from_iterable(b.rows["id"].to_pylist() for b in log.reader("t", options=OPTIONS).read(part))
    assert list(ids) == list(range(ROWS))


def test_no_server_at_all(own_server: LoggedDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnecting, "FIRST_DELAY_SECONDS", 0.0)
    log = own_server
    log.execute("CREATE TABLE t (id int PRIMARY KEY)")
    log.publish("t")
    part, reader = LogRange(log.start, log.end()), log.reader("t")
    log.database.server.kill()
    try:
        with pytest.raises(SourceUnavailableError, match="No connection"):
            list(reader.read(part))
    finally:
        log.database.server.start()


@pytest.mark.pitfall(95)
@pytest.mark.parametrize("name", [APPLICATION_NAME, "pg_recvlogical"])
def test_a_planner_ends_a_reading_that_a_driver_has_left(logged_postgres: LoggedDatabase, name: str) -> None:
    """The server goes on with what a killed driver has asked for. Other programs are not ended."""
    log = logged_postgres
    log.execute("CREATE TABLE t (id int PRIMARY KEY)")
    log.publish("t")
    settings = {"connection_factory": LogicalReplicationConnection, "application_name": name}
    with contextlib.closing(psycopg2.connect(log.database.url, **settings)) as left, log.connected() as connection:
        cursor = left.cursor()
        cursor.start_replication(log.name, options={"proto_version": "1", "publication_names": log.name})
        if name == APPLICATION_NAME:
            require_slot(connection, log.place(), log.start)
        else:
            with pytest.raises(SourceNotUsableError, match="in use by process"):
                require_slot(connection, log.place(), log.start, seconds=3.0)
