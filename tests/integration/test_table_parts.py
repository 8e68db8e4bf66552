"""`tidemark signal resnapshot --keys` and `--where`: some rows of a table are read again, and the rest of the copy stays."""

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CommandLine
from tests.support.epochs import die_at, run_epochs
from tests.support.jobs import BY_DRIVER, running
from tests.support.reconciling import PAIRS, assert_equal, compared, following, job_of, on_pairs, row_counts
from tests.support.reconciling import mariadb_target as mariadb_target
from tests.support.reconciling import source as source
from tests.support.reconciling import target as target
from tests.support.servers import Database
from tests.support.workload import KEYS, Uids, Writers, create_tables
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import list_signals, pause, resnapshot, resume, stop_snapshot
from tidemark.jobs.recovery.rollback import roll_back
from tidemark.jobs.signals import repairs
from tidemark.readers.mysql.keys.split_keys import MySqlKeys
from tidemark.state import failpoints
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import JobFileError, PausedError
from tidemark.state.failpoints import FailpointError
from tidemark.state.job_state import JobState
from tidemark.state.key_source import KeySource
from tidemark.state.position import Position
from tidemark.state.signals import Answer, Signal
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


def give(job: Path, origin: Database, table: str, *keys: str, where: str | None = None) -> None:
    resnapshot(load_job_file(job), [TableName(origin.schema, table)], keys=keys, where=where)


def outcomes(job: Path) -> dict[int, Answer]:
    return Checkpoint.at(load_job_file(job).checkpoint).outcomes()


def answers(job: Path) -> list[Answer | None]:
    return [answer for _, answer in Checkpoint.at(load_job_file(job).checkpoint).signals().values()]


def listed(job: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    list_signals(load_job_file(job))
    return " ".join(capsys.readouterr().out.split())


def texts(database: Database, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in database.query(query)]


def codes(database: Database) -> Sequence[str]:
    return [row[0] for row in database.query("SELECT code FROM customers ORDER BY uid")]


def execute(database: Database, statement: str, values: tuple[Any, ...]) -> None:
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(statement, values)


@on_pairs(0, 2)
def test_keys_ranges_and_conditions_are_read_again_and_other_rows_stay(
    source: Database, target: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_tables(source, rows=120, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    first, second, third = codes(source)[:3]
    target.execute(
        "UPDATE copy_orders SET note = 'bad' WHERE id IN (5, 50, 110)",
        "DELETE FROM copy_orders WHERE id IN (7, 60)",
        "INSERT INTO copy_orders (id, uid, version) VALUES (100007, 1, 1), (2000, 1, 1), (3000, 1, 1), (-9, 1, 1)",
        "UPDATE copy_order_lines SET note = NULL, version = 0",
        "INSERT INTO copy_order_lines (order_id, line_no, uid, version) VALUES (3, 9, 1, 1), (4, 900, 1, 1)",
        "UPDATE copy_customers SET version = 0",
    )
    execute(target, "INSERT INTO copy_customers (code, uid, version) VALUES (%s, 1, 1)", ('no, "such"..',))
    execute(target, "DELETE FROM copy_customers WHERE code = %s", (second,))
    quoted = [f'"{code}"'.replace('""', '"') for code in (first, second, third)]
    give(job, source, "orders", "5", "7", "100007", "50..3000")
    give(job, source, "order_lines", "3,2", "3,9", "7,1..9,3")
    give(job, source, "customers", *quoted, '"no, ""such"".."')
    run_epochs(job)
    results = compared(job)
    left = {key for example in results["orders"].examples for key in [(example.kind, example.key)]}
    assert left == {("surplus", ("-9",))}, "110 is in the range"
    assert not target.query("SELECT 1 FROM copy_order_lines WHERE order_id = 3 AND line_no = 9")
    assert target.query("SELECT 1 FROM copy_order_lines WHERE order_id = 4 AND line_no = 900")
    lines = "SELECT order_id, line_no FROM {} WHERE version > 0 AND (order_id <> 3 OR line_no = 2) ORDER BY 1, 2"
    mended = set(texts(target, lines.format("copy_order_lines")))
    wanted = "SELECT order_id, line_no FROM order_lines WHERE order_id = 8 OR "
    wanted += "(order_id = 7 AND line_no > 0) OR (order_id = 9 AND line_no <= 3) OR (order_id = 3 AND line_no = 2)"
    assert set(texts(source, wanted)) <= mended
    assert len(mended) <= len(texts(source, wanted)) + 2
    customers = dict(texts(target, "SELECT code, version FROM copy_customers"))
    assert [customers[code] for code in (first, second, third)] == [1, 1, 1]
    assert 'no, "such"..' not in customers
    assert sum(version == 0 for version in customers.values()) > 50
    give(job, source, "customers", where="version >= 1 AND code <> 'x;y'")
    give(job, source, "order_lines", where="(order_id = 4) OR order_id > 5")
    give(job, source, "orders", "-9")
    run_epochs(job)
    results = compared(job)
    assert [results[name].differences for name in ("orders", "customers")] == [0, 0]
    assert results["order_lines"].differences > 0
    give(job, source, "order_lines", "0,0..1000,0")
    run_epochs(job)
    assert_equal(job, row_counts(source))
    assert [outcome.accepted for outcome in outcomes(job).values()] == [True] * 9
    assert listed(job, capsys).count(" done ") == 9
    source.execute(*(f"UPDATE {table} SET version = version + 1" for table in KEYS))
    run_epochs(job)
    assert_equal(job, row_counts(source))
    assert not Checkpoint.at(load_job_file(job).checkpoint).repair_files()


@pytest.mark.parametrize(("source", "target"), [PAIRS[0]], indirect=True)
def test_batches_follow_each_other_and_survive_deaths(
    source: Database,
    target: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run dies at each step; the last one goes on from the batch that was written last."""
    create_tables(source, rows=120, uids=Uids())
    job = job_of(source, target, tmp_path, snapshot={"split_rows": 40})
    run_epochs(job)
    armed = tmp_path / "failpoints"
    armed.mkdir()
    monkeypatch.setattr(failpoints, "_FOLDER", str(armed))
    for step in STEPS:
        target.execute(
            "UPDATE copy_orders SET note = 'x'",
            "INSERT INTO copy_orders (id, uid, version) VALUES (500, 1, 1)",
            "UPDATE copy_customers SET version = 0",
        )
        give(job, source, "orders", "1..1000")
        give(job, source, "customers", where="uid > 0")
        (armed / step).write_text("raise")
        with pytest.raises(FailpointError):
            run_epochs(job)
        assert not (armed / step).exists()
        assert "done" not in listed(job, capsys).split("orders, keys")[-1]
        source.execute(
            "UPDATE orders SET version = version + 1 WHERE id IN (5, 95)", "DELETE FROM orders WHERE id = 70 + 1"
        )
        run_epochs(job)
        assert_equal(job, row_counts(source))
    found = outcomes(job)
    assert [outcome.accepted for outcome in found.values()] == [True] * 2 * len(STEPS)
    count = source.query("SELECT count(*) FROM customers")[0][0]
    assert found[2].text == f"{count} rows were read again and written."
    assert len([joined for joined in state_of(job).joined if any(r.signal == 1 for r in joined.rereads)]) == 3


@on_pairs(2, 4)
def test_changes_around_the_read_are_neither_lost_nor_overtaken(
    source: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_tables(source, rows=120, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    target.execute(
        "UPDATE copy_orders SET note = 'bad'",
        "INSERT INTO copy_orders (id, uid, version) VALUES (777, 1, 1), (778, 1, 1)",
        "UPDATE copy_order_lines SET version = 0",
    )
    give(job, source, "orders", "1..1000")
    give(job, source, "order_lines", where="version = 1")
    await_visible, write_repair = repairs.await_visible, repairs.write_repair
    counts = {"before": 0, "after": 0}

    def before(keys: KeySource, position: Position) -> None:
        number = counts["before"] = counts["before"] + 1
        source.execute(
            f"UPDATE orders SET version = version + 1 WHERE id IN ({number}, {number + 40}, {number + 80})",
            f"DELETE FROM orders WHERE id = {110 + number}",
            f"UPDATE orders SET id = {900 + number} WHERE id = {20 + number}",
            f"INSERT INTO orders (id, uid, version) VALUES ({776 + number}, {7000 + number}, 1)",
            f"UPDATE order_lines SET version = 2 WHERE order_id = {number}",
        )
        await_visible(keys, position)

    def after(*arguments: Any) -> int:
        number = counts["after"] = counts["after"] + 1
        source.execute(
            f"UPDATE orders SET version = version + 1 WHERE id IN ({number}, {number + 40}, {number + 80})",
            f"DELETE FROM orders WHERE id = {60 + number}",
            f"UPDATE orders SET id = {100 + number} + 2000 WHERE id = {100 + number}",
            f"UPDATE order_lines SET line_no = line_no + 100 WHERE order_id = {number + 10}",
            f"DELETE FROM order_lines WHERE order_id = {number + 15}",
        )
        return write_repair(*arguments)

    monkeypatch.setattr(repairs, "await_visible", before)
    monkeypatch.setattr(repairs, "write_repair", after)
    run_epochs(job)
    assert counts["before"] > 2
    give(job, source, "order_lines", "0,0..1000,0")
    give(job, source, "orders", "2000..3000")
    run_epochs(job)
    assert_equal(job, row_counts(source))


@pytest.mark.parametrize(("source", "target"), [PAIRS[0], PAIRS[3], PAIRS[4]], indirect=True)
def test_rows_have_the_columns_that_the_log_has_up_to_there(source: Database, target: Database, tmp_path: Path) -> None:
    """The table gets columns with values while the job is stopped. The rows are read again before the log is read."""
    create_tables(source, rows=60, uids=Uids())
    sink = {"type": "mirror", "url": target.url, "table": "copy_{table}", "on_schema_change": "evolve"}
    job = job_of(source, target, tmp_path, sink=sink)
    run_epochs(job)
    source.execute("ALTER TABLE orders ADD COLUMN more INT", "UPDATE orders SET more = id")
    source.execute("ALTER TABLE order_lines ADD COLUMN more INT DEFAULT 7", "UPDATE order_lines SET more = order_id")
    give(job, source, "orders", "5", "1..20")
    give(job, source, "order_lines", where="order_id < 20")
    run_epochs(job)
    assert texts(target, "SELECT more FROM copy_orders WHERE id = 5") == [(5,)]
    assert_equal(job, row_counts(source))
    assert [outcome.accepted for outcome in outcomes(job).values()] == [True] * 3


@pytest.mark.parametrize(("source", "target"), [PAIRS[1], PAIRS[3]], indirect=True)
def test_parts_are_read_again_while_both_move(source: Database, target: Database, tmp_path: Path) -> None:
    uids = Uids()
    create_tables(source, rows=120, uids=uids)
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    with following(job), Writers(source, uids, count=2, seed=5, pause_seconds=0.02) as writers:
        target.execute("UPDATE copy_orders SET version = version - 1", "UPDATE copy_order_lines SET version = 0")
        for _ in range(3):
            give(job, source, "orders", "1..100000")
            give(job, source, "order_lines", "0,0..30000,0", "5,1")
            give(job, source, "customers", where="version >= 0")
    assert writers.transactions
    run_epochs(job)
    for name, result in compared(job).items():
        assert (name, result.differences, result.behind) == (name, 0, 0)
    assert [answer is not None and answer.accepted for answer in answers(job)] == [True] * 12
    assert [outcome.accepted for outcome in outcomes(job).values()] == [True] * 12


@pytest.mark.parametrize(("source", "target"), [PAIRS[3]], indirect=True)
def test_a_condition_that_can_t_be_computed_of_a_row_ends_its_signal(
    source: Database, target: Database, tmp_path: Path
) -> None:
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    give(job, source, "orders", where="10 / (id - 5) > 100")
    run_epochs(job)
    (outcome,) = outcomes(job).values()
    assert not outcome.accepted
    assert "division by zero" in outcome.text
    state = Checkpoint.at(load_job_file(job).checkpoint).job_state()
    assert state is not None
    assert not state.left


@pytest.mark.parametrize(("source", "target"), [PAIRS[0], PAIRS[3]], indirect=True)
def test_what_can_t_be_read_is_refused_and_the_job_goes_on(
    source: Database, target: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command where the checkpoint is enough, else by the driver with the server's words."""
    create_tables(source, rows=60, uids=Uids())
    transforms = {f"{source.schema}.customers": "SELECT *, version * 2 AS twice FROM input"}
    job = job_of(source, target, tmp_path, transforms=transforms)
    run_epochs(job)
    for table, keys, where, why in (
        ("orders", ["5,6"], None, "has 2 values, and the key of .* has 1: id"),
        ("orders", ["abc"], None, "is no key of"),
        ("orders", ["5", "9..1"], None, "ends before it begins"),
        ("orders", ["5", "1..2..3"], None, "more than two ends"),
        ("orders", ["5,"], None, "is no key"),
        ("order_lines", ["5"], None, "has 1 values, and the key of .* has 2: order_id, line_no"),
        ("order_lines", ["5,70000"], None, "is no key of"),
        ("customers", ["a"], None, "makes the key"),
        ("nothing", ["5"], None, "does not copy"),
        ("orders", [], "id = 5; DROP TABLE orders", "';' is not allowed"),
        ("orders", [], "id = 5) OR (1 = 1", "unpaired parenthesis"),
        ("orders", [], r"note = '\' ) ; DROP TABLE orders; --'", "backslash"),
        ("orders", [], "", "is empty"),
        ("orders", ["5"], "id = 5", "together with --where"),
    ):
        with pytest.raises(JobFileError, match=why):
            give(job, source, table, *keys, where=where)
    assert not answers(job)
    more_than_one = f"id = (SELECT id FROM {source.schema}.orders WHERE id > 0)"
    give(job, source, "orders", where="no_such_column = 5")
    give(job, source, "orders", where=more_than_one)
    give(job, source, "orders", "5")
    checkpoint = Checkpoint.at(load_job_file(job).checkpoint)
    # A checkpoint may hold what the command would not give.
    checkpoint.create_signal(Signal(TableId(source.schema, "orders"), 1, where="id = 5; DROP TABLE orders"))
    checkpoint.create_signal(Signal(TableId(source.schema, "orders"), 1, keys=(("abc",),)))
    give(job, source, "customers", where="uid > 0")
    target.execute(
        "UPDATE copy_orders SET version = 0 WHERE id = 5", "UPDATE copy_customers SET version = 0, twice = 0"
    )
    source.execute("UPDATE orders SET version = 9 WHERE id = 6")
    run_epochs(job)
    assert texts(target, "SELECT version FROM copy_orders WHERE id IN (5, 6) ORDER BY id") == [(1,), (9,)]
    told = listed(job, capsys)
    assert (told.count(" failed "), told.count(" done ")) == (4, 2)
    assert texts(target, "SELECT DISTINCT version, twice FROM copy_customers") == [(1, 2)]
    ends = [outcomes(job).get(number, answer) for number, answer in enumerate(answers(job), 1)]
    assert [end is not None and end.accepted for end in ends] == [False, False, True, False, False, True]
    assert ends[0] is not None
    assert "no_such_column" in ends[0].text
    assert ends[1] is not None
    assert "more than" in ends[1].text
    assert not checkpoint.has_open_signals()


@pytest.mark.parametrize(("source", "target"), [PAIRS[0]], indirect=True)
def test_a_part_waits_for_copies_and_ends_if_its_table_is_read_again_or_leaves(
    source: Database, target: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_tables(source, rows=120, uids=Uids())
    job = job_of(source, target, tmp_path)
    orders = TableName(source.schema, "orders")
    run_epochs(job, at_most=1)
    give(job, source, "orders", "1..1000")  # while the first load runs
    run_epochs(job, at_most=1)
    assert "running" in listed(job, capsys)
    stop_snapshot(load_job_file(job))
    with pytest.raises(PausedError):
        run_epochs(job)
    resume(load_job_file(job), [])
    run_epochs(job)
    assert outcomes(job)[1].text == "120 rows were read again and written."
    # One batch is written, then the whole table is read again.
    give(job, source, "orders", "1..1000")
    die_at(job, "driver.epoch_committed")
    assert "40 rows were" in listed(job, capsys)
    stop_snapshot(load_job_file(job))
    give(job, source, "orders", "1..3")
    run_epochs(job)
    assert set(outcomes(job)) == {1}, "nothing is read while no splits are"
    resume(load_job_file(job), [])
    resnapshot(load_job_file(job), [orders])
    run_epochs(job)
    assert [outcomes(job)[number].text for number in (4, 6)] == ["All rows of the table are read again instead."] * 2
    assert "orders" not in [left.table.name for left in state_of(job).left]
    # One batch is written, then the log is read from an older position on.
    give(job, source, "orders", "1..1000")
    die_at(job, "driver.epoch_committed")
    roll_back(load_job_file(job), Checkpoint.at(load_job_file(job).checkpoint).committed_epoch(), standby=True)
    run_epochs(job)
    assert "Give the signal again." in outcomes(job)[9].text
    # One batch is written, then the table is paused.
    give(job, source, "orders", "1..1000")
    die_at(job, "driver.epoch_committed")
    pause(load_job_file(job), [orders])
    run_epochs(job)
    assert "has left the job" in outcomes(job)[10].text
    with pytest.raises(JobFileError, match="parked or paused: its copy lacks changes") as refused:
        give(job, source, "orders", "5")
    assert refused.value.remedy.endswith(f"resnapshot --table {orders}.")
    excluding = load_job_file(job, [f"source.exclude_tables=[{orders}]"])
    with pytest.raises(JobFileError, match="does not select") as refused:
        resnapshot(excluding, [orders], keys=["5"])
    assert "source.exclude_tables" in refused.value.remedy
    Checkpoint.at(load_job_file(job).checkpoint).create_signal(
        Signal(TableId(orders.database, orders.name), 1, where="id = 5")
    )
    run_epochs(job)
    (*_, last) = answers(job)
    assert last is not None
    assert "its copy lacks changes" in last.text
    resume(load_job_file(job), [orders])
    run_epochs(job)
    assert_equal(job, row_counts(source))


@pytest.mark.parametrize(("source", "target"), [PAIRS[0]], indirect=True)
def test_the_job_goes_on_if_commits_stay_invisible_for_too_long(
    source: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the signal fails."""
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    give(job, source, "orders", "5")
    source.execute("UPDATE orders SET version = version + 1")
    monkeypatch.setattr(repairs, "VISIBLE_SECONDS", 0.0)
    monkeypatch.setattr(MySqlKeys, "sees", lambda *_: False)
    run_epochs(job)
    assert "do not contain the log up to" in outcomes(job)[1].text
    assert not outcomes(job)[1].accepted
    monkeypatch.undo()
    assert_equal(job, row_counts(source))


@pytest.mark.parametrize(("source", "target"), [PAIRS[0]], indirect=True)
def test_a_run_is_not_done_while_a_part_waits_because_no_rows_are_read(
    source: Database, target: Database, tmp_path: Path, tidemark: CommandLine
) -> None:
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    target.execute("UPDATE copy_orders SET version = 0 WHERE id = 5")
    stop_snapshot(load_job_file(job))
    assert tidemark("run", job).code == 0, "the copies are complete"
    give(job, source, "orders", "5")
    ended = tidemark("run", job)
    assert (ended.code, f"rows of {source.schema}.orders that other signals ask for" in ended.last_line) == (10, True)
    resume(load_job_file(job), [])
    assert tidemark("run", job).code == 0
    assert_equal(job, row_counts(source))


def state_of(job: Path) -> JobState:
    state = Checkpoint.at(load_job_file(job).checkpoint).job_state()
    assert state is not None
    return state


@pytest.mark.parametrize(("source", "target"), [PAIRS[3]], indirect=True)
def test_a_running_driver_reads_all_batches(source: Database, target: Database, tmp_path: Path) -> None:
    create_tables(source, rows=120, uids=Uids())
    job = job_of(source, target, tmp_path, trigger="100ms", snapshot={"split_rows": 20})
    run_epochs(job, "trigger=once")
    with running(job, *BY_DRIVER) as process:
        process.wait_until(lambda: any(found["event"] == "resumed" for found in process.events()))
        target.execute("UPDATE copy_orders SET version = 0", "UPDATE copy_customers SET version = 0")
        give(job, source, "orders", "1..1000")
        give(job, source, "customers", where="uid > 0")
        process.wait_until(lambda: len(outcomes(job)) == 2)
        os.kill(process.popen.pid, signal.SIGTERM)
        assert process.wait() == 130
    assert_equal(job, row_counts(source))


def test_what_has_no_copy_takes_no_parts(mysql_database: Database, tmp_path: Path) -> None:
    create_tables(mysql_database, rows=5, uids=Uids())
    job = job_of(mysql_database, mysql_database, tmp_path, sink={"type": "console"})
    run_epochs(job)
    with pytest.raises(JobFileError, match=r"Sink console has no copy .* have the whole table read again"):
        give(job, mysql_database, "orders", "5")


@pytest.mark.parametrize(("source", "target"), [PAIRS[0]], indirect=True)
def test_an_epoch_that_is_planned_runs_before_the_next_batch(
    source: Database, target: Database, tmp_path: Path
) -> None:
    """A run dies in the log between the first load's splits, for which the batches of a part wait."""
    create_tables(source, rows=120, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job, at_most=1)
    give(job, source, "orders", where="id > 0")
    source.execute("UPDATE orders SET version = version + 1")
    die_at(job, "log.before_report")  # what the splits have published is removed
    run_epochs(job)
    assert outcomes(job)[1].text == "120 rows were read again and written."
    assert_equal(job, row_counts(source))
