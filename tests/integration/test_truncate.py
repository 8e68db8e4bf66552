"""TRUNCATE in the source, while the job follows its log or copies its rows."""

import contextlib
from pathlib import Path

import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.history import assert_copied, read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tests.support.workload import KEYS, Uids, Writers, create_tables

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(41), pytest.mark.servers_in_turn(always="postgres18_server")]


def test_a_truncation_among_changes_is_followed_in_order(any_source_database: Database, tmp_path: Path) -> None:
    database, uids = any_source_database, Uids()
    create_tables(database, rows=100, uids=uids)
    job = write_job(tmp_path, source=source_of(database), sink={"type": "files", "path": str(tmp_path / "out")})
    run_epochs(job)
    with Writers(database, uids, count=2, seed=3, pause_seconds=0.02):
        for _ in range(3):
            for table in KEYS:
                database.execute(f"TRUNCATE TABLE {table}")
            run_epochs(job)
    run_epochs(job)
    assert_copied(tmp_path / "out", database)
    history = read_history(tmp_path / "out", database.schema, "orders")
    assert history["_change_type"].to_pylist().count("truncate") == 3


def test_a_mirror_is_emptied_with_it(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = any_source_database
    target: Database = request.getfixturevalue(f"{source.kind}_database")
    create_tables(source, rows=50, uids=Uids())
    job = write_job(
        tmp_path, source=source_of(source), sink={"type": "mirror", "url": target.url, "table": "copy_{table}"}
    )
    run_epochs(job)
    source.execute(
        "UPDATE orders SET version = version + 1", "TRUNCATE TABLE orders",
        "INSERT INTO orders (uid, version) VALUES (1001, 1), (1002, 1)", "DELETE FROM orders WHERE uid = 1002",
    )  # fmt: skip
    run_epochs(job)
    assert target.query("SELECT uid FROM copy_orders") == [(1001,)]
    assert target.query("SELECT count(*) FROM copy_customers") == [(50,)]


@pytest.mark.parametrize("interleave", [True, False])
def test_one_while_the_rows_are_copied_is_in_all_splits_or_they_are_read_again(
    any_source_database: Database, tmp_path: Path, interleave: bool
) -> None:
    """If the log is read in between, the splits that are left contain the TRUNCATE, and the others get it from the log."""
    database, uids, notes = any_source_database, Uids(), Notes()
    create_tables(database, rows=60, uids=uids)
    job = write_job(
        tmp_path,
        source=source_of(database),
        snapshot={"split_rows": 20, "parallelism": 1, "interleave": interleave},
        sink={"type": "files", "path": str(tmp_path / "out"), "on_schema_change": "evolve"},
    )
    run_epochs(job, at_most=1)  # the end of the first table's key
    database.execute("TRUNCATE TABLE customers")
    run_epochs(job, notes=notes)
    left = [facts["text"] for event, facts in notes.found if event == "left"]
    assert ["some of its splits were read before it, some after" in text for text in left] == [True] * (not interleave)
    database.execute("INSERT INTO customers (code, uid, version) VALUES ('new', 100001, 1)")
    run_epochs(job)
    assert_copied(tmp_path / "out", database)


def test_one_before_the_first_split_is_in_all_of_them(any_source_database: Database, tmp_path: Path) -> None:
    database, uids = any_source_database, Uids()
    create_tables(database, rows=60, uids=uids)
    job = write_job(
        tmp_path,
        source=source_of(database),
        snapshot={"split_rows": 20, "parallelism": 1},
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    run_epochs(job, at_most=1)
    database.execute(
        "TRUNCATE TABLE order_lines",
        *[
            f"INSERT INTO order_lines (order_id, line_no, uid, version) VALUES ({i}, 1, {900 + i}, 1)"
            for i in range(60)
        ],
    )
    run_epochs(job)
    assert_copied(tmp_path / "out", database)
    assert "truncate" not in read_history(tmp_path / "out", database.schema, "order_lines")["_change_type"].to_pylist()


def test_rows_of_splits_that_are_read_after_it_come_after_it(any_source_database: Database, tmp_path: Path) -> None:
    """Readers of files ignore what comes before the last `truncate`, by `_commit_version` and `_seq` (docs/sinks.md)."""
    database = any_source_database
    create_tables(database, rows=60, uids=Uids())
    job = write_job(
        tmp_path,
        source=source_of(database),
        snapshot={"split_rows": 10, "parallelism": 1},
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    run_epochs(job, at_most=1)  # the end of the key of the first table
    new = ", ".join(f"('k{i:03d}', {900 + i}, 1)" for i in range(60))
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("TRUNCATE TABLE customers")  # commits in MySQL and MariaDB
        cursor.execute(f"INSERT INTO customers (code, uid, version) VALUES {new}")
        cursor.execute("COMMIT")
    run_epochs(job)
    run_epochs(job)
    history = read_history(tmp_path / "out", database.schema, "customers")
    assert history["_change_type"].to_pylist().count("truncate") == 1
    assert_copied(tmp_path / "out", database)
