"""`tidemark signal resnapshot --keys` and `--where`, and `reconcile --repair`, for a copy of files: the rows that are read
again are placed among the changes where the source had them so (docs/adr/0060)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.epochs import run_epochs
from tests.support.history import assert_copied
from tests.support.reconciling import (
    Changes,
    assert_equal,
    compared,
    edit_files,
    files_job_of,
    following,
    found_keys,
    row_counts,
    source,  # noqa: F401  # a fixture
)
from tests.support.servers import Database
from tests.support.workload import Uids, Writers, create_tables
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.reconcile import reconcile
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.signals import repairs
from tidemark.readers.log import placed_rereads
from tidemark.readers.snapshot import split_read
from tidemark.sinks.files import merging, sink
from tidemark.state import failpoints
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import DifferencesError
from tidemark.state.failpoints import FailpointError
from tidemark.state.key_source import KeySource
from tidemark.state.position import Position
from tidemark.state.signals import Answer

pytestmark = pytest.mark.integration

SOURCES = ["mysql_database", "mariadb_database", "postgres18_database"]
STEPS = [
    "repairs.read",
    "repairs.joined",
    "repairs.emitted",
    "log.before_report",
    "sink.before_commit",
    "sink.after_commit",
    "driver.epoch_written",
    "driver.epoch_committed",
    "planner.before_plan",
    "planner.after_plan",
]


def give(job: Path, origin: Database, table: str, *keys: str, where: str | None = None) -> None:
    resnapshot(load_job_file(job), [TableName(origin.schema, table)], keys=keys, where=where)


def outcomes(job: Path) -> list[Answer]:
    return list(Checkpoint.at(load_job_file(job).checkpoint).outcomes().values())


def changes_of(tmp_path: Path, origin: Database, table: str) -> Iterator[dict[str, Any]]:
    for path in sorted((tmp_path / "copy" / f"{origin.schema}.{table}").glob("e*")):
        if path.suffix == ".parquet":
            yield from pq.ParquetFile(path).read().to_pylist()
        else:
            yield from map(json.loads, path.read_text().splitlines())


def damage(tmp_path: Path, origin: Database) -> None:
    """Changed cells (5, 110), missing rows (7, 60) and rows of nobody (2000, 3000, -9) in `orders`, and a changed cell in each
    row of `order_lines` and `customers`."""

    def orders(rows: Changes) -> Changes:
        kept = [row | {"note": "bad"} if row["id"] in {5, 110} else row for row in rows if row["id"] not in {7, 60}]
        return kept + [row | {"id": new} for row in rows if row["id"] == 20 for new in (2000, 3000, -9)]

    for table, edit in {
        "orders": orders,
        "order_lines": lambda rows: [row | {"version": 0} for row in rows],
        "customers": lambda rows: [row | {"version": 0} for row in rows],
    }.items():
        edit_files(tmp_path / "copy" / f"{origin.schema}.{table}", edit)


@pytest.mark.servers_in_turn("source")
@pytest.mark.parametrize("file_format", ["parquet", "jsonl"])
@pytest.mark.parametrize("source", SOURCES, indirect=True)
def test_keys_ranges_and_conditions_are_read_again_and_other_rows_stay(
    source: Database,  # noqa: F811
    file_format: str,
    tmp_path: Path,
) -> None:
    create_tables(source, rows=120, uids=Uids())
    job = files_job_of(source, tmp_path, file_format)
    run_epochs(job)
    damage(tmp_path, source)
    codes = [row[0] for row in source.query("SELECT code FROM customers ORDER BY uid LIMIT 2")]
    give(job, source, "orders", "5", "7", "100007", "50..3000")
    give(job, source, "order_lines", "3,2", "3,9", "7,1..9,3")
    give(job, source, "customers", *(f'"{code}"' for code in codes), '"no, ""such"".."')
    run_epochs(job)
    results = compared(job, examples=1000)
    assert found_keys(results["orders"]) == {"surplus": {("-9",)}}, "110 is in the range"
    lines = {tuple(map(int, key)) for key in found_keys(results["order_lines"])["different"]}
    read = {(3, 2), (4, 0), (7, 1), (7, 2), (7, 3), *((8, n) for n in range(4)), *((9, n) for n in range(4))}
    assert lines == {tuple(row) for row in source.query("SELECT order_id, line_no FROM order_lines")} - read
    assert {key for (key,) in found_keys(results["customers"])["different"]}.isdisjoint(codes)
    give(job, source, "customers", where="version >= 1 AND code <> 'x;y'")
    give(job, source, "order_lines", where="order_id > -5")
    give(job, source, "orders", "-9")
    run_epochs(job)
    assert_equal(job, row_counts(source))
    assert all(outcome.accepted for outcome in outcomes(job))
    (gone,) = (
        row for row in changes_of(tmp_path, source, "orders") if row["_change_type"] == "delete" and row["id"] == -9
    )
    assert (gone["_is_snapshot"], gone["_txn_id"], gone["note"]) == (True, None, None)
    source.execute("UPDATE orders SET version = 2 WHERE id < 9", "DELETE FROM orders WHERE id = 50")
    run_epochs(job)
    assert_equal(job, row_counts(source))
    assert not Checkpoint.at(load_job_file(job).checkpoint).repair_files()


@pytest.mark.servers_in_turn("source")
@pytest.mark.parametrize("source", SOURCES, indirect=True)
def test_a_repair_reads_only_the_keys_that_differ(source: Database, tmp_path: Path) -> None:  # noqa: F811
    create_tables(source, rows=120, uids=Uids())
    job = files_job_of(source, tmp_path)
    run_epochs(job)
    damage(tmp_path, source)
    with pytest.raises(DifferencesError, match="read again"):
        reconcile(load_job_file(job), [], as_json=False, repair=True, patience_seconds=0.0)
    run_epochs(job)
    assert_equal(job, row_counts(source))
    again = [row for row in changes_of(tmp_path, source, "orders") if row["_seq"] >= split_read.reread_seq(1, 0)]
    kinds = {(row["id"], row["_change_type"]) for row in again}
    assert {(5, "insert"), (110, "insert"), (7, "insert"), (60, "insert")} < kinds
    assert {key for key, kind in kinds if kind == "delete"} == {2000, 3000, -9}
    assert len(kinds) < 15
    assert not any(row["_change_type"] == "truncate" for row in changes_of(tmp_path, source, "orders"))


@pytest.mark.servers_in_turn("source")
@pytest.mark.parametrize("source", SOURCES, indirect=True)
@pytest.mark.parametrize("step", STEPS)
def test_batches_follow_each_other_and_survive_deaths(
    source: Database,  # noqa: F811
    tmp_path: Path,
    step: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create_tables(source, rows=120, uids=Uids())
    job = files_job_of(source, tmp_path)
    run_epochs(job)
    damage(tmp_path, source)
    armed = tmp_path / "failpoints"
    armed.mkdir()
    monkeypatch.setattr(failpoints, "_FOLDER", str(armed))
    give(job, source, "orders", "-100..5000")
    for table in ("customers", "order_lines"):
        give(job, source, table, where="uid > 0")
    (armed / step).write_text("raise")
    with pytest.raises(FailpointError):
        run_epochs(job)
    assert not (armed / step).exists()
    source.execute("UPDATE orders SET version = version + 1 WHERE id IN (5, 95)", "DELETE FROM orders WHERE id = 71")
    run_epochs(job)
    assert_equal(job, row_counts(source))
    assert [outcome.accepted for outcome in outcomes(job)] == [True] * 3
    places = [(row["id"], row["_commit_version"], row["_seq"]) for row in changes_of(tmp_path, source, "orders")]
    assert len(places) == len(set(places)), "a row was written twice"


@pytest.mark.servers_in_turn("source")
@pytest.mark.parametrize("source", SOURCES, indirect=True)
def test_changes_around_the_read_are_placed_before_and_after_it(
    source: Database,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Changes before the rows are read and after it, in the same range of the log. The copy was right before, so each row that
    is read again is as the copy has it at its place."""
    create_tables(source, rows=120, uids=Uids())
    job = files_job_of(source, tmp_path)
    run_epochs(job)
    give(job, source, "orders", "1..1000")
    give(job, source, "order_lines", where="version = 1")
    await_visible, write_repair = repairs.await_visible, repairs.write_repair
    counts = {"before": 0, "after": 0}

    def before(keys: KeySource, position: Position) -> None:
        number = counts["before"] = counts["before"] + 1
        source.execute(
            f"UPDATE orders SET version = version + 1 WHERE id IN ({number}, {number + 40}, {number + 80})",
            f"DELETE FROM orders WHERE id = {110 + number}",
            f"UPDATE orders SET id = {900 + number}, version = version + 1 WHERE id = {20 + number}",
            f"INSERT INTO orders (id, uid, version) VALUES ({776 + number}, {7000 + number}, 1)",
            f"UPDATE order_lines SET version = 2 WHERE order_id = {number}",
        )
        await_visible(keys, position)

    def after(*arguments: Any) -> int:
        number = counts["after"] = counts["after"] + 1
        source.execute(
            f"UPDATE orders SET version = version + 1 WHERE id IN ({number}, {number + 40}, {number + 80})",
            f"DELETE FROM orders WHERE id = {60 + number}",
            f"UPDATE orders SET id = {2100 + number}, version = version + 1 WHERE id = {100 + number}",
            f"UPDATE order_lines SET line_no = line_no + 100, version = version + 1 WHERE order_id = {number + 10}",
            f"DELETE FROM order_lines WHERE order_id = {number + 15}",
        )
        return write_repair(*arguments)

    monkeypatch.setattr(repairs, "await_visible", before)
    monkeypatch.setattr(repairs, "write_repair", after)
    run_epochs(job)
    assert counts["before"] > 2
    assert_equal(job, row_counts(source))
    assert_copied(tmp_path / "copy", source)


@pytest.mark.parametrize(
    "source",
    ["mysql_database", pytest.param("mariadb_database", marks=pytest.mark.every_server), "postgres18_database"],
    indirect=True,
)
@pytest.mark.servers_in_turn("source")
def test_each_row_is_as_the_copy_has_it_at_its_place_while_both_move(
    source: Database,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files are merged meanwhile, and changes are looked at in small pieces."""
    monkeypatch.setattr(merging, "MERGED_FILES", 2)
    monkeypatch.setattr(sink, "MERGED_FILES", 2)
    monkeypatch.setattr(placed_rereads, "KEPT_BYTES", 1000)
    uids = Uids()
    create_tables(source, rows=120, uids=uids)
    job = files_job_of(source, tmp_path)
    run_epochs(job)
    with (
        following(job, "sink.merge_small_files=true"),
        Writers(source, uids, count=2, seed=5, pause_seconds=0.01) as writers,
    ):
        for _ in range(3):
            give(job, source, "orders", "-10..100000")
            give(job, source, "order_lines", "0,0..30000,0", "5,1")
            give(job, source, "customers", where="version >= 0")
    assert writers.transactions
    run_epochs(job)
    assert [outcome.accepted for outcome in outcomes(job)] == [True] * 12
    for name, result in compared(job).items():
        assert (name, result.differences, result.behind) == (name, 0, 0)
    assert_copied(tmp_path / "copy", source)


@pytest.mark.parametrize("file_format", ["parquet", "jsonl"])
def test_values_that_the_log_leaves_out_come_from_the_rows(
    postgres18_database: Database, tmp_path: Path, file_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows without their long values are changed while they are read, before it and after it: they get other keys, other short
    values, other long values, and are removed."""
    origin = postgres18_database
    origin.execute(
        "CREATE TABLE notes (id int PRIMARY KEY, stars int, body text, more text)",
        "ALTER TABLE notes ALTER body SET STORAGE EXTERNAL, ALTER more SET STORAGE EXTERNAL",
        "INSERT INTO notes SELECT i, 0, repeat(i::text, 4000), repeat('m' || i, 4000) FROM generate_series(1, 40) AS i",
    )
    job = files_job_of(origin, tmp_path, file_format)
    run_epochs(job)
    edit_files(
        tmp_path / "copy" / f"{origin.schema}.notes",
        lambda rows: [row | {"body": "wrong", "more": None} for row in rows if row["id"] % 10 != 9],
    )
    give(job, origin, "notes", "1..1000")
    await_visible, write_repair = repairs.await_visible, repairs.write_repair

    def change(first: int) -> None:
        at = [first + n for n in range(9)]
        origin.execute(
            f"UPDATE notes SET stars = 1 WHERE id IN ({at[0]}, {at[1]})",
            f"UPDATE notes SET body = 'new' WHERE id IN ({at[1]}, {at[2]})",
            f"UPDATE notes SET stars = 2 WHERE id IN ({at[2]}, {at[3]})",
            f"UPDATE notes SET id = id + 100 WHERE id IN ({at[3]}, {at[4]})",
            "BEGIN",
            f"UPDATE notes SET stars = 3 WHERE id IN ({at[5]}, {at[8]})",
            f"UPDATE notes SET id = id + 100 WHERE id IN ({at[5]}, {at[4] + 100})",
            "COMMIT",
            f"DELETE FROM notes WHERE id IN ({at[6]})",
            f"UPDATE notes SET more = NULL, id = id + 200 WHERE id = {at[7]}",
        )

    def before(keys: KeySource, position: Position) -> None:
        change(11)
        await_visible(keys, position)
        monkeypatch.setattr(repairs, "await_visible", await_visible)

    def after(*arguments: Any) -> int:
        change(31)
        monkeypatch.setattr(repairs, "write_repair", write_repair)
        return write_repair(*arguments)

    monkeypatch.setattr(repairs, "await_visible", before)
    monkeypatch.setattr(repairs, "write_repair", after)
    run_epochs(job)
    assert_equal(job, {"notes": 38})


@pytest.mark.servers_in_turn("source")
@pytest.mark.parametrize("source", SOURCES[:2], indirect=True)
def test_what_is_read_last_at_one_position_wins(
    source: Database,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rows change between two reads without a change in the log. After the table came back to the job, its rows can be read
    again as often as before."""
    create_tables(source, rows=20, uids=Uids())
    job = files_job_of(source, tmp_path)
    run_epochs(job)

    def change_silently(note: str) -> None:
        source.execute("SET sql_log_bin = 0", f"UPDATE orders SET note = '{note}' WHERE id = 5", "SET sql_log_bin = 1")

    for note in ("first", "second", "third"):
        change_silently(note)
        give(job, source, "orders", "5", "4..6")
        give(job, source, "orders", where="id = 5")
        run_epochs(job)
        assert_equal(job, row_counts(source))
    resnapshot(load_job_file(job), [TableName(source.schema, "orders")])
    change_silently("fourth")
    run_epochs(job)
    assert_equal(job, row_counts(source))
    change_silently("fifth")
    give(job, source, "orders", "5")
    run_epochs(job)
    assert_equal(job, row_counts(source))
    monkeypatch.setattr(repairs, "MAX_REREADS", 2)
    give(job, source, "orders", "5")
    give(job, source, "orders", "6")
    run_epochs(job)
    assert [outcome.accepted for outcome in outcomes(job)][-2:] == [True, False]
    assert "at one position" in outcomes(job)[-1].text
