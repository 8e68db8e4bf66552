"""`tidemark reconcile` finds every wrong row of a Delta table, of both styles, and takes no correct one for wrong."""

from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.integration.test_types_into_sinks import insert_rows
from tests.support.all_types import create_all_types
from tests.support.epochs import run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.postgres_values import EDGE_VALUES, MAKE_TYPES
from tests.support.reconciling import compared, following, found_keys, source  # noqa: F401
from tests.support.servers import Database
from tests.support.workload import Uids, Writers, create_tables
from tidemark.jobs.spark import session
from tidemark.jobs.spark.sessions import SparkSessions

pytestmark = pytest.mark.integration

ODD_NAME = "the note, if any"
NOBODY = "INSERT INTO {0} BY NAME SELECT * EXCEPT (id), explode(array(-9, 100000%s)) AS id FROM {0} WHERE id = 20"
DAMAGE = {
    "mirror": [
        "UPDATE {0} SET note = CASE WHEN id = 9 THEN 'note 9' END WHERE id IN (5, 9)",
        "DELETE FROM {0} WHERE id = 7",
        NOBODY % ", 11",
        "INSERT INTO {0} SELECT * FROM {0} WHERE id = 15",
    ],
    "changelog": [
        "UPDATE {0} SET note = NULL WHERE id = 5",
        "DELETE FROM {0} WHERE id = 7 OR id = 9 AND _change_type = 'update_postimage' OR id = 11 AND _change_type = 'delete'",
        NOBODY % "",
        "INSERT INTO {0} SELECT * FROM {0} WHERE id = 15",
    ],
}
"""A changed cell, a stale row, a missing row, a row whose deletion is lacking, rows of nobody, and a row
that is there twice, of orders."""


@pytest.fixture(autouse=True)
def one_session(delta_session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs and comparisons use the session of the tests."""
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)
    monkeypatch.setattr(session, "open_session", lambda _: delta_session)


def job_of(origin: Database, folder: Path, style: str, **sink: Any) -> Path:
    return write_job(
        folder,
        source=source_of(origin),
        checkpoint=str(folder / "checkpoint"),
        snapshot={"split_rows": 40, "parallelism": 16},
        sink={"type": "delta", "path": str(folder / "copy"), "style": style} | sink,
    )


def copy_of(origin: Database, folder: Path, table: str) -> str:
    return f"delta.`{folder / 'copy' / f'{origin.schema}.{table}'}`"


def insert_types(origin: Database, first_id: int) -> None:
    if origin.kind == "mysql":
        insert_rows(origin, first_id, "files")
    else:
        for i, values in enumerate(zip_longest(*EDGE_VALUES.values(), fillvalue="NULL")):
            origin.execute(f"INSERT INTO all_types VALUES ({first_id + i}, {', '.join(values)})")


def create_types(origin: Database) -> None:
    if origin.kind == "mysql":
        create_all_types(origin.connect())
    else:
        declared = ", ".join(f"c{i} {kind}" for i, kind in enumerate(EDGE_VALUES))
        origin.execute(*MAKE_TYPES, f"CREATE TABLE all_types (id int PRIMARY KEY, {declared})")
    insert_types(origin, 0)


def null_one_of_each(spark: SparkSession, copy: str) -> set[tuple[str, ...]]:
    """Sets one value of each column to NULL. Returns the keys."""
    rows = spark.table(copy)
    names = [name for name in rows.columns if name != "id" and not name.startswith("_")]
    held = rows.selectExpr("id", *(f"`{name}` IS NOT NULL AS `{name}`" for name in names)).orderBy("id").collect()
    changed, keys = [], set()
    for number, name in enumerate(names):
        ids = [row["id"] for row in held if row[name]]
        if ids:
            key = ids[number % len(ids)]
            changed.append(f"`{name}` = CASE WHEN id = {key} THEN NULL ELSE `{name}` END")
            keys.add((str(key),))
    assert len(changed) > 30
    spark.sql(f"UPDATE {copy} SET {', '.join(changed)}")
    return keys


@pytest.mark.parametrize(
    ("source", "style"), [("mysql_database", "mirror"), ("postgres18_database", "changelog")], indirect=["source"]
)
def test_every_wrong_row_is_found_and_no_other(
    source: Database,  # noqa: F811
    style: str,
    delta_session: SparkSession,
    tmp_path: Path,
) -> None:
    """One table is partitioned by a column whose name needs column mapping, and has empty texts there."""
    create_types(source)
    odd = f"`{ODD_NAME}`" if source.kind == "mysql" else f'"{ODD_NAME}"'
    orders = ", ".join(f"({n}, 'note {n}', '{n % 3 or ''}')" for n in range(60))
    source.execute(
        f"CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(20), {odd} VARCHAR(20))",
        f"INSERT INTO orders VALUES {orders}",
        "CREATE TABLE customers (code VARCHAR(20) PRIMARY KEY, note VARCHAR(20))",
        "INSERT INTO customers VALUES ('ada', ''), ('bob', ''), ('Ángel', ''), ('eve', '')",
    )
    job = job_of(source, tmp_path, style, partition_by={f"{source.schema}.orders": [ODD_NAME]})
    run_epochs(job)
    source.execute(
        "UPDATE orders SET note = 'changed' WHERE id IN (9, 10)",
        "DELETE FROM orders WHERE id IN (11, 12)",
        "UPDATE orders SET id = id + 1000 WHERE id = 13",
        f"UPDATE orders SET {odd} = '' WHERE id = 14",
        "UPDATE customers SET code = upper(code) WHERE code IN ('ada', 'eve')",
    )
    insert_types(source, 1000)
    run_epochs(job)
    orders, customers = (copy_of(source, tmp_path, table) for table in ("orders", "customers"))
    for statement in DAMAGE[style]:
        delta_session.sql(statement.format(orders))
    delta_session.sql(
        f"UPDATE {customers} SET note = NULL, code = CASE WHEN code = 'bob' THEN 'nobody' ELSE code END "
        "WHERE code IN ('ADA', 'bob')"
    )
    changed = null_one_of_each(delta_session, copy_of(source, tmp_path, "all_types"))
    results = compared(job)
    twice = {("15",)} if style == "mirror" else set()  # in a changelog it is one change
    assert found_keys(results["orders"]) == {
        "different": {("5",), ("9",)} | twice,
        "missing": {("7",)},
        "surplus": {("11",), ("-9",), ("100000",)},
    }
    assert found_keys(results["customers"]) == {
        "different": {("ADA",)}, "missing": {("bob",)}, "surplus": {("nobody",)},
    }  # fmt: skip
    assert found_keys(results["all_types"]) == {"different": changed}
    assert {name: result.rows for name, result in results.items()} == {
        table: source.query(f"SELECT count(*) FROM {table}")[0][0] for table in ("orders", "customers", "all_types")
    }
    assert all(result.repair is None for result in results.values())


@pytest.mark.parametrize(
    ("source", "style"), [("mysql_database", "mirror"), ("postgres18_database", "changelog")], indirect=["source"]
)
def test_no_false_alarm_while_both_move(
    source: Database,  # noqa: F811
    style: str,
    delta_session: SparkSession,
    tmp_path: Path,
) -> None:
    """The damaged row is one that no writer changes."""
    uids = Uids()
    create_tables(source, rows=40, uids=uids)
    source.execute("INSERT INTO orders (id, uid, version) VALUES (-1000000, 0, 1)")
    job = job_of(source, tmp_path, style)
    run_epochs(job)
    with following(job), Writers(source, uids, count=2, seed=4, pause_seconds=0.02) as writers:
        damaged = "" if style == "mirror" else " AND _change_type = 'insert'"
        delta_session.newSession().sql(
            f"UPDATE {copy_of(source, tmp_path, 'orders')} SET version = 7 WHERE id = -1000000{damaged}"
        )
        results = compared(job, patience_seconds=60)
    assert writers.transactions > 100
    assert {name: (found_keys(result), result.behind) for name, result in results.items()} == {
        "orders": ({"different": {("-1000000",)}}, 0),
        "customers": ({}, 0),
        "order_lines": ({}, 0),
    }
