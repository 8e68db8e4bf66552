"""`tidemark reconcile` folds the files of a copy as readers do, finds every wrong row, and takes no correct one for wrong."""

import shutil
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.integration.test_types_into_sinks import insert_rows
from tests.support.all_types import create_all_types
from tests.support.epochs import run_epochs
from tests.support.postgres_values import EDGE_VALUES, MAKE_TYPES
from tests.support.reconciling import (
    Changes,
    compared,
    compared_both,
    compared_by_tasks,
    edit_files,
    files_job_of,
    following,
    found_keys,
    row_counts,
    source,  # noqa: F401  # a fixture
)
from tests.support.servers import Database
from tests.support.workload import KEYS, Uids, Writers, create_tables
from tidemark.conf.load import load_job_file
from tidemark.jobs.commands.reconcile import reconcile
from tidemark.sinks.files import merging, sink
from tidemark.state.errors import DifferencesError

pytestmark = pytest.mark.integration


def folder_of(origin: Database, tmp_path: Path, table: str) -> Path:
    return tmp_path / "copy" / f"{origin.schema}.{table}"


def assert_both_equal(job: Path, rows: dict[str, int]) -> None:
    assert {name: (result.rows, result.differences, result.behind) for name, result in compared_both(job).items()} == {
        name: (count, 0, 0) for name, count in rows.items()
    }


def wrong_orders(rows: Changes) -> Changes:
    """A changed cell, a missing row, a row that lacks its last change, a row whose deletion is lacking, and rows of nobody."""
    kept = []
    for row in rows:
        kind, key = row["_change_type"], row["id"]
        if (
            (key == 7 and kind == "insert")
            or (key == 9 and kind == "update_postimage")
            or (key == 11 and kind == "delete")
        ):
            continue
        kept.append(row | {"note": None} if key == 5 else row)
        if key == 20 and kind == "insert":
            kept += [row | {"id": -9}, row | {"id": 100_000}]
    return kept


@pytest.mark.parametrize(
    ("source", "file_format"),
    [("mysql_database", "jsonl"), ("postgres18_database", "parquet")],
    indirect=["source"],
)
def test_every_wrong_row_is_found_and_no_other(source: Database, file_format: str, tmp_path: Path) -> None:  # noqa: F811
    create_tables(source, rows=120, uids=Uids())
    job = files_job_of(source, tmp_path, file_format)
    run_epochs(job)
    source.execute(
        "UPDATE orders SET note = 'changed' WHERE id IN (9, 10)",
        "DELETE FROM orders WHERE id IN (11, 12)",
        "UPDATE customers SET version = version + 1 WHERE uid > 200",
        "UPDATE order_lines SET order_id = order_id + 1000 WHERE order_id < 3",
        "UPDATE customers SET code = upper(code) WHERE uid > 220",
    )
    run_epochs(job)
    assert_both_equal(job, row_counts(source))
    codes = [row[0] for row in source.query("SELECT code FROM customers ORDER BY uid LIMIT 2")]
    edit_files(folder_of(source, tmp_path, "orders"), wrong_orders)
    edit_files(
        folder_of(source, tmp_path, "customers"),
        lambda rows: [
            row | {"version": 0} if row["code"] == codes[0] else row for row in rows if row["code"] != codes[1]
        ],
    )
    results = compared_both(job)
    assert found_keys(results["orders"]) == {
        "different": {("5",), ("9",)},
        "missing": {("7",)},
        "surplus": {("11",), ("-9",), ("100000",)},
    }
    assert found_keys(results["customers"]) == {"different": {(codes[0],)}, "missing": {(codes[1],)}}
    assert results["order_lines"].differences == 0
    with pytest.raises(DifferencesError):
        reconcile(load_job_file(job), [], as_json=False, repair=True)
    source.execute("ALTER TABLE order_lines ADD COLUMN more INT")
    run_epochs(job, "sink.on_schema_change=evolve")
    assert_both_equal(job, row_counts(source))


@pytest.mark.parametrize(
    "source",
    [pytest.param("mysql_database", marks=pytest.mark.every_server), "postgres18_database"],
    indirect=True,
)
def test_no_false_alarm_while_both_move(
    source: Database,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files are merged meanwhile. The damaged row is one that no writer changes."""
    monkeypatch.setattr(merging, "MERGED_FILES", 2)
    monkeypatch.setattr(sink, "MERGED_FILES", 2)
    uids = Uids()
    create_tables(source, rows=120, uids=uids)
    source.execute("INSERT INTO order_lines (order_id, line_no, uid, version) VALUES (-1000000, 1, 0, 1)")
    job = files_job_of(source, tmp_path, snapshot={"split_rows": 1000, "parallelism": 2})
    run_epochs(job)
    lines = folder_of(source, tmp_path, "order_lines")
    overrides = ("sink.merge_small_files=true",)
    with following(job, *overrides), Writers(source, uids, count=2, seed=4, pause_seconds=0.02) as writers:
        results = compared(job, patience_seconds=30)
        assert {name: result.differences for name, result in results.items()} == dict.fromkeys(KEYS, 0)
        assert {name: result.behind for name, result in results.items()} == dict.fromkeys(KEYS, 0)
        (first,) = lines.glob("e*-s*.parquet")
        edit_files(
            lines,
            lambda rows: [row | {"version": 7} if row["order_id"] == -1000000 else row for row in rows],
            first.name,
        )
        results = compared(job, patience_seconds=30)
        by_tasks = compared_by_tasks(job, patience_seconds=30)
    assert writers.transactions > 100
    assert any("-e" in path.name for path in lines.glob("e*-log.parquet")), "no files were merged"
    for found in (results, by_tasks):
        assert {name: found_keys(result) for name, result in found.items()} == {
            "orders": {},
            "customers": {},
            "order_lines": {"different": {("-1000000", "1")}},
        }
    assert {name: result.behind for name, result in by_tasks.items()} == dict.fromkeys(KEYS, 0)


@pytest.mark.parametrize("file_format", ["parquet", "jsonl"])
def test_values_that_the_log_leaves_out_are_those_of_the_row_before(
    postgres18_database: Database, file_format: str, tmp_path: Path
) -> None:
    source = postgres18_database  # noqa: F811
    source.execute(
        "CREATE TABLE notes (id int, part text, stars int, body text, more text, PRIMARY KEY (id, part))",
        "ALTER TABLE notes ALTER body SET STORAGE EXTERNAL, ALTER more SET STORAGE EXTERNAL",
        "INSERT INTO notes SELECT i, 'a', 0, repeat(i::text, 4000), repeat('m' || i, 4000) FROM generate_series(1, 9) AS i",
        "CREATE TABLE nothing (code text PRIMARY KEY, note text)",
    )
    job = files_job_of(source, tmp_path, file_format)
    run_epochs(job)
    source.execute(
        "UPDATE notes SET stars = 1 WHERE id > 4",
        "UPDATE notes SET id = id + 10 WHERE id IN (1, 2)",
        "BEGIN",
        "UPDATE notes SET id = id + 20 WHERE id IN (3, 11)",  # 11 was 1
        "UPDATE notes SET body = NULL, id = id + 20 WHERE id IN (31, 4)",
        "UPDATE notes SET stars = 2, part = 'b' WHERE id IN (23, 51)",
        "COMMIT",
        "UPDATE notes SET id = 0, part = 'b' WHERE id = 9",
    )
    run_epochs(job)
    source.execute(
        "UPDATE notes SET id = id + 100 WHERE id IN (0, 51, 23)", "UPDATE notes SET stars = 3 WHERE id = 123"
    )
    run_epochs(job)
    (left_out,) = source.query("SELECT count(*) FROM notes WHERE length(more) >= 8000")[0]
    assert left_out == 9
    assert_both_equal(job, {"notes": 9, "nothing": 0})
    copied = sorted(folder_of(source, tmp_path, "notes").glob("e*"))
    for path in copied:  # rows that are there twice are one change
        shutil.copy(path, path.with_name(f"f{path.name}"))
    assert_both_equal(job, {"notes": 9, "nothing": 0})
    for path in copied:
        path.with_name(f"f{path.name}").unlink()
    edit_files(
        folder_of(source, tmp_path, "notes"),
        lambda rows: (
            [row | {"body": "x"} if row["id"] == 3 and row["body"] is not None else row for row in rows]
            + [row | {"id": -1} for row in rows if row["id"] == 2 and row["_change_type"] == "insert"]
        ),
    )
    assert found_keys(compared_both(job)["notes"]) == {"different": {("123", "b")}, "surplus": {("-1", "a")}}


@pytest.mark.parametrize(
    ("kind", "file_format"),
    [
        ("mysql", "parquet"),
        ("postgres18", "jsonl"),
        pytest.param("mysql", "jsonl", marks=pytest.mark.every_server),
        pytest.param("postgres18", "parquet", marks=pytest.mark.every_server),
        pytest.param("mariadb", "parquet", marks=pytest.mark.every_server),
    ],
)
def test_every_type(kind: str, file_format: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    source: Database = request.getfixturevalue(f"{kind}_database")  # noqa: F811
    if kind != "postgres18":
        create_all_types(source.connect())
    else:
        declared = ", ".join(f"c{i} {kind}" for i, kind in enumerate(EDGE_VALUES))
        source.execute(*MAKE_TYPES, f"CREATE TABLE all_types (id int PRIMARY KEY, {declared})")

    def insert(first_id: int) -> None:
        if kind != "postgres18":
            insert_rows(source, first_id, "files")
        else:
            for i, values in enumerate(zip_longest(*EDGE_VALUES.values(), fillvalue="NULL")):
                source.execute(f"INSERT INTO all_types VALUES ({first_id + i}, {', '.join(values)})")

    insert(0)
    place = {"type": "files", "path": str(tmp_path / "copy"), "format": file_format, "on_bad_value": "null"}
    job = files_job_of(source, tmp_path, file_format, sink=place)
    run_epochs(job)
    insert(1000)
    run_epochs(job)
    (result,) = compared_both(job).values()
    assert (result.differences, result.examples, result.skipped) == (0, [], None)
    changed: dict[str, str] = {}

    def null_one_of_each(rows: Changes) -> Changes:
        for number, name in enumerate(name for name in rows[0] if name != "id" and not name.startswith("_")):
            held = [row for row in rows if row[name] is not None and row["_change_type"] == "insert"]
            if held:
                row = held[number % len(held)]
                row[name], changed[name] = None, str(row["id"])
        return rows

    edit_files(folder_of(source, tmp_path, "all_types"), null_one_of_each, "e*-log.*")
    (result,) = compared_both(job).values()
    assert {example.key for example in result.examples} == {(key,) for key in changed.values()}
    assert len(changed) > 30
