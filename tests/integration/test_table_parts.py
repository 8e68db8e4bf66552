"""`tidemark signal resnapshot --keys` and `--where`: some rows of a table are read again, and the rest of the copy stays."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of
from tests.support.reconciling import PAIRS, assert_equal, compared, following, job_of, on_all_pairs, row_counts
from tests.support.reconciling import mariadb_target as mariadb_target
from tests.support.reconciling import source as source
from tests.support.reconciling import target as target
from tests.support.servers import Database
from tests.support.workload import KEYS, Uids, Writers, create_tables
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs import repairs
from tidemark.jobs.commands.signal import list_signals, resnapshot, set_settings
from tidemark.state import failpoints
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import JobFileError
from tidemark.state.failpoints import FailpointError
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


@on_all_pairs
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
    told = listed(job, capsys)
    assert told.count(" done ") == len(answers(job)) == 9
    assert "keys 50..3000" in told
    assert "where version >= 1 AND code <> 'x;y'" in told
    source.execute(*(f"UPDATE {table} SET version = version + 1" for table in KEYS))
    run_epochs(job)
    assert_equal(job, row_counts(source))
    assert not Checkpoint.at(load_job_file(job).checkpoint).repair_files()


@pytest.mark.parametrize(("source", "target"), [PAIRS[0], PAIRS[2]], indirect=True)
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
    joined = Checkpoint.at(load_job_file(job).checkpoint).job_state()
    assert joined is not None
    assert len([entry for entry in joined.joined if any(r.signal == 1 for r in entry.rereads)]) == 3


@on_all_pairs
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


@on_all_pairs
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
