"""The source is a standby: splits and log are read there, and the primary is not asked (docs/adr/0058)."""

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.history import assert_copied, read_history
from tests.support.jobs import source_of, write_job, write_workload_job
from tests.support.postgres_roles import superuser
from tests.support.postgres_standby import Pair, own_database, primary_and_standby, primary_logs
from tests.support.workload import KEYS, UPDATE_ALL, Uids, Writers, create_tables
from tidemark.readers.postgres.connect import connect
from tidemark.readers.postgres.slot.open_transactions import wait_for_open_transactions
from tidemark.readers.postgres.snapshot.locks import locked_tables
from tidemark.readers.postgres.snapshot.standby import StandbySnapshots
from tidemark.state.errors import SourceNotUsableError
from tidemark.state.position import WalPosition
from tidemark.state.table import TableId

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def shared() -> Iterator[Pair]:
    """A pair that stays a pair."""
    with primary_and_standby("shop", "18", max_prepared_transactions=10) as servers:
        yield servers


@pytest.fixture
def pair(shared: Pair, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """With a database of the test's own."""
    with own_database(shared, f"d{abs(hash(request.node.name)) % 10**9}") as own:
        yield own


def fill(pair: Pair) -> Uids:
    uids = Uids()
    create_tables(pair.database, rows=60, uids=uids)
    name = pair.database.name
    pair.database.execute(
        f"CREATE PUBLICATION {name} FOR TABLE {', '.join(KEYS)} WITH (publish_via_partition_root = true)"
    )
    pair.await_standby()
    return uids


def job_of(pair: Pair, folder: Path, **changes: Any) -> Path:
    return write_workload_job(folder, source_of(pair.promoted, standby=True, on_log_lost="stop"), None, **changes)


@pytest.mark.parametrize("version", ["16", "17"])
def test_a_job_copies_from_an_older_standby(version: str, tmp_path: Path) -> None:
    with primary_and_standby("shop", version) as pair:
        fill(pair)
        copies(pair, tmp_path)


def test_a_job_copies_from_a_standby(pair: Pair, tmp_path: Path) -> None:
    fill(pair)
    copies(pair, tmp_path)


def copies(pair: Pair, folder: Path) -> None:
    job = job_of(pair, folder)
    with primary_logs(pair):
        run_epochs(job)
    assert_copied(folder / "out", pair.promoted)
    pair.database.execute(*UPDATE_ALL)
    pair.await_standby()
    assert set(run_epochs(job)) == {"stream"}
    assert_copied(folder / "out", pair.database)


def test_rows_are_read_while_the_primary_is_written_to(pair: Pair, tmp_path: Path) -> None:
    """Also after the standby was killed, which then begins to replay at an earlier position."""
    uids = fill(pair)
    job = job_of(pair, tmp_path)
    with primary_logs(pair):
        run_epochs(job, at_most=1)
    with Writers(pair.database, uids, count=3, seed=3, pause_seconds=0.02):
        run_epochs(job, at_most=2)
        pair.standby.kill()
        pair.standby.start()
        run_epochs(job, at_most=3)
    pair.await_standby()
    run_epochs(job)
    assert_copied(tmp_path / "out", pair.database)


def test_rows_without_a_key_come_once(pair: Pair, tmp_path: Path) -> None:
    name = pair.database.name
    pair.database.execute("CREATE TABLE events (w int, n int)", "ALTER TABLE events REPLICA IDENTITY FULL")
    pair.database.execute(f"CREATE PUBLICATION {name} FOR TABLE events")
    ended, counts = threading.Event(), [0, 0, 0]

    def write(number: int) -> None:
        with contextlib.closing(pair.database.connect()) as connection, connection.cursor() as cursor:
            while not ended.is_set():
                counts[number] += 1
                cursor.execute("INSERT INTO events VALUES (%s, %s)", (number, counts[number]))

    job = write_job(
        tmp_path,
        source=source_of(pair.promoted, standby=True),
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    try:
        pair.await_standby()
        with primary_logs(pair):
            run_epochs(job)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    pair.await_standby()
    run_epochs(job)
    rows = [(row["w"], row["n"]) for row in read_history(tmp_path / "out", "public", "events").to_pylist()]
    assert sorted(rows) == [(w, n) for w, count in enumerate(counts) for n in range(1, count + 1)]


def test_a_job_goes_on_when_its_standby_is_promoted(tmp_path: Path) -> None:
    with primary_and_standby("shop", "18") as pair:
        fill(pair)
        job = job_of(pair, tmp_path)
        with primary_logs(pair):
            run_epochs(job)
        pair.database.execute(*UPDATE_ALL)
        pair.await_standby()
        pair.fail_over()
        pair.promoted.execute(*UPDATE_ALL, "DELETE FROM orders WHERE id % 7 = 0")
        notes = Notes()
        assert set(run_epochs(job, notes=notes)) == {"stream"}
        assert [facts["text"] for event, facts in notes.found if event == "moved"]
        assert_copied(tmp_path / "out", pair.promoted)


def test_snapshots_are_those_of_the_server(pair: Pair) -> None:
    """The server writes the list of an exported snapshot into a file, which only a superuser may read."""
    pair.database.execute("CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY)")
    statements = (
        "INSERT INTO t DEFAULT VALUES",
        "BEGIN; INSERT INTO t DEFAULT VALUES; SAVEPOINT a; INSERT INTO t DEFAULT VALUES; SELECT pg_sleep(0.01); COMMIT",
        "BEGIN; INSERT INTO t DEFAULT VALUES; PREPARE TRANSACTION '{0}'; COMMIT PREPARED '{0}'",
        "BEGIN; INSERT INTO t DEFAULT VALUES; ROLLBACK",
        "DO $$ BEGIN FOR i IN 1..80 LOOP BEGIN INSERT INTO t DEFAULT VALUES; EXCEPTION WHEN division_by_zero THEN END; "
        "END LOOP; END $$",
    )
    ended = threading.Event()

    def write(number: int) -> None:
        with contextlib.closing(pair.database.connect()) as connection, connection.cursor() as cursor:
            while not ended.is_set():
                for statement in statements:
                    for part in statement.format(f"{pair.database.name} {number}").split("; COMMIT P"):
                        cursor.execute(part if part.startswith(("BEGIN", "INSERT", "DO")) else f"COMMIT P{part}")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    lists = 0
    try:
        pair.await_standby()
        with contextlib.closing(pair.promoted.connect()) as connection, connection.cursor() as cursor:
            snapshots = StandbySnapshots(pair.promoted.connect)
            until = time.monotonic() + 8
            while time.monotonic() < until:
                taken = snapshots.begin(connection, [], WalPosition(0))
                cursor.execute("SELECT pg_read_file('pg_snapshots/' || pg_export_snapshot())")
                ((text,),) = cursor.fetchall()
                assert taken.high.snapshot is not None
                xmin, xmax, found = taken.high.snapshot.split(":")
                assert [xmin, xmax] == re.findall(r"^xm(?:in|ax):(\d+)$", text, re.MULTILINE)
                listed = set(found.split(",")) - {""}
                expected = set(re.findall(r"^sxp:(\d+)$", text, re.MULTILINE))
                for xid in expected - listed:
                    cursor.execute("SELECT pg_xact_status(%s::text::xid8)", (xid,))
                    assert cursor.fetchone() == ("aborted",)  # it is in no log
                if "sof:0" in text:  # else subtransactions are not in the server's list
                    assert listed <= expected
                lists += len(listed)
                cursor.execute("COMMIT")
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert lists


def test_the_position_of_a_snapshot_on_an_idle_standby_is_its_end(pair: Pair) -> None:
    pair.await_standby()
    with contextlib.closing(pair.promoted.connect()) as connection:
        began = time.monotonic()
        high = StandbySnapshots(pair.promoted.connect).begin(connection, [], WalPosition(0)).high
        assert time.monotonic() - began < 20
    ((replayed,),) = pair.promoted.query("SELECT (pg_last_wal_replay_lsn() - '0/0')::bigint")
    assert high.lsn <= replayed


def test_a_missing_publication_is_created_on_the_primary(pair: Pair, tmp_path: Path) -> None:
    pair.database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    pair.await_standby()
    job = write_job(
        tmp_path,
        source=source_of(pair.promoted, standby=True, tables=["public.t"]),
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    with pytest.raises(SourceNotUsableError, match="a standby can't create it") as caught:
        run_epochs(job)
    (command,) = re.findall(r"On the primary: (CREATE PUBLICATION .*?\))\.", caught.value.remedy)
    pair.database.execute(command)
    pair.await_standby()
    with primary_logs(pair):
        run_epochs(job)
    assert read_history(tmp_path / "out", "public", "t")["id"].to_pylist() == [1]


def test_it_is_refused_unless_the_job_file_says_so(pair: Pair, tmp_path: Path) -> None:
    fill(pair)
    path = write_workload_job(tmp_path, source_of(pair.promoted), None)
    with pytest.raises(SourceNotUsableError, match="is a standby") as caught:
        run_epochs(path)
    assert "source.standby: true" in caught.value.remedy


def test_who_locks_a_table_on_the_primary_is_not_ended_on_the_standby(pair: Pair) -> None:
    pair.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    table = TableId("public", "t")
    with contextlib.closing(pair.database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE; SELECT txid_current()")
        pair.await_standby()
        with contextlib.closing(connect(superuser(pair.promoted), None)) as reader:
            keeper = locked_tables(reader, [table])[table]
        assert keeper.text == "a transaction on the primary"
        (query,) = re.findall(r"SELECT pid, query .*", keeper.ending)
        assert connection.info.backend_pid in [row[0] for row in pair.database.query(query)]


def test_open_transactions_of_the_primary_are_waited_for(pair: Pair) -> None:
    pair.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with contextlib.closing(pair.database.connect()) as writer, writer.cursor() as cursor:
        cursor.execute("BEGIN; INSERT INTO t VALUES (1)")
        pair.await_standby()
        with contextlib.closing(connect(superuser(pair.promoted), None)) as reader:
            with pytest.raises(SourceNotUsableError, match="older transactions are open") as caught:
                wait_for_open_transactions(reader, seconds=0.3)
            assert "pg_prepared_xacts" in caught.value.remedy
            cursor.execute("COMMIT")
            wait_for_open_transactions(reader, seconds=30)
