"""Remedies for a standby as source, done as they are printed: the job goes on, and its copy is that of the primary."""

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CommandLine
from tests.support.epochs import before_the_next_epoch, run_epochs
from tests.support.leases import wait_until
from tests.support.postgres_standby import Pair, another_standby, own_database, primary_and_standby, primary_logs
from tests.support.remedy_ways import mirror_job, require_copies, start_over, told_by, told_of
from tests.support.servers import Database
from tidemark.readers.postgres import replay
from tidemark.readers.postgres import source as postgres_source
from tidemark.readers.postgres.connect import Connection
from tidemark.readers.postgres.slot import open_transactions
from tidemark.readers.postgres.slot.slot import create_slot
from tidemark.readers.postgres.snapshot import standby
from tidemark.state.position import WalPosition

ONE_BY_ONE = "snapshot.split_rows=10", "snapshot.parallelism=1", "snapshot.interleave=false"
BEHIND = "The standby has not replayed what comes after"

pytestmark = [pytest.mark.integration, pytest.mark.every_server]


@pytest.fixture(scope="module")
def shared() -> Iterator[Pair]:
    with primary_and_standby("shop", "18", max_prepared_transactions=10) as servers:
        yield servers


@pytest.fixture
def pair(shared: Pair, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """With a database of the test's own: two tables, one of which is published."""
    with own_database(shared, f"d{abs(hash(request.node.name)) % 10**9}") as own:
        own.database.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))",
            "INSERT INTO orders SELECT i, 'a' FROM generate_series(1, 40) AS i",
            "CREATE TABLE others (id int PRIMARY KEY)",
            f"CREATE PUBLICATION {own.database.name} FOR TABLE orders",
        )
        own.await_standby()
        yield own
        own.promoted.execute(
            "ALTER SYSTEM RESET recovery_min_apply_delay",
            "ALTER SYSTEM RESET max_standby_streaming_delay",
            "ALTER SYSTEM SET hot_standby_feedback = 'on'",
            "SELECT pg_reload_conf()",
            "SELECT pg_wal_replay_resume()",
        )


def job_of(pair: Pair, folder: Path, target: Database, **settings: Any) -> Path:
    settings = {"standby": True, "tables": ["public.orders"]} | settings
    return mirror_job(folder, pair.promoted, target, **settings)


def set_on_standby(pair: Pair, **settings: str) -> None:
    for name, value in settings.items():
        pair.promoted.execute(f"ALTER SYSTEM SET {name} = '{value}'")
    pair.promoted.execute("SELECT pg_reload_conf()")
    for name, value in settings.items():
        wait_until(lambda n=name, v=value: pair.promoted.query(f"SELECT current_setting('{n}')") == [(v,)])


def require_it_goes_on(pair: Pair, job: Path, target: Database, *settings: str) -> None:
    for note in ("y", "z"):
        pair.await_standby()
        assert told_by(job, *settings) is None
        require_copies(pair.database, target)
        pair.database.execute(f"UPDATE orders SET note = '{note}'")


def is_streaming(pair: Pair) -> bool:
    return pair.promoted.query("SELECT count(*) FROM pg_stat_wal_receiver") == [(1,)]


def test_a_standby_that_replays_nothing(
    pair: Pair, mysql_database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its replay is paused, or it does not stream."""
    monkeypatch.setattr(replay, "WAIT_SECONDS", 1.0)
    there, job = pair.promoted, job_of(pair, tmp_path, mysql_database)
    with primary_logs(pair):
        run_epochs(job, *ONE_BY_ONE, at_most=1)
    there.query("SELECT pg_wal_replay_pause()")
    pair.database.execute("UPDATE orders SET note = 'b'", "SELECT pg_switch_wal()")
    told = told_of(job, BEHIND)
    (resume,) = re.findall(r"Its replay is paused: (SELECT .*?\(\)) on the standby\.", told)
    there.query(resume)
    require_it_goes_on(pair, job, mysql_database)

    there.query("SELECT pg_wal_replay_pause()")
    told = told_of(job, "The standby does not replay its primary's log now. Remedy: Its replay is paused")
    assert resume in told
    there.query(resume)
    ((conninfo,),) = there.query("SELECT current_setting('primary_conninfo')")
    set_on_standby(pair, primary_conninfo="")
    wait_until(lambda: not is_streaming(pair))
    told_of(job, "If it does not, correct primary_conninfo")
    set_on_standby(pair, primary_conninfo=conninfo)
    wait_until(lambda: is_streaming(pair))
    require_it_goes_on(pair, job, mysql_database)


def test_a_query_holds_up_the_replay(
    pair: Pair, mysql_database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(replay, "WAIT_SECONDS", 1.0)
    there, job = pair.promoted, job_of(pair, tmp_path, mysql_database)
    with primary_logs(pair):
        run_epochs(job, *ONE_BY_ONE, at_most=1)
    set_on_standby(pair, max_standby_streaming_delay="-1")
    with contextlib.closing(there.connect()) as reader, reader.cursor() as cursor:
        cursor.execute("BEGIN; SELECT * FROM others")
        pair.database.execute("TRUNCATE others", "UPDATE orders SET note = 'c'")
        told = told_of(job, BEHIND)
        (look,) = re.findall(r"(SELECT wait_event FROM .*?'startup')\.", told)
        assert there.query(look) == [("relation",)]
        assert "end the oldest queries on the standby" in told
        there.query("SELECT pg_terminate_backend(%s)", (reader.info.backend_pid,))
    require_it_goes_on(pair, job, mysql_database)


def test_a_standby_that_is_behind_after_a_restart(
    pair: Pair, mysql_database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It replays what it has first, here with a delay."""
    monkeypatch.setattr(replay, "WAIT_SECONDS", 1.0)
    there, job = pair.promoted, job_of(pair, tmp_path, mysql_database)
    with primary_logs(pair):
        assert told_by(job) is None
    pair.database.execute("CHECKPOINT")
    pair.await_standby()
    there.execute("CHECKPOINT")
    require_it_goes_on(pair, job, mysql_database)
    pair.await_standby()
    assert told_by(job) is None
    there.execute("ALTER SYSTEM SET recovery_min_apply_delay = '1h'")
    pair.standby.kill()
    pair.standby.start()
    told_of(job, "After a restart it first replays what it has.")
    there.query("SELECT pg_wal_replay_pause()")
    (resume,) = re.findall(
        r"Its replay is paused: (SELECT .*?\(\)) on the standby\.", told_of(job, "has replayed the log up")
    )
    there.query(resume)
    there.execute("ALTER SYSTEM RESET recovery_min_apply_delay", "SELECT pg_reload_conf()")
    require_it_goes_on(pair, job, mysql_database)


def test_the_primary_keeps_what_the_job_needs(
    pair: Pair, mysql_database: Database, tidemark: CommandLine, tmp_path: Path
) -> None:
    job = job_of(pair, tmp_path, mysql_database, on_log_lost="stop")
    slow = "snapshot.where={public.orders: 'pg_sleep(0.05) IS NOT NULL'}"
    with primary_logs(pair):
        run_epochs(job, slow, *ONE_BY_ONE, at_most=0)
    set_on_standby(pair, hot_standby_feedback="off", max_standby_streaming_delay="0")
    with repeating(pair, "UPDATE orders SET note = 'v'", "VACUUM orders", pause_seconds=0.05):
        told = told_of(job, "Its primary removed rows that the query needed", slow)
        assert "on the standby set hot_standby_feedback = on, or a greater max_standby_streaming_delay." in told
        set_on_standby(pair, hot_standby_feedback="on")
        assert told_by(job, slow) is None
    set_on_standby(pair, hot_standby_feedback="off")
    told_of(job, "On the standby: set hot_standby_feedback = on, and in primary_slot_name a physical slot", slow)
    set_on_standby(pair, hot_standby_feedback="on")
    assert told_by(job, slow) is None
    set_on_standby(pair, hot_standby_feedback="off")
    pair.database.execute(
        "CREATE TABLE t AS SELECT 1 AS i", "DROP TABLE t", "VACUUM FULL pg_class", "VACUUM pg_attribute"
    )
    pair.await_standby()
    keeps = "on the standby hot_standby_feedback = on and primary_slot_name, on the primary wal_level = logical."
    told_of(job, f"Then see that the primary keeps what the slot needs: {keeps}", slow)
    set_on_standby(pair, hot_standby_feedback="on")
    start_over(job, pair.promoted, mysql_database, tidemark)
    with primary_logs(pair):
        assert told_by(job, slow) is None
    require_it_goes_on(pair, job, mysql_database, slow)


@contextlib.contextmanager
def repeating(pair: Pair, *statements: str, pause_seconds: float = 0.0) -> Iterator[None]:
    """The primary executes the statements all the time."""
    ended = threading.Event()

    def repeat() -> None:
        with contextlib.closing(pair.database.connect()) as connection, connection.cursor() as cursor:
            while not ended.wait(pause_seconds):
                for statement in statements:
                    cursor.execute(statement)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_transactions_of_the_primary_end(
    pair: Pair, mysql_database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those that a start waits for, and those that have more savepoints than a snapshot may list. While the primary is idle, a
    slot is created once somebody asks it to log which transactions run."""
    monkeypatch.setattr(open_transactions, "SETTLE_SECONDS", 1.0)
    primary, job = pair.database, job_of(pair, tmp_path, mysql_database)
    with contextlib.closing(primary.connect()) as writer, writer.cursor() as cursor:
        cursor.execute("BEGIN; INSERT INTO others VALUES (1)")
        primary.execute("BEGIN; INSERT INTO others VALUES (2); PREPARE TRANSACTION 'old'")
        pair.await_standby()
        told = told_of(job, "while older transactions are open")
        assert told.endswith("Then run the job again.")
        end_as_printed(told, primary)
    pair.await_standby()
    pair.promoted.query("SELECT pg_wal_replay_pause()")
    told = told_of(job, "The standby has not created the slot")
    (resume,) = re.findall(r"Its replay is paused: (SELECT .*?\(\)) on the standby\.", told)
    pair.promoted.query(resume)
    with (
        contextlib.closing(primary.connect()) as writer,
        writer.cursor() as cursor,
        pytest.MonkeyPatch.context() as patch,
    ):

        def create(connection: Connection, name: str) -> WalPosition:
            cursor.execute("BEGIN; INSERT INTO others VALUES (3)")
            pair.await_standby()
            return create_slot(connection, name)

        patch.setattr(postgres_source, "create_slot", create)
        with primary_logs(pair):
            told = told_of(job, "The standby has not created the slot")
        assert "Run the job again. On the primary, while the job starts: SELECT pg_log_standby_snapshot()." in told
        end_as_printed(told, primary)
    monkeypatch.setattr(standby, "MAX_RUNNING", 3)
    with primary_logs(pair):
        run_epochs(job, *ONE_BY_ONE, at_most=1)
    with contextlib.closing(primary.connect()) as writer, writer.cursor() as cursor:
        cursor.execute("BEGIN" + "; SAVEPOINT s; INSERT INTO others SELECT 10 + count(*) FROM others" * 5)
        primary.execute("UPDATE orders SET note = 'd'")
        pair.await_standby()
        told_of(job, "Let these transactions end, then run the job again: it continues.")
        cursor.execute("COMMIT")
    require_it_goes_on(pair, job, mysql_database)


def end_as_printed(told: str, primary: Database) -> None:
    (sessions,), (prepared,) = (
        re.findall(r"SELECT pid, .*? ORDER BY xact_start", told),
        re.findall(r"SELECT \* FROM \w+", told),
    )
    for process, *_ in primary.query(sessions):
        primary.query("SELECT pg_terminate_backend(%s, 5000)", (process,))
    for _, gid, *_ in primary.query(prepared):
        primary.execute(f"COMMIT PREPARED '{gid}'")


def test_a_table_without_a_key_needs_an_identity_or_the_primary(
    pair: Pair, mysql_database: Database, tmp_path: Path
) -> None:
    """Here its rows are read from the primary first, by a job of its own."""
    primary = pair.database
    primary.execute("CREATE TABLE notes (note text)", f"ALTER PUBLICATION {primary.name} ADD TABLE notes")
    pair.await_standby()
    told = "Name the primary in source.url. Or: Give it a primary key, or: ALTER TABLE"
    append, both = "sink.keyless=append", ["public.orders", "public.notes"]
    job = job_of(pair, tmp_path, mysql_database, tables=both)
    told_of(job, told, append)
    there = f"source.url={pair.database.url}"
    for _ in range(2):
        primary.execute("INSERT INTO notes VALUES ('n')")
        assert "If its rows are only inserted, none is needed." in (
            told_by(job, append, there, "source.standby=false") or ""
        )
        require_copies(primary, mysql_database)


def test_an_address_that_leads_to_several_standbys(pair: Pair, mysql_database: Database, tmp_path: Path) -> None:
    job = job_of(pair, tmp_path, mysql_database, url=pair.url, on_log_lost="stop")
    pair.address.server = pair.standby
    with primary_logs(pair):
        run_epochs(job, *ONE_BY_ONE, at_most=1)
    here = f"source.url={pair.promoted.url}"
    with another_standby(pair) as other:
        with pytest.MonkeyPatch.context() as patch:
            before_the_next_epoch(patch, lambda: setattr(pair.address, "server", other))
            told_of(job, "Name one standby in source.url, not an address that leads to several.", *ONE_BY_ONE)
        assert told_by(job, here) is None
        told_of(job, "If another standby has it, name that one in source.url and run the job again: nothing is lost.")
        require_it_goes_on(pair, job, mysql_database, here)


def test_a_standby_of_a_primary_that_lacks_what_the_job_has_read(
    pair: Pair, mysql_database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The primary was restored from an older copy, and somebody has created the job's slot on its new standby."""
    monkeypatch.setattr(replay, "WAIT_SECONDS", 1.0)
    job = job_of(pair, tmp_path, mysql_database, on_log_lost="stop")
    with primary_logs(pair):
        run_epochs(job)
    slot = pair.database.name
    with another_standby(pair) as older:
        restored = replace(pair, primary=older, database=replace(pair.database, server=older))
        restored.database.query("SELECT pg_promote()")
        wait_until(lambda: restored.database.query("SELECT pg_is_in_recovery()") == [(False,)])
        for note in "bcdefghij":  # each in a file of its own: a backup begins another one, too
            pair.database.execute(f"UPDATE orders SET note = '{note}'")
            pair.await_standby()
        require_it_goes_on(pair, job, mysql_database)
        with another_standby(restored) as follower:
            there = replace(pair.database, server=follower)
            with primary_logs(restored):
                there.query(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
            told = told_of(job, "has replayed the log up", f"source.url={there.url}")
            assert "connect to the server that the job has read, or start over" in told
    require_it_goes_on(pair, job, mysql_database)
