"""`tidemark reconcile --repair`: the keys that differ are read again, and all other rows of the copy stay."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import die_at, run_epochs
from tests.support.jobs import source_of
from tests.support.reconciling import (
    PAIRS,
    assert_equal,
    compared,
    damage,
    following,
    job_of,
    on_pairs,
    row_counts,
)
from tests.support.servers import Database
from tests.support.workload import KEYS, Uids, Writers, create_tables
from tidemark.conf.load import load_job_file
from tidemark.enumerator import enumerator
from tidemark.jobs.commands.reconcile import reconcile
from tidemark.jobs.commands.signal import list_signals, stop_snapshot
from tidemark.jobs.reconcile import repair as repairing
from tidemark.jobs.recovery.rollback import roll_back
from tidemark.jobs.signals import repairs
from tidemark.state import failpoints
from tidemark.state.checkpoint.layout import REPAIRS_FOLDER, Checkpoint
from tidemark.state.errors import DifferencesError, JobHeldError
from tidemark.state.failpoints import FailpointError
from tidemark.state.job_state import Joined
from tidemark.state.key_repair import KeyRepair
from tidemark.state.key_source import KeySource
from tidemark.state.log_extent import LogExtent
from tidemark.state.plan import EnumeratorState, Plan
from tidemark.state.position import Position
from tidemark.state.signals import Signal
from tidemark.state.split import KeyRange
from tidemark.state.table import TableId

pytestmark = pytest.mark.integration

STEPS = [
    "repairs.read",
    "repairs.joined",
    "repairs.emitted",
    "log.before_report",
    "driver.epoch_written",
    "driver.epoch_committed",
    "planner.before_plan",
    "planner.after_plan",
]


def repair(job: Path, *, patience_seconds: float = 0.0) -> None:
    with pytest.raises(DifferencesError, match="read again"):
        reconcile(load_job_file(job), [], as_json=False, repair=True, patience_seconds=patience_seconds)


def kinds_of_signals(job: Path) -> list[str]:
    checkpoint = Checkpoint.at(load_job_file(job).checkpoint)
    return [signal.kind for signal, _ in checkpoint.signals().values()]


@contextlib.contextmanager
def always_visible(target: Database, tables: dict[str, int]) -> Iterator[None]:
    """Checks all the time that the copies have at least so many rows: none is ever emptied."""
    stop, fewest = threading.Event(), dict(tables)

    def look() -> None:
        while not stop.is_set():
            for table in tables:
                count = target.query(f"SELECT count(*) FROM copy_{table}")[0][0]
                fewest[table] = min(fewest[table], count)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert fewest == tables


@on_pairs(0, 2, 4)
def test_keys_are_mended_and_other_rows_stay(
    source: Database, target: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_tables(source, rows=120, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    damage(target)
    held = {table: target.query(f"SELECT count(*) FROM copy_{table}")[0][0] - 5 for table in KEYS}
    repair(job)
    assert kinds_of_signals(job) == ["repair"] * 3
    with always_visible(target, held):
        run_epochs(job)
    assert_equal(job, row_counts(source))
    capsys.readouterr()
    list_signals(load_job_file(job))
    told = " ".join(capsys.readouterr().out.split())
    assert told.count("done") == 3
    assert "rows were read again and written" in told
    source.execute(*(f"UPDATE {table} SET version = version + 1" for table in KEYS))
    run_epochs(job)
    assert not Checkpoint.at(load_job_file(job).checkpoint).store.list(REPAIRS_FOLDER)
    assert_equal(job, row_counts(source))


@pytest.mark.parametrize(("source", "target"), [PAIRS[3]], indirect=True)
def test_a_key_is_mended_beside_dates_that_python_has_not(source: Database, target: Database, tmp_path: Path) -> None:
    source.execute(
        "CREATE TABLE days (day date PRIMARY KEY, version int)",
        "INSERT INTO days SELECT day::date, 1 FROM unnest('{-infinity,0044-03-15 BC,2024-01-01,infinity}'::text[]) AS day",
    )
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    target.execute("INSERT INTO copy_days VALUES ('2024-01-02', 1)")
    repair(job)
    assert kinds_of_signals(job) == ["repair"]
    run_epochs(job)
    assert_equal(job, {"days": 4})


@pytest.mark.parametrize(("source", "target"), [PAIRS[0]], indirect=True)
def test_a_repair_is_not_done_if_its_rows_park_the_table(
    source: Database, target: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, target, tmp_path, source=source_of(source, on_table_error="park"))
    run_epochs(job)
    target.execute("UPDATE copy_orders SET version = 0 WHERE id = 5")
    repair(job)
    source.execute("SET sql_log_bin = 0", "UPDATE orders SET note = CHAR(0) WHERE id = 5", "SET sql_log_bin = 1")
    run_epochs(job)
    capsys.readouterr()
    list_signals(load_job_file(job))
    told = " ".join(capsys.readouterr().out.split())
    assert ("failed" in told, "The table has left the job." in told, "done" in told) == (True, True, False)


@pytest.mark.parametrize(("source", "target"), [PAIRS[3]], indirect=True)
def test_a_repair_that_the_source_refuses_fails_and_the_job_goes_on(
    source: Database, target: Database, tmp_path: Path
) -> None:
    """The refusal is about no table that could leave the job: a condition that fails for a row which came later."""
    source.execute("CREATE TABLE items (id int PRIMARY KEY, n int)", "INSERT INTO items VALUES (1, 1)")
    table = TableId(source.schema, "items")
    where = {str(table): "1 / (id - 5) < 9"}
    snapshot = {"split_rows": 40, "parallelism": 2, "where": where}
    job = job_of(source, target, tmp_path, snapshot=snapshot)
    run_epochs(job)
    checkpoint = Checkpoint.at(load_job_file(job).checkpoint)
    number = checkpoint.create_signal(
        Signal(table, time.time_ns() // 1000, "repair", keys=(("5",),), ranges=(KeyRange(None, None),))
    )
    source.execute("INSERT INTO items VALUES (5, 2)")
    run_epochs(job)
    answer = checkpoint.signals()[number][1]
    assert answer is not None
    assert (answer.accepted, "division by zero" in answer.text) == (False, True)
    assert target.query("SELECT id FROM copy_items ORDER BY id") == [(1,), (5,)]


@pytest.mark.parametrize(("source", "target"), [PAIRS[0]], indirect=True)
def test_rows_of_a_repair_wait_for_the_log_although_no_splits_are_read(
    source: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left to be copied, so a run does not end because of `stop-snapshot`."""
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    target.execute("UPDATE copy_orders SET version = 0 WHERE id = 5")
    repair(job)
    stop_snapshot(load_job_file(job))
    planned, asked = enumerator._plan_rereads, list[int]()

    def plan(state: EnumeratorState, extent: LogExtent) -> tuple[Plan | None, EnumeratorState]:
        asked.append(state.epoch)
        return planned(state, extent) if len(asked) > 2 else (None, state)  # the log does not reach so far yet

    monkeypatch.setattr(enumerator, "_plan_rereads", plan)
    run_epochs(job)
    assert len(asked) == 3
    assert_equal(job, row_counts(source))


@pytest.mark.parametrize(("source", "target"), [PAIRS[0]], indirect=True)
def test_a_repair_is_not_done_if_its_epoch_was_passed_over(
    source: Database, target: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job is rolled back before it has written the rows that were read again."""
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    source.execute("UPDATE orders SET version = version + 1 WHERE id = 6")
    run_epochs(job)
    target.execute("UPDATE copy_orders SET version = 0 WHERE id = 5")
    repair(job)
    die_at(job, "planner.after_plan")
    roll_back(load_job_file(job), Checkpoint.at(load_job_file(job).checkpoint).committed_epoch(), standby=True)
    run_epochs(job)
    assert compared(job)["orders"].differences == 1
    capsys.readouterr()
    list_signals(load_job_file(job))
    told = " ".join(capsys.readouterr().out.split())
    assert ("failed" in told, "Compare again." in told, "done" in told) == (True, True, False)


@pytest.mark.servers_in_turn("source", "target")
@on_pairs(3, 4)
def test_keys_are_mended_while_both_move(source: Database, target: Database, tmp_path: Path) -> None:
    uids = Uids()
    create_tables(source, rows=120, uids=uids)
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    with following(job), Writers(source, uids, count=2, seed=11, pause_seconds=0.02) as writers:
        spoil(target)
        with contextlib.suppress(DifferencesError):
            reconcile(load_job_file(job), [], as_json=False, repair=True, patience_seconds=30)
    assert writers.transactions > 50
    assert "repair" in kinds_of_signals(job)
    assert "resnapshot" not in kinds_of_signals(job)
    run_epochs(job)
    for name, result in compared(job).items():
        assert (name, result.differences, result.behind) == (name, 0, 0)


def spoil(target: Database) -> None:
    """Faults in rows that may be changed at any time. Some are mended by the log: a change brings the whole row."""
    for table in KEYS:
        rows = target.query(f"SELECT uid FROM copy_{table} ORDER BY uid DESC")
        gone, changed = [row[0] for row in rows[:3]], [row[0] for row in rows[5:9]]
        target.execute(
            f"DELETE FROM copy_{table} WHERE uid IN ({', '.join(map(str, gone))})",
            f"UPDATE copy_{table} SET version = version - 1 WHERE uid IN ({', '.join(map(str, changed))})",
        )


WINDOW_BEFORE = (
    # before the rows are read, after the position that they count from
    "UPDATE orders SET version = 7 WHERE id = 5",
    "DELETE FROM orders WHERE id = 7",
    "UPDATE orders SET id = 9007 WHERE id = 95",
    "UPDATE order_lines SET line_no = 77 WHERE order_id = 3 AND line_no = 2",
    "INSERT INTO order_lines (order_id, line_no, uid, version) VALUES (3, 9, 5001, 1)",
)
WINDOW_AFTER = (
    "UPDATE orders SET version = 8 WHERE id = 5",
    "INSERT INTO orders (id, uid, version) VALUES (7, 5002, 1), (95, 5003, 1), (-9, 5004, 1)",
    "DELETE FROM orders WHERE id = 100",
    "UPDATE order_lines SET order_id = 3 WHERE order_id = 20 AND line_no = 3 AND 1 = 0",
    "DELETE FROM order_lines WHERE order_id = 20 AND line_no = 1",
)


@on_pairs(0, 2)
def test_changes_around_the_read_are_neither_lost_nor_overtaken(
    source: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_tables(source, rows=120, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    damage(target)
    repair(job)
    await_visible, write_repair = repairs.await_visible, repairs.write_repair

    def before(keys: KeySource, position: Position) -> None:
        source.execute(*WINDOW_BEFORE)
        await_visible(keys, position)

    def after(*arguments: Any) -> int:
        with contextlib.suppress(StopIteration):
            source.execute(*next(changes))
        return write_repair(*arguments)

    changes = iter([WINDOW_AFTER])
    monkeypatch.setattr(repairs, "await_visible", before)
    monkeypatch.setattr(repairs, "write_repair", after)
    run_epochs(job)
    assert_equal(job, row_counts(source))


@pytest.mark.servers_in_turn("source", "target")
@pytest.mark.parametrize("steps", [STEPS[::2], STEPS[1::2]], ids=",".join)
@pytest.mark.parametrize(("source", "target"), [PAIRS[0], PAIRS[2]], indirect=True)
def test_it_goes_on_after_a_death_at_each_step(
    source: Database, target: Database, steps: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_tables(source, rows=120, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    armed = tmp_path / "failpoints"
    armed.mkdir()
    monkeypatch.setattr(failpoints, "_FOLDER", str(armed))
    for step in steps:
        target.execute(
            "UPDATE copy_orders SET note = 'x' WHERE id = 5",
            "DELETE FROM copy_order_lines WHERE order_id = 20",
            "INSERT INTO copy_customers (code, uid, version) VALUES ('no such', 1, 1)",
        )
        repair(job)
        (armed / step).write_text("raise")
        with pytest.raises(FailpointError):
            run_epochs(job)
        assert not (armed / step).exists()
        source.execute(
            "UPDATE orders SET version = version + 1 WHERE id IN (5, 6)",
            "UPDATE order_lines SET version = version + 1 WHERE order_id = 20",
        )
        run_epochs(job)
        assert_equal(job, row_counts(source))
    signals = Checkpoint.at(load_job_file(job).checkpoint).outcomes()
    assert [outcome.accepted for outcome in signals.values()] == [True] * 3 * len(steps)


def test_a_driver_that_was_frozen_removes_no_rows_of_the_next_one(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mysql_database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    job = job_of(mysql_database, postgres_database, tmp_path)
    run_epochs(job)
    postgres_database.execute("DELETE FROM copy_t WHERE id = 2")
    repair(job)
    checkpoint, file = Checkpoint.at(str(tmp_path / "checkpoint")), f"{REPAIRS_FOLDER}/n1-1"
    with monkeypatch.context() as patch:

        def frozen(keys: KeySource, position: Position) -> None:
            """Meanwhile another driver reads the rows."""
            state = checkpoint.job_state()
            assert state is not None
            checkpoint.store.create(file, b"rows")
            reread = KeyRepair(1, state.schemas[0].table, 1, file, position, 1)
            checkpoint.create_joined(state, Joined(position, (), (), rereads=(reread,)))

        patch.setattr(repairs, "await_visible", frozen)
        with pytest.raises(JobHeldError):
            run_epochs(job)
    assert checkpoint.store.read(file) == b"rows"


@pytest.mark.parametrize(("source", "target"), [PAIRS[0], PAIRS[3]], indirect=True)
def test_many_keys_of_a_range_are_read_together_and_too_many_ranges_are_the_whole_table(
    source: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_tables(source, rows=120, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    faults = (
        "DELETE FROM copy_orders WHERE id BETWEEN 3 AND 30",
        "INSERT INTO copy_orders (id, uid, version) VALUES (-3, 1, 1), (-4, 1, 1)",
        "UPDATE copy_customers SET version = 0 WHERE uid % 40 = 3",
    )
    target.execute(*faults, "UPDATE copy_orders SET note = 'kept' WHERE id = 50")
    with monkeypatch.context() as patch:
        patch.setattr(repairing, "MAX_RANGES", 3)
        repair(job)
    (orders,) = [
        s for s, _ in Checkpoint.at(load_job_file(job).checkpoint).signals().values() if s.table.name == "orders"
    ]
    assert (len(orders.keys), len(orders.ranges), len(orders.whole)) == (31, 1, 1)
    assert sorted(kinds_of_signals(job)) == ["repair", "repair"]
    run_epochs(job)
    assert_equal(job, row_counts(source))


def test_values_that_the_log_leaves_out_stay_right_when_keys_move(
    postgres18_database: Database, mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row gets another key between the position and the read: the log has it without its long value. Another row takes the
    old key, which is read again."""
    source, target = postgres18_database, mysql_database
    long, other = "x" + "ab" * 20_000, "y" + "cd" * 20_000
    source.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, n INT, long TEXT)",
        "ALTER TABLE t ALTER COLUMN long SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT i, i, '{long}' || i FROM generate_series(1, 9) i",
    )
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    target.execute("UPDATE copy_t SET n = 0 WHERE id IN (2, 4, 6)", "INSERT INTO copy_t VALUES (77, 1, 'x')")
    repair(job)
    await_visible = repairs.await_visible

    def moving(keys: KeySource, position: Position) -> None:
        source.execute(
            "UPDATE t SET id = 102 WHERE id = 2",
            f"INSERT INTO t VALUES (2, 22, '{other}')",
            "UPDATE t SET id = 104 WHERE id = 4",
            "UPDATE t SET n = 66 WHERE id = 6",
            f"INSERT INTO t VALUES (77, 77, '{other}')",
            "UPDATE t SET id = 177 WHERE id = 77",
        )
        await_visible(keys, position)

    monkeypatch.setattr(repairs, "await_visible", moving)
    run_epochs(job)
    assert_equal(job, {"t": 11})


def test_a_column_gets_wider_between_the_position_and_the_read(
    postgres18_database: Database, mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = postgres18_database, mysql_database
    source.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, p NUMERIC(6,2), more INT)",
        "INSERT INTO t SELECT i, i, i FROM generate_series(1, 9) i",
    )
    sink = {"type": "mirror", "url": target.url, "table": "copy_{table}", "on_schema_change": "evolve"}
    job = job_of(source, target, tmp_path, sink=sink)
    run_epochs(job)
    target.execute("UPDATE copy_t SET more = 0 WHERE id IN (2, 4, 6)", "INSERT INTO copy_t VALUES (77, 1, 1)")
    repair(job)
    await_visible, changes = repairs.await_visible, iter(["ALTER TABLE t ALTER COLUMN p TYPE NUMERIC(12,2)"])

    def widening(keys: KeySource, position: Position) -> None:
        with contextlib.suppress(StopIteration):
            source.execute(next(changes), "UPDATE t SET p = 5.55 WHERE id = 6")
        await_visible(keys, position)

    monkeypatch.setattr(repairs, "await_visible", widening)
    run_epochs(job)
    source.execute("UPDATE t SET p = 12345678.99 WHERE id = 2")
    run_epochs(job)
    assert_equal(job, {"t": 9})


@pytest.mark.parametrize(("source", "target"), [PAIRS[0], PAIRS[3]], indirect=True)
def test_rows_that_the_source_lacks_are_marked_where_copies_keep_deleted_rows(
    source: Database, target: Database, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3), (4, 4)")
    audit = {"deleted": "_deleted", "synced_at": "_synced_at"}
    sink = {"type": "mirror", "url": target.url, "table": "copy_{table}", "audit_columns": audit}
    job = job_of(source, target, tmp_path, sink=sink)
    run_epochs(job)
    source.execute("DELETE FROM t WHERE id = 4")
    run_epochs(job)
    target.execute(
        "UPDATE copy_t SET n = 0 WHERE id = 1",
        "UPDATE copy_t SET _deleted = TRUE WHERE id = 2",
        "DELETE FROM copy_t WHERE id = 3",
        "UPDATE copy_t SET _deleted = FALSE WHERE id = 4",
        "INSERT INTO copy_t (id, n, _deleted) VALUES (77, 7, FALSE)",
    )
    repair(job)
    run_epochs(job)
    assert_equal(job, {"t": 3})
    rows = target.query("SELECT id, n, _deleted FROM copy_t ORDER BY id")
    assert [(i, n, bool(gone)) for i, n, gone in rows] == [
        (1, 1, False), (2, 2, False), (3, 3, False), (4, 4, True), (77, 7, True),
    ]  # fmt: skip
