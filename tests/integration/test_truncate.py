"""TRUNCATE in the source, while the job follows its log or copies its rows."""

from pathlib import Path

import pytest

from tests.support.epochs import run_epochs
from tests.support.history import assert_copied, read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tests.support.workload import KEYS, Uids, Writers, create_tables
from tidemark.state.errors import UnknownLogEventError

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(41)]


def test_a_truncation_among_changes_is_followed_in_order(any_source_database: Database, tmp_path: Path) -> None:
    database, uids = any_source_database, Uids()
    create_tables(database, rows=100, uids=uids)
    job = write_job(tmp_path, source=source_of(database), sink={"type": "files", "path": str(tmp_path / "out")})
    run_epochs(job)
    with Writers(database, uids, count=2, seed=3, pause_seconds=0.005):
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


def test_one_while_the_rows_are_copied_is_in_all_splits_or_stops_the_job(
    any_source_database: Database, tmp_path: Path
) -> None:
    database, uids = any_source_database, Uids()
    create_tables(database, rows=60, uids=uids)
    job = write_job(
        tmp_path,
        source=source_of(database),
        snapshot={"split_rows": 20, "parallelism": 1},
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    run_epochs(job, at_most=1)  # the end of the first table's key
    database.execute("TRUNCATE TABLE customers")
    with pytest.raises(UnknownLogEventError, match=r"customers was truncated .* some of its splits were read before"):
        run_epochs(job)


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
