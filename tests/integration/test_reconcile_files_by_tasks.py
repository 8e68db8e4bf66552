"""`tidemark reconcile` of large copies in files: tasks hash both sides, and fold the files, by hashes of keys."""

from pathlib import Path

import pytest

from tests.integration.test_reconcile_files import folder_of, wrong_orders
from tests.support.epochs import run_epochs
from tests.support.reconciling import (
    compared_by_tasks,
    edit_files,
    files_job_of,
    found_keys,
    row_counts,
    source,  # noqa: F401  # a fixture
)
from tests.support.servers import Database
from tests.support.workload import Uids, create_tables
from tidemark.jobs.reconcile import table_comparison

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _all_by_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_comparison, "RANGES_WITHOUT_SPARK", 1)


@pytest.mark.parametrize(
    ("source", "file_format"),
    [("mysql_database", "jsonl"), ("postgres18_database", "parquet"), ("mariadb_database", "parquet")],
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
    equal = compared_by_tasks(job)
    assert {name: (result.rows, result.differences, result.behind) for name, result in equal.items()} == {
        name: (count, 0, 0) for name, count in row_counts(source).items()
    }
    codes = [row[0] for row in source.query("SELECT code FROM customers ORDER BY uid LIMIT 2")]
    edit_files(folder_of(source, tmp_path, "orders"), wrong_orders)
    edit_files(
        folder_of(source, tmp_path, "customers"),
        lambda rows: [
            row | {"version": 0} if row["code"] == codes[0] else row for row in rows if row["code"] != codes[1]
        ],
    )
    results = compared_by_tasks(job)
    assert found_keys(results["orders"]) == {
        "different": {("5",), ("9",)},
        "missing": {("7",)},
        "surplus": {("11",), ("-9",), ("100000",)},
    }
    assert found_keys(results["customers"]) == {"different": {(codes[0],)}, "missing": {(codes[1],)}}
    assert results["order_lines"].differences == 0
