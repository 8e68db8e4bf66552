"""Commits that are in the log but not yet visible, because they wait for a standby that never comes. A decision by LSN
takes them for contained in a SELECT that did not see them."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.epochs import run_epochs
from tests.support.history import assert_copied, read_history
from tests.support.invisible_commits import invisible, wait_for
from tests.support.jobs import source_of, write_job
from tests.support.postgres_log import VERSIONS, Change, LoggedDatabase
from tests.support.postgres_snapshot import SnapshotTable, covered, rows_of
from tests.support.servers import Database, FindServer, fresh_database
from tests.support.workload import Uids, create_tables
from tidemark.readers.log.gap_filter import GapFilter, segment_of
from tidemark.readers.snapshot.split_read import SplitRead
from tidemark.state.position import WalPosition, wal_position
from tidemark.state.split import Split

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(3)]


@pytest.fixture(params=VERSIONS)
def database(request: pytest.FixtureRequest, find_server: FindServer) -> Iterator[Database]:
    """A database whose transactions wait only if they ask for it."""
    server = find_server("postgres", request.param, synchronous_standby_names="nobody", synchronous_commit="local")
    with fresh_database(server) as made:
        yield made


@contextlib.contextmanager
def open_transaction(database: Database) -> Iterator[int]:
    """Opens a transaction. Yields its id."""
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        connection.autocommit = False
        cursor.execute("SELECT pg_current_xact_id()::xid::text")
        yield int(cursor.fetchone()[0])


def is_emitted(split: Split, read: SplitRead, high: WalPosition, change: Change) -> bool:
    """Whether the gap filter emits the change, given this high of its split."""
    segment = segment_of([split], [replace(read.report, high=high)])
    finished_splits = GapFilter.from_segments([segment], [split.table], "finished").finished_splits[split.table]
    versions, xids = (np.array([int(change[name])], np.int64) for name in ("_commit_version", "_txn_id"))
    return bool(finished_splits.keep(None, versions, xids)[0])


def test_the_snapshot_tells_what_a_split_lacks_and_an_lsn_does_not(database: Database) -> None:
    source = LoggedDatabase(database)
    source.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    source.publish("t")
    table = SnapshotTable(source)
    source.execute("INSERT INTO t VALUES (1, 'seen')")
    with invisible(database, "INSERT INTO t VALUES (7, 'late')") as xid:
        read = table.read()
    assert rows_of(read.rows) == [(1, "seen")]
    seen, late = source.read("t")
    assert int(late["_txn_id"]) == xid
    assert covered(read, [int(seen["_txn_id"]), xid]) == [True, False]
    high = wal_position(read.report.high)
    assert late["_commit_version"] < high.lsn
    assert [is_emitted(table.split(), read, high, change) for change in (seen, late)] == [False, True]
    without_snapshot = WalPosition(high.lsn)
    assert [is_emitted(table.split(), read, without_snapshot, change) for change in (seen, late)] == [False, False]


def test_a_job_that_reads_while_commits_are_invisible_has_them_in_order(database: Database, tmp_path: Path) -> None:
    create_tables(database, rows=60, uids=Uids())
    job = write_job(
        tmp_path,
        source=source_of(database),
        # Otherwise the splits wait until the commits are visible (test_interleave.py).
        snapshot={"split_rows": 10, "parallelism": 1, "interleave": False},
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    run_epochs(job, at_most=1)  # a slot can't be made while a transaction is open
    changes = [
        *[f"UPDATE {table} SET version = version + 1" for table in ("orders", "customers", "order_lines")],
        "DELETE FROM orders WHERE id > 55",
        "INSERT INTO order_lines (order_id, line_no, uid, version) VALUES (1000, 1, 100000, 1)",
    ]
    with invisible(database, *changes) as xid:
        run_epochs(job)
    run_epochs(job)
    assert_copied(tmp_path / "out", database)
    history = read_history(tmp_path / "out", database.schema, "orders").to_pylist()
    assert {row["_change_type"] for row in history if row["_txn_id"] == str(xid)} == {"update_postimage", "delete"}


def test_a_slot_is_made_only_when_all_that_is_logged_before_it_is_visible(database: Database) -> None:
    """The server makes a slot in three steps, and after the first and the second it waits for open transactions. The
    slot never gives out what is logged before the third, visible or not."""
    source = LoggedDatabase(database)
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    waited_for = "SELECT FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted AND transactionid = '{}'"
    making = threading.Thread(target=source.publish, args=("t",))
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        xid = first.enter_context(open_transaction(database))
        making.start()
        wait_for(database, waited_for.format(xid))
        xid = second.enter_context(open_transaction(database))
        first.close()
        wait_for(database, waited_for.format(xid))
        with invisible(database, "INSERT INTO t VALUES (7)"):
            second.close()
            made = f"SELECT FROM pg_replication_slots WHERE slot_name = '{source.name}' AND confirmed_flush_lsn IS NOT NULL"
            wait_for(database, made)
            making.join(timeout=1)
            assert making.is_alive()
        making.join(timeout=20)
    assert source.query("SELECT id FROM t") == [(7,)]
    assert source.read("t") == [], "it is before the start"
