"""`tidemark reconcile` finds every wrong row of a mirror, and takes no correct one for wrong, while source and copy move."""

import contextlib
import itertools
import json
import os
import pickle
import random
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.cli import CommandLine, tidemark  # noqa: F401  # a fixture
from tests.support.epochs import run_epochs
from tests.support.jobs import running, source_of, write_job
from tests.support.reconciling import (
    PAIRS,
    Silent,
    assert_equal,
    compared,
    damage,
    following,
    found_keys,
    job_of,
    on_pairs,
    row_counts,
)
from tests.support.room import files_of_at_most
from tests.support.servers import Database
from tests.support.workload import KEYS, Uids, Writers, create_tables
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.reconcile import reconcile
from tidemark.jobs.reconcile import range_looks, table_comparison
from tidemark.jobs.reconcile.range_looks import MAKE_ROOM, RangeLook, RangeLooks, TableLook
from tidemark.jobs.reconcile.ranges import Range
from tidemark.jobs.reconcile.reconcile import reconcile_tables
from tidemark.jobs.reconcile.suspects import Verdict
from tidemark.jobs.reconcile.table_comparison import TableResult
from tidemark.readers import session
from tidemark.readers.mysql import connect as mysql_connect
from tidemark.readers.mysql.snapshot import table_rows as table_rows_of_mysql
from tidemark.readers.postgres.snapshot import table_rows as table_rows_of_postgres
from tidemark.readers.snapshot import gathered_rows, split_reader
from tidemark.sinks.mirror.comparing import MirrorComparison
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import DifferencesError, NoRoomError, TableLockedError

pytestmark = pytest.mark.integration

DAMAGED = {
    "orders": {"different": {("5",), ("95",)}, "missing": {("7",), ("100",)}, "surplus": {("-9",), ("100000",)}},
    "order_lines": {
        "different": {("3", "2")},
        "missing": {("20", "0"), ("20", "1"), ("20", "2"), ("20", "3")},
        "surplus": {("3", "9")},
    },
}


@on_pairs(0, 2, 4)
def test_every_wrong_row_is_found_and_no_other(source: Database, target: Database, tmp_path: Path) -> None:
    create_tables(source, rows=120, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    assert_equal(job, row_counts(source))
    codes = [row[0] for row in source.query("SELECT code FROM customers ORDER BY uid LIMIT 3")]
    damage(target)
    results = compared(job)
    assert {name: found_keys(results[name]) for name in DAMAGED} == DAMAGED
    assert found_keys(results["customers"]) == {
        "different": {(codes[0],)},
        "missing": {(codes[1],)},
        "surplus": {(f"{codes[2]} Ω no such",)},
    }


@on_pairs(0, 3)
def test_only_rows_that_may_differ_are_written_to_the_target(
    source: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are read from both sides: also those whose key the copy orders in another way, such as texts."""
    create_tables(source, rows=120, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    staged: dict[str, int] = {}

    def counted(copy: MirrorComparison, batches: Iterable[pa.RecordBatch]) -> None:
        rows = list(batches)
        name = copy.schema.table.name
        staged[name] = staged.get(name, 0) + sum(batch.num_rows for batch in rows)
        stage(copy, rows)

    stage = MirrorComparison.stage
    monkeypatch.setattr(MirrorComparison, "stage", counted)
    monkeypatch.setattr(table_comparison, "LEAST_HASHED_ROWS", 1)
    assert_equal(job, row_counts(source))
    assert staged == {}
    codes = [row[0] for row in target.query("SELECT code FROM copy_customers ORDER BY uid LIMIT 2")]
    target.execute(
        "UPDATE copy_orders SET note = NULL WHERE id = 5",
        "DELETE FROM copy_order_lines WHERE order_id = 20",
        "INSERT INTO copy_customers (code, uid, version) VALUES ('no such', 1, 1)",
    )
    with contextlib.closing(target.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE copy_customers SET note = '' WHERE code = %s", (codes[0],))
        cursor.execute("DELETE FROM copy_customers WHERE code = %s", (codes[1],))
    results = compared(job)
    assert found_keys(results["orders"]) == {"different": {("5",)}}
    assert len(found_keys(results["order_lines"])["missing"]) == 4
    assert found_keys(results["customers"]) == {
        "different": {(codes[0],)},
        "missing": {(codes[1],)},
        "surplus": {("no such",)},
    }
    looks = 4  # the first one, and those of a log without changes
    assert staged == {"orders": looks, "order_lines": 4 * looks, "customers": 2 * looks}


def test_tasks_compare_the_ranges_of_a_large_table(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that has found much leaves ranges to later ones."""
    source, target = mysql_database, postgres_database
    create_tables(source, rows=400, uids=Uids())
    job = job_of(source, target, tmp_path, snapshot={"split_rows": 20, "parallelism": 3})
    run_epochs(job)
    target.execute(
        "UPDATE copy_orders SET note = 'x' WHERE id BETWEEN 100 AND 180",
        "DELETE FROM copy_orders WHERE id > 380",
        "INSERT INTO copy_orders (id, uid, version) VALUES (-9, 1, 1)",
    )
    looked: dict[str, list[int]] = {}

    def in_tasks(look: TableLook, function: Any, tasks: Sequence[Sequence[Any]]) -> list[Any]:
        copy = pickle.loads(pickle.dumps(function))
        found = list(itertools.chain.from_iterable(copy([ranges]) for ranges in tasks))
        looked.setdefault(look.schema.table.name, []).extend(each.number for each in found)
        return found

    monkeypatch.setattr(table_comparison, "RANGES_WITHOUT_SPARK", 2)
    monkeypatch.setattr(range_looks, "MAX_PAIRS_OF_A_TASK", 3)
    results = reconcile_tables(
        load_job_file(job), watch=lambda _: Silent(), examples=1000, patience_seconds=0, tasks=in_tasks
    )
    by_name = {result.schema.table.name: result for result in results}
    assert {name: result.rows for name, result in by_name.items()} == row_counts(source)
    assert found_keys(by_name["orders"]) == {
        "different": {(str(n),) for n in range(100, 181)},
        "missing": {(str(n),) for n in range(381, 401)},
        "surplus": {("-9",)},
    }
    assert by_name["order_lines"].differences == by_name["customers"].differences == 0
    assert looked.keys() == set(KEYS)
    last = max(looked["orders"])
    first = looked["orders"][: last - 1]
    assert sorted(first) == list(range(2, last + 1))
    assert first != sorted(first), "several tasks look at the same time"
    assert looked["orders"][last - 1 :], "so do the looks that judge, if they are at many ranges"


@pytest.mark.every_server
def test_spark_compares_a_large_table(
    mysql_database: Database,
    postgres_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, target = mysql_database, postgres_database
    create_tables(source, rows=400, uids=Uids())
    job = job_of(source, target, tmp_path, snapshot={"split_rows": 50, "parallelism": 2})
    run_epochs(job)
    target.execute("UPDATE copy_orders SET note = 'x' WHERE id IN (100, 390)")
    monkeypatch.setattr(table_comparison, "RANGES_WITHOUT_SPARK", 1)
    with pytest.raises(DifferencesError):
        reconcile(load_job_file(job), [], as_json=True, repair=False)
    tables = {facts["table"].split(".")[1]: facts for facts in json.loads(capsys.readouterr().out)["tables"]}
    assert {name: facts["different"] for name, facts in tables.items()} == dict.fromkeys(KEYS, 0) | {"orders": 2}
    assert {name: facts["rows"] for name, facts in tables.items()} == row_counts(source)


@on_pairs(0, 2)
def test_no_false_alarm_while_both_move(source: Database, target: Database, tmp_path: Path) -> None:
    """The damaged rows are those that no writer changes back: a marked row whose key no writer finds, and a surplus one."""
    uids = Uids()
    create_tables(source, rows=120, uids=uids)
    source.execute("INSERT INTO order_lines (order_id, line_no, uid, version) VALUES (-1000000, 1, 0, 1)")
    job = job_of(source, target, tmp_path, snapshot={"split_rows": 1000, "parallelism": 2})
    run_epochs(job)
    with following(job), Writers(source, uids, count=2, seed=4, pause_seconds=0.02) as writers:
        results = compared(job, patience_seconds=30)
        assert {name: result.differences for name, result in results.items()} == dict.fromkeys(KEYS, 0)
        assert {name: result.behind for name, result in results.items()} == dict.fromkeys(KEYS, 0)
        target.execute(
            "UPDATE copy_order_lines SET version = 7 WHERE order_id = -1000000",
            "INSERT INTO copy_order_lines (order_id, line_no, uid, version) VALUES (-1000001, 9, 1, 1)",
            "INSERT INTO copy_customers (code, uid, version) VALUES ('no such', 1, 1)",
        )
        results = compared(job, patience_seconds=30)
    assert writers.transactions > 100
    assert found_keys(results["order_lines"]) == {"different": {("-1000000", "1")}, "surplus": {("-1000001", "9")}}
    assert found_keys(results["customers"]) == {"surplus": {("no such",)}}
    assert found_keys(results["orders"]) == {}


@pytest.mark.pitfall(53, 108)
@pytest.mark.parametrize(("source", "target"), PAIRS[:2] + PAIRS[-1:], indirect=True)
def test_a_change_that_is_in_no_log_is_found(source: Database, target: Database, tmp_path: Path) -> None:
    create_tables(source, rows=60, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    source.execute(
        "SET SESSION sql_log_bin = 0",
        "UPDATE orders SET note = 'not logged' WHERE id = 5",
        "DELETE FROM orders WHERE id = 6",
        "INSERT INTO orders (id, uid, version) VALUES (9999, 1, 1)",
    )
    source.execute("UPDATE customers SET version = version + 1")
    run_epochs(job)
    results = compared(job)
    assert found_keys(results["orders"]) == {"different": {("5",)}, "surplus": {("6",)}, "missing": {("9999",)}}
    assert results["customers"].differences == 0


@on_pairs(0, 2)
def test_a_stopped_job_is_judged_as_far_as_it_has_come(source: Database, target: Database, tmp_path: Path) -> None:
    """Another table's changes, and the copy's own on the same server, don't hide a difference. The table's own do."""
    create_tables(source, rows=60, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    damage(target)
    source.execute("UPDATE customers SET version = version + 1 WHERE uid > 5")
    results = compared(job)
    assert {name: found_keys(results[name]) for name in ("orders", "order_lines")} == {
        "orders": {"different": {("5",)}, "missing": {("7",)}, "surplus": {("-9",), ("100000",)}},
        "order_lines": {"different": {("3", "2")}, "surplus": {("3", "9")}},
    }
    assert results["customers"].differences == 0
    assert results["customers"].behind > 50
    with pytest.raises(DifferencesError, match="differs from the source in 2 tables") as caught:
        reconcile(load_job_file(job), [], as_json=False, repair=False)
    assert caught.value.exit_code == 8
    with pytest.raises(DifferencesError, match="the job has not come that far"):
        reconcile(load_job_file(job), [TableName(source.schema, "customers")], as_json=False, repair=False)
    run_epochs(job)
    assert found_keys(compared(job)["customers"]).keys() == {"surplus"}, "the other rows were written again"


def test_the_command(
    mysql_database: Database,
    postgres_database: Database,
    tmp_path: Path,
    tidemark: CommandLine,  # noqa: F811
) -> None:
    source, target = mysql_database, postgres_database
    create_tables(source, rows=60, uids=Uids())
    job = job_of(source, target, tmp_path)
    assert tidemark("reconcile", job).last_line.startswith("tidemark: Job test-job has no checkpoint")
    run_epochs(job)
    ended = tidemark("reconcile", job)
    assert ended.code == 0
    assert ended.out.count("equal") == 3
    target.execute(
        "UPDATE copy_orders SET note = 'nobody may see this' WHERE id = 5", "DELETE FROM copy_orders WHERE id = 9"
    )
    ended = tidemark("reconcile", job, "--table", f"{source.schema}.customers")
    assert ended.code == 0
    ended = tidemark("reconcile", job)
    assert ended.code == 8
    assert f"differs from the source in 1 table: {source.schema}.orders." in ended.last_line
    assert f"{source.schema}.orders: different: id=5\n" in ended.out
    assert f"{source.schema}.orders: missing: id=9\n" in ended.out
    assert "nobody" not in ended.out + ended.err
    ended = tidemark("reconcile", job, "--json", "--repair", "--examples", "1")
    assert ended.code == 8
    told, failed = map(json.loads, ended.out.splitlines())
    assert (failed["event"], failed["exit_code"]) == ("failed", 8)
    assert ended.last_line == f"tidemark: {failed['cause']} Remedy: {failed['remedy']}"
    assert not told["equal"]
    (orders,) = [table for table in told["tables"] if table["table"].endswith("orders")]
    assert (orders["rows"], orders["missing"], orders["different"], orders["surplus"]) == (60, 1, 1, 0)
    assert (orders["repair"], len(orders["examples"])) == ("keys", 1)
    assert [signal.table.name for signal, _ in Checkpoint.at(str(tmp_path / "checkpoint")).signals().values()] == [
        "orders"
    ]
    run_epochs(job)
    assert json.loads(tidemark("reconcile", job, "--json").out)["equal"]
    ended = tidemark("reconcile", job, "--table", "no.such")
    assert (ended.code, "does not copy no.such" in ended.last_line) == (2, True)
    lines = write_job(tmp_path, source=source_of(source), sink={"type": "console"})
    assert "Copies of sink console can't be compared" in tidemark("reconcile", lines).last_line


def test_columns_that_the_job_file_changes_are_compared_as_the_copy_has_them(
    postgres18_database: Database, mysql_database: Database, tmp_path: Path
) -> None:
    """A masked key is in no order that the source knows; a condition leaves rows out that the copy may have."""
    source, target = postgres18_database, mysql_database
    create_tables(source, rows=120, uids=Uids())
    job = job_of(
        source,
        target,
        tmp_path,
        source=source_of(
            source,
            mask_key="a key of many characters",
            columns={"public.customers": {"mask": {"note": "sha256"}}, "public.order_lines": {"exclude": ["note"]}},
        ),
        snapshot={"split_rows": 40, "where": {"public.order_lines": "line_no < 3"}},
        transforms={"public.orders": "SELECT * EXCLUDE (note), version * 2 + 1 AS doubled FROM input"},
    )
    run_epochs(job)
    source.execute("UPDATE order_lines SET version = 2 WHERE line_no = 3 AND order_id < 5")
    run_epochs(job)
    assert_equal(job, row_counts(source) | {"order_lines": 90})
    target.execute(
        "UPDATE copy_orders SET doubled = 0 WHERE id = 50",
        "INSERT INTO copy_orders (id, uid, version) VALUES (1000, 1, 1)",
        "UPDATE copy_customers SET note = 'x' WHERE uid = 130",
        "DELETE FROM copy_order_lines WHERE line_no = 1 AND order_id = 9",
    )
    results = compared(job)
    assert found_keys(results["orders"]) == {"different": {("50",)}, "surplus": {("1000",)}}
    assert found_keys(results["order_lines"]) == {"missing": {("9", "1")}}
    assert results["customers"].counts == {Verdict.DIFFERENT: 1}


def test_a_table_that_is_read_again_is_not_compared(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    source, target = mysql_database, postgres_database
    create_tables(source, rows=120, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job, at_most=1)
    assert {result.skipped for result in compared(job).values()} == {
        "its copy is not complete yet: rows are still being read"
    }
    with pytest.raises(DifferencesError, match="was not compared: its copy is not complete yet"):
        reconcile(load_job_file(job), [], as_json=True, repair=False)
    run_epochs(job)
    source.execute("ALTER TABLE customers ADD COLUMN more INT")
    results = compared(job)
    assert results["customers"].skipped == "its columns were changed, and the job has not taken the change in yet"
    assert results["orders"].skipped is None


@pytest.mark.parametrize(("source", "target"), [PAIRS[0], PAIRS[3], PAIRS[4]], indirect=True)
def test_another_tables_ddl_in_the_unread_log_does_not_end_the_comparison(
    source: Database, target: Database, tmp_path: Path
) -> None:
    create_tables(source, rows=60, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    target.execute("DELETE FROM copy_orders WHERE id = 5")
    source.execute("ALTER TABLE customers ADD COLUMN more INT", "UPDATE customers SET version = version + 1")
    results = compared(job)
    assert results["customers"].skipped == "its columns were changed, and the job has not taken the change in yet"
    assert (results["orders"].behind, results["orders"].differences) == (1, 0)
    assert (results["order_lines"].behind, results["order_lines"].skipped) == (0, None)


def test_a_table_that_gets_columns_meanwhile_is_not_called_equal(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    source, target = mysql_database, postgres_database
    create_tables(source, rows=60, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)

    class Altering(Silent):
        def ranges(self, done: int, rows: int) -> None:
            if rows == 60:  # no thread reads the source any more
                source.execute("ALTER TABLE orders ADD COLUMN more INT")
                run_epochs(job, "sink.on_schema_change=evolve")

    (result,) = reconcile_tables(load_job_file(job), [TableName(source.schema, "orders")], watch=lambda _: Altering())
    assert result.skipped == "it got new columns since the comparison began"


ALTERATIONS = {
    "a column more": "ALTER TABLE orders ADD COLUMN more INT",
    "a column less": "ALTER TABLE orders DROP COLUMN note",
    "dropped": "DROP TABLE orders",
    "renamed": "ALTER TABLE orders RENAME TO orders_of_old",
}


@pytest.mark.parametrize("statement", ALTERATIONS.values(), ids=ALTERATIONS)
@pytest.mark.parametrize("during", ["the first look", "a later look"])
@on_pairs(2)
def test_a_table_that_is_altered_meanwhile_does_not_keep_others_from_being_compared(
    source: Database, target: Database, tmp_path: Path, statement: str, during: str
) -> None:
    create_tables(source, rows=200, uids=Uids())
    job = job_of(source, target, tmp_path, snapshot={"split_rows": 10, "parallelism": 2})
    run_epochs(job)
    target.execute("DELETE FROM copy_orders WHERE id = 150")
    altered: list[str] = []

    class Altering(Silent):
        def ranges(self, done: int, rows: int) -> None:
            if during == "the first look" and done == 1:
                self.alter()

        def looking(self, suspects: int, look: int) -> None:
            if during == "a later look" and look == 1:
                self.alter()

        def alter(self) -> None:
            source.execute(statement)
            altered.append(statement)

    names = [TableName(source.schema, name) for name in ("orders", "customers")]
    watchers = {"orders": Altering(), "customers": Silent()}
    found = {
        result.schema.table.name: result
        for result in reconcile_tables(load_job_file(job), names, watch=lambda table: watchers[table.name], repair=True)
    }
    assert altered == [statement]
    if during == "the first look" and "ADD COLUMN" not in statement:
        assert found["orders"].skipped == "it was altered or dropped since the comparison began"
    else:  # the known columns may still be read, but the job has not come to the ALTER
        assert found["orders"].skipped or found["orders"].behind == 1
    assert (found["customers"].skipped, found["customers"].rows) == (None, 200)


def test_a_table_that_is_locked_meanwhile_does_not_keep_others_from_being_compared(
    mysql_database: Database,
    postgres_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, target = mysql_database, postgres_database
    create_tables(source, rows=200, uids=Uids())
    job = job_of(source, target, tmp_path, snapshot={"split_rows": 10, "parallelism": 2})
    run_epochs(job)
    monkeypatch.setitem(mysql_connect._SESSION, "lock_wait_timeout", "1")
    monkeypatch.setattr(split_reader, "READ_ATTEMPTS", 1)
    monkeypatch.setattr(session, "ATTEMPTS", 1)
    compared_ranges, look = list[int](), RangeLooks.compared
    with contextlib.closing(source.connect()) as connection, connection.cursor() as cursor:

        def locking(self: RangeLooks, each: Range, *arguments: Any, **settings: Any) -> RangeLook:
            if self.table.schema.table.name == "orders" and not compared_ranges:
                compared_ranges.append(each.number)
                cursor.execute("LOCK TABLES orders WRITE")
            return look(self, each, *arguments, **settings)

        monkeypatch.setattr(RangeLooks, "compared", locking)
        names = [TableName(source.schema, name) for name in ("orders", "customers")]
        with pytest.raises(TableLockedError, match=f"keeps {source.schema}.orders locked"):
            reconcile(load_job_file(job), names, as_json=True, repair=False)
    assert compared_ranges == [0]
    found = {table["table"].rpartition(".")[2]: table for table in json.loads(capsys.readouterr().out)["tables"]}
    assert "locked" in found["orders"]["skipped"]
    assert (found["customers"]["skipped"], found["customers"]["rows"]) == (None, 200)


def test_a_key_that_may_be_nan_has_no_surplus_rows(
    postgres18_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    """A range up to NaN has no such range of integers in the copy."""
    source, target = postgres18_database, postgres_database
    source.execute(
        "CREATE TABLE odd_keys (id numeric(10,0) PRIMARY KEY)",
        "INSERT INTO odd_keys SELECT i FROM generate_series(-50, 50) AS i UNION ALL SELECT 'NaN'::numeric",
    )
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    assert_equal(job, {"odd_keys": 102})
    target.execute("INSERT INTO copy_odd_keys VALUES (60), (-60)", "DELETE FROM copy_odd_keys WHERE id = 'NaN'")
    assert found_keys(compared(job)["odd_keys"]) == {"surplus": {("60",), ("-60",)}, "missing": {("NaN",)}}


def test_a_table_without_copied_rows_is_not_compared(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    source, target = mysql_database, postgres_database
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    source.execute("CREATE TABLE later (id INT PRIMARY KEY)", "INSERT INTO later VALUES (1)")
    run_epochs(job, "mode=incremental")
    results = compared(job)
    assert results["later"].skipped == "it joined the job in mode incremental, so its rows were not copied"
    assert results["orders"].skipped is None
    with pytest.raises(DifferencesError, match="later was not compared") as refused:
        reconcile(load_job_file(job), (), as_json=False, repair=False)
    assert refused.value.remedy == "Name the tables to compare with --table."
    others = [TableName(source.schema, table) for table in KEYS]
    reconcile(load_job_file(job), others, as_json=False, repair=False)


def test_many_surplus_rows_end_the_comparison_of_a_table(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = mysql_database, postgres_database
    create_tables(source, rows=120, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    monkeypatch.setattr(table_comparison, "MAX_SUSPECTS", 10)
    monkeypatch.setattr(table_comparison, "MAX_DIFFERENCES", 20)
    monkeypatch.setattr(table_comparison, "MAX_SURPLUS", 50)
    target.execute(
        "DELETE FROM copy_order_lines WHERE order_id > 15",
        "INSERT INTO copy_orders (id, uid, version) SELECT id + 1000, uid, 1 FROM copy_orders",
    )
    results = compared(job)
    assert results["order_lines"].cut
    assert results["order_lines"].counts.keys() == {Verdict.MISSING}
    assert results["orders"].cut
    assert results["orders"].counts.keys() == {Verdict.SURPLUS}
    assert results["customers"].differences == 0


@pytest.mark.parametrize(
    ("table", "surplus", "key"),
    [("orders", "(id, uid, version) VALUES (1000, 1000, 1)", "1000"), ("customers", "VALUES ('zz', 1000, 1)", "zz")],
    ids=["by ranges", "as a whole"],
)
def test_a_surplus_row_is_found_beside_more_rows_than_a_look_lists(
    mysql_database: Database,
    postgres_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table: str,
    surplus: str,
    key: str,
) -> None:
    """The job has not come to where these were deleted when the first look finds them."""
    source, target = mysql_database, postgres_database
    create_tables(source, rows=120, uids=Uids())
    job = job_of(source, target, tmp_path, snapshot={"split_rows": 1000, "parallelism": 2})
    run_epochs(job)
    target.execute(f"INSERT INTO copy_{table} {surplus}")
    source.execute(f"DELETE FROM {table} ORDER BY uid LIMIT 100")
    monkeypatch.setattr(range_looks, "MAX_SURPLUS", 50)
    monkeypatch.setattr(table_comparison, "MAX_SURPLUS", 50)
    listed: list[int] = []

    class CatchingUp(Silent):
        def looking(self, suspects: int, look: int) -> None:
            listed.append(suspects)
            run_epochs(job)

    (result,) = reconcile_tables(load_job_file(job), [TableName(source.schema, table)], watch=lambda _: CatchingUp())
    assert listed[0] == 50
    assert (result.counts, result.behind, result.cut) == ({Verdict.SURPLUS: 1}, 0, False)
    assert [example.key for example in result.examples] == [(key,)]


@pytest.mark.parametrize("kind", ["postgres", pytest.param("mariadb", marks=pytest.mark.every_server)])
def test_the_server_compares_a_copy_whose_reading_breaks(
    kind: str,
    mysql_database: Database,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target: Database = request.getfixturevalue(f"{kind}_database")
    module = table_rows_of_postgres if kind == "postgres" else table_rows_of_mysql
    mysql_database.execute("CREATE TABLE plain (id INT PRIMARY KEY)", "INSERT INTO plain VALUES (1), (2)")
    job = job_of(mysql_database, target, tmp_path)
    run_epochs(job)
    target.execute("DELETE FROM copy_plain WHERE id = 2")
    kills = []

    def killed(connection: Any, tables: Any) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()" if kind == "postgres" else "SELECT connection_id()")
            kills.append(cursor.fetchone()[0])
        target.execute(f"{'SELECT pg_terminate_backend' if kind == 'postgres' else 'KILL '}({kills[-1]})")
        return read_tables(connection, tables)

    read_tables = module.read_tables
    monkeypatch.setattr(module, "read_tables", killed)
    assert found_keys(compared(job)["plain"]) == {"missing": {("2",)}}
    assert kills


@pytest.mark.every_server
def test_an_account_with_one_connection_can_compare(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its one session compares; that the copy is not read besides is no outage."""
    target = postgres_database
    mysql_database.execute("CREATE TABLE plain (id INT PRIMARY KEY)", "INSERT INTO plain VALUES (1), (2)")
    job = job_of(mysql_database, target, tmp_path)
    run_epochs(job)
    role = f"one_{target.name}"
    target.execute(
        f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}",
        f"GRANT ALL ON SCHEMA public TO {role}",
    )
    try:
        text = job.read_text().replace("postgresql://postgres@", f"postgresql://{role}@")
        (tmp_path / "other").mkdir()
        other = tmp_path / "other" / "job.yaml"
        other.write_text(text)
        target.execute("DELETE FROM copy_plain WHERE id = 2")
        assert found_keys(compared(other)["plain"]) == {"missing": {("2",)}}
    finally:
        target.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    assert not [record for record in caplog.records if record.name == "tidemark.reconnect"]


@pytest.mark.parametrize(("source", "target"), [PAIRS[1]], indirect=True)
def test_the_session_that_compares_is_kept_while_tasks_compare_a_large_table(
    source: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Firewalls forget connections that send nothing, often after minutes."""
    source.execute("CREATE TABLE plain (id INT PRIMARY KEY)", "INSERT INTO plain VALUES (1), (2)")
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    target.execute("DELETE FROM copy_plain WHERE id = 2")
    stage, seen = MirrorComparison.stage, list[tuple[int, int, int]]()

    def asked(copy: MirrorComparison, batches: Iterable[pa.RecordBatch]) -> None:
        opened: Any = copy.session
        ((seconds,),) = copy.session.query("SELECT @@wait_timeout")
        connection = opened._connection._sock
        alive = connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        seen.append((seconds, alive, connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)))
        stage(copy, batches)

    monkeypatch.setattr(MirrorComparison, "stage", asked)
    assert found_keys(compared(job)["plain"]) == {"missing": {("2",)}}
    assert set(seen) == {(86400, 1, 30)}


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_rows_of_the_source_for_which_there_is_no_room_keep_no_other_table_from_being_compared(
    kind: str,
    postgres_database: Database,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source: Database = request.getfixturevalue(f"{kind}_database")
    target = request.getfixturevalue("mysql_database") if kind == "postgres" else postgres_database
    values = ", ".join(f"({n}, '{'x' * 100}')" for n in range(200))
    source.execute(
        "CREATE TABLE few (id INT PRIMARY KEY)",
        "INSERT INTO few VALUES (1)",
        "CREATE TABLE wide (id INT PRIMARY KEY, note VARCHAR(100))",
        f"INSERT INTO wide VALUES {values}",
    )
    job = job_of(source, target, tmp_path, snapshot={"split_rows": 1000, "parallelism": 2})
    run_epochs(job)
    target.execute("DELETE FROM copy_few")
    monkeypatch.setattr(gathered_rows, "SPILL_BYTES", 10_000)
    with files_of_at_most(1000):
        results = compared(job)
        assert found_keys(results["few"]) == {"missing": {("1",)}}
        assert str(results["wide"].skipped).startswith("The rows of a split don't fit into ")
        with pytest.raises(NoRoomError) as caught:
            reconcile(load_job_file(job), (TableName(source.schema, "wide"),), as_json=False, repair=False)
    assert caught.value.exit_code == 3
    assert caught.value.remedy == MAKE_ROOM
    reconcile(load_job_file(job), (TableName(source.schema, "wide"),), as_json=False, repair=False)


class LookCounter(Silent):
    count = 0

    def looking(self, suspects: int, look: int) -> None:
        self.count = look


@pytest.mark.every_server
def test_the_same_surplus_rows_of_a_large_table_are_found_at_each_look(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL begins a scan of a large table where the last one ended (synchronize_seqscans)."""
    source, target = mysql_database, postgres_database
    source.execute(
        "CREATE TABLE kept (id VARCHAR(20) PRIMARY KEY, v VARCHAR(1000))", "INSERT INTO kept VALUES ('a', '')"
    )
    sink = {"type": "mirror", "url": target.url, "table": "copy_{table}", "on_schema_change": {"truncate": "ignore"}}
    job = job_of(source, target, tmp_path, sink=sink)
    run_epochs(job)
    ((buffer_pages,),) = target.query("SELECT setting::int FROM pg_settings WHERE name = 'shared_buffers'")
    pages = buffer_pages // 4 + 100
    target.execute(
        "ALTER TABLE copy_kept SET (fillfactor = 10, autovacuum_enabled = off)",  # a row fills a page
        f"INSERT INTO copy_kept SELECT 'key ' || i, repeat('v', 800) FROM generate_series(1, {pages}) i",
        "ANALYZE copy_kept",
    )
    monkeypatch.setattr(range_looks, "MAX_SURPLUS", 1000)
    watcher = LookCounter()
    (result,) = reconcile_tables(load_job_file(job), watch=lambda _: watcher, patience_seconds=0)
    assert (result.kept, result.differences, watcher.count) == (1000, 0, 3)


def test_a_row_that_becomes_right_beside_surplus_rows_that_can_not_all_be_listed(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = mysql_database, postgres_database
    source.execute(
        "CREATE TABLE kept (id INT PRIMARY KEY, v INT)",
        f"INSERT INTO kept VALUES {', '.join(f'({i}, 0)' for i in range(30))}",
    )
    sink = {"type": "mirror", "url": target.url, "table": "copy_{table}", "on_schema_change": {"truncate": "ignore"}}
    job = job_of(source, target, tmp_path, sink=sink)
    run_epochs(job)
    target.execute("INSERT INTO copy_kept SELECT 100 + id, v FROM copy_kept", "UPDATE copy_kept SET v = 1 WHERE id = 7")
    monkeypatch.setattr(range_looks, "MAX_SURPLUS", 20)

    class Mending(LookCounter):
        def looking(self, suspects: int, look: int) -> None:
            target.execute("UPDATE copy_kept SET v = 0 WHERE id = 7")
            assert look < 20, "it does not end"

    (result,) = reconcile_tables(load_job_file(job), watch=lambda _: Mending(), patience_seconds=0)
    assert (result.kept, result.differences, result.moving, result.behind) == (20, 0, 0, 0)


@pytest.mark.parametrize(
    ("key", "surplus"),
    [("INT", "10000"), ("VARCHAR(20)", "'zz'"), ("VARBINARY(20)", "'zz'")],
    ids=["ranges of the copy", "as a whole", "bytes, for which the source is not asked"],
)
def test_rows_inserted_after_the_first_look_are_not_read_at_each_look(
    key: str,
    surplus: str,
    mysql_nogtid_database: Database,
    mysql_database: Database,
    postgres_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The newest row is compared first, and nearly always a suspect. Behind it the table grows."""
    source = mysql_nogtid_database
    target = mysql_database if key == "VARBINARY(20)" else postgres_database
    source.execute(f"CREATE TABLE growing (k {key} PRIMARY KEY, v INT)")

    def insert(first: int, last: int) -> None:
        rows = (f"('{n}', {n})" for n in range(first, last))
        source.execute(f"INSERT INTO growing VALUES {', '.join(rows)}")

    insert(1000, 1120)
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    target.execute(
        "DELETE FROM copy_growing WHERE v IN (1119, 1050)", f"INSERT INTO copy_growing VALUES ({surplus}, 1)"
    )
    expected, read, grown = TableLook.expected, list[int](), list[Range]()

    def counted(look: TableLook, each: Range, *arguments: Any) -> pa.Table:
        rows = expected(look, each, *arguments)
        read.append(rows.num_rows)
        if each.number == 2 and not grown:
            grown.append(each)
            insert(1120, 1920)
            run_epochs(job)
        return rows

    monkeypatch.setattr(TableLook, "expected", counted)
    result = compared(job)["growing"]
    names = {str(n) if key != "VARBINARY(20)" else f"0x{str(n).encode().hex()}" for n in (1050, 1119)}
    assert {key for (key,) in found_keys(result)["missing"]} == names
    assert [len(keys) for keys in found_keys(result).values()] == [2, 1]
    assert grown
    assert sum(read) < 800


def test_a_range_whose_surplus_rows_can_never_all_be_listed_ends_the_looks_and_holds_up_no_other_range(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each look there are others."""
    source, target = mysql_database, postgres_database
    source.execute(
        "CREATE TABLE parts (id INT PRIMARY KEY, v INT)",
        f"INSERT INTO parts VALUES {', '.join(f'({1000 * i}, 0)' for i in range(120))}",
    )
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    monkeypatch.setattr(range_looks, "MAX_SURPLUS", 20)

    seen = list[int]()

    class Changing(Silent):
        def looking(self, suspects: int, look: int) -> None:
            assert look <= 31, "it does not end"
            seen.append(suspects)
            self.change(look)

        def change(self, look: int) -> None:
            values = ", ".join(f"({1001 + 30 * look + n}, 1)" for n in range(30))
            target.execute(
                "DELETE FROM copy_parts WHERE id % 1000 <> 0",
                f"INSERT INTO copy_parts VALUES {values}",
                f"UPDATE copy_parts SET v = {int(look == 0)} WHERE id IN (7000, 60000)",
            )

    watcher = Changing()
    watcher.change(0)
    (result,) = reconcile_tables(load_job_file(job), watch=lambda _: watcher, patience_seconds=0)
    assert seen == [22] + [21] * 29
    assert (result.differences, result.moving, result.behind) == (0, 0, 21)


def test_the_surplus_rows_of_one_range_are_judged_after_those_of_another(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look lists not all of a range. Those of many ranges might not fit into the memory."""
    source, target = mysql_database, postgres_database
    source.execute(
        "CREATE TABLE parts (id INT PRIMARY KEY, v INT)",
        f"INSERT INTO parts VALUES {', '.join(f'({1000 * i}, 0)' for i in range(120))}",
    )
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    monkeypatch.setattr(range_looks, "MAX_SURPLUS", 20)
    seen = list[int]()

    class Following(Silent):
        """The copy gets other rows, and at last it has none that the source lacks."""

        def looking(self, suspects: int, look: int) -> None:
            seen.append(suspects)
            self.change(len(seen))

        def change(self, count: int) -> None:
            target.execute("DELETE FROM copy_parts WHERE id % 1000 <> 0")
            rows = (30, 10, 0)[min(count, 2)]
            if rows:
                firsts = (41001 + 100 * count, 90001 + 100 * count)
                values = ", ".join(f"({first + n}, 1)" for first in firsts for n in range(rows))
                target.execute(f"INSERT INTO copy_parts VALUES {values}")

    watcher = Following()
    watcher.change(0)
    (result,) = reconcile_tables(load_job_file(job), watch=lambda _: watcher, patience_seconds=0)
    assert (result.differences, result.moving, result.behind) == (0, 0, 0)
    assert seen == [40, 10]


class Toggler:
    """Changes many rows a second: flags go back and forth, a counter counts, rows come and go under the same keys."""

    ROWS = 400

    def __init__(self, source: Database) -> None:
        self.changes = 0
        self._source, self._stop = source, threading.Event()
        self._thread = threading.Thread(target=self._run)
        source.execute("CREATE TABLE flags (id INT PRIMARY KEY, flag SMALLINT NOT NULL, counted INT NOT NULL)")
        source.execute(f"INSERT INTO flags VALUES {', '.join(f'({i}, 0, 0)' for i in range(2 * self.ROWS))}")

    def _run(self) -> None:
        with contextlib.closing(self._source.connect()) as connection, connection.cursor() as cursor:
            while not self._stop.wait(0.05):
                cursor.execute(f"UPDATE flags SET flag = 1 - flag WHERE id < {self.ROWS}")
                self.changes += cursor.rowcount
                cursor.execute("UPDATE flags SET counted = counted + 1 WHERE id = 700")
                cursor.execute("DELETE FROM flags WHERE id BETWEEN 600 AND 620")
                time.sleep(0.01)
                cursor.execute(f"INSERT INTO flags VALUES {', '.join(f'({i}, 0, 0)' for i in range(600, 621))}")

    def __enter__(self) -> "Toggler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


RUNS = int(os.environ.get("TIDEMARK_RECONCILE_RUNS", "2"))
"""How often a moving copy is compared."""


@on_pairs(3, 4)
def test_no_false_alarm_under_thousands_of_changes(source: Database, target: Database, tmp_path: Path) -> None:
    """The job runs in a process of its own, and the command finds out by itself that it does."""
    uids = Uids()
    create_tables(source, rows=500, uids=uids)
    toggler = Toggler(source)
    job = job_of(source, target, tmp_path, snapshot={"split_rows": 2000, "parallelism": 16}, trigger="100ms")
    with running(job) as process:
        process.wait_until(lambda: any(event["event"] == "epoch" for event in process.events()))
        process.wait_until(lambda: all(result.skipped is None for result in compared(job).values()))
        began = time.monotonic()
        with toggler, Writers(source, uids, count=1, seed=5, pause_seconds=0.02):
            for _ in range(RUNS):
                for name, result in compared(job, patience_seconds=None).items():
                    assert (name, result.differences, result.behind, result.skipped) == (name, 0, 0, None)
            target.execute("UPDATE copy_flags SET flag = 7 WHERE id = 799", "DELETE FROM copy_flags WHERE id = 650")
            results = compared(job, TableName(source.schema, "flags"), patience_seconds=None)
        rate = toggler.changes / (time.monotonic() - began)
        assert process.popen.poll() is None, process.error_text()
    assert found_keys(results["flags"]) == {"different": {("799",)}, "missing": {("650",)}}
    assert rate > 1000


FAULTS = int(os.environ.get("TIDEMARK_RECONCILE_FAULTS", "1000"))
"""How many rows of a moving copy are made wrong, in equal parts: a cell, missing, surplus, stale, duplicate."""


@on_pairs(0, 4)
def test_many_wrong_rows_are_found_and_mended_under_thousands_of_changes(
    source: Database, target: Database, tmp_path: Path
) -> None:
    """Each of five kinds of faults, in random rows of a table that changes elsewhere. The running job mends them."""
    each, rows, draw = FAULTS // 5, 8 * FAULTS, random.Random(4)
    source.execute(
        "CREATE TABLE parts (id INT PRIMARY KEY, name VARCHAR(40), amount NUMERIC(9, 2), version INT NOT NULL)"
    )
    for start in range(0, rows, 4000):
        numbers = range(start, min(rows, start + 4000))
        values = (f"({n}, 'part {n % 97}', {n % 1000}.25, 1)" for n in numbers)
        source.execute(f"INSERT INTO parts VALUES {', '.join(values)}")
    toggler = Toggler(source)
    job = job_of(source, target, tmp_path, snapshot={"split_rows": 2000, "parallelism": 16}, trigger="100ms")
    keys = draw.sample(range(rows), 5 * each)
    cell, missing, surplus, stale, duplicate = (keys[n * each : (n + 1) * each] for n in range(5))
    lists = [", ".join(map(str, part)) for part in (cell, missing, surplus, stale, duplicate)]
    columns = "id, name, amount, version"
    with running(job) as process, toggler:

        def results() -> dict[str, TableResult]:
            assert process.popen.poll() is None, process.error_text()
            return compared(job, patience_seconds=None, examples=10 * each)

        process.wait_until(lambda: any(event["event"] == "epoch" for event in process.events()))
        process.wait_until(lambda: all(result.skipped is None for result in compared(job).values()))
        source.execute(
            f"UPDATE parts SET version = 2, name = concat(name, '!'), amount = amount - 1 WHERE id IN ({lists[3]})"
        )
        assert {name: result.differences for name, result in results().items()} == {"parts": 0, "flags": 0}
        began, before = time.monotonic(), toggler.changes
        target.execute(
            f"UPDATE copy_parts SET amount = amount + 0.01 WHERE id IN ({lists[0]})",
            f"DELETE FROM copy_parts WHERE id IN ({lists[1]})",
            f"INSERT INTO copy_parts ({columns}) SELECT -1 - id, 'nobody', 0, 3 FROM copy_parts WHERE id IN ({lists[2]})",
            f"UPDATE copy_parts SET version = 1, name = replace(name, '!', ''), amount = amount + 1 WHERE id IN ({lists[3]})",
            f"INSERT INTO copy_parts ({columns}) SELECT id + 1000000, name, amount, version FROM copy_parts "
            f"WHERE id IN ({lists[4]})",
        )
        found = results()
        assert (found["flags"].differences, found["flags"].skipped) == (0, None)
        assert found_keys(found["parts"]) == {
            "different": {(str(key),) for key in cell + stale},
            "missing": {(str(key),) for key in missing},
            "surplus": {(str(-1 - key),) for key in surplus} | {(str(key + 1000000),) for key in duplicate},
        }
        with pytest.raises(DifferencesError, match="differs from the source in 1 table"):
            reconcile(load_job_file(job), (), as_json=False, repair=True, patience_seconds=None)
        while any(result.differences or result.skipped is not None for result in results().values()):
            pass  # the signal is not followed yet, or the table is being read again
        assert Checkpoint.at(str(tmp_path / "checkpoint")).signals()
        rate = (toggler.changes - before) / (time.monotonic() - began)
    assert rate > 1000
