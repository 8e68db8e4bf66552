"""Delta tables that a job finds, or no longer finds, at their location: a folder, or a name in a catalog."""

import uuid
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.change_parts import (
    DELETE,
    INSERT,
    ORDERS,
    SCHEMAS,
    TRUNCATE,
    UPDATE,
    column,
    log_part,
    snapshot_part,
)
from tests.support.delta import commits_of, rows_of_delta, transactions_of, write_epochs
from tidemark.conf.sink import DeltaSink as DeltaSettings
from tidemark.conf.tables import RenameRule, TableName, parse_table_template
from tidemark.sinks.delta.locations import CatalogLake, FolderLake, lake_of
from tidemark.sinks.delta.settings import SESSION_CATALOG
from tidemark.sinks.delta.sink import DeltaSink
from tidemark.sinks.sink import JobIdentity
from tidemark.state.checkpoint.store import LocalStore
from tidemark.state.errors import SinkError
from tidemark.state.table import TableId, TableSchema

pytestmark = pytest.mark.integration

JOB = JobIdentity("7b7b7b7b-0000-4000-8000-000000000002", "lake")
CHANGES = log_part(1, (ORDERS, [(INSERT, (1, "Ada", Decimal("1.50"), 0, None))]))


@pytest.fixture
def by_name(tmp_path: Path, delta_session: SparkSession) -> DeltaSink:
    """A sink that writes into a schema of its own."""
    checkpoint = LocalStore(str(tmp_path / "checkpoint"))
    return DeltaSink(named(f"places_{uuid.uuid4().hex}.{{table}}"), "mirror", {}, checkpoint, lambda: delta_session)


def named(template: str, catalog: str = SESSION_CATALOG) -> CatalogLake:
    return CatalogLake(catalog, parse_table_template(template))


def place(sink: DeltaSink) -> str:
    return sink.lake.location_of(ORDERS.table).text


def problems(sink: DeltaSink, *schemas: TableSchema) -> list[str]:
    return [finding.text for finding in sink.check(schemas or (ORDERS,), JOB) if finding.is_problem]


@pytest.mark.every_server
@pytest.mark.pitfall(74)
def test_every_kind_of_commit_by_name_is_made_once(by_name: DeltaSink, delta_session: SparkSession) -> None:
    """Also holds where the job's Spark would replace only the partitions that have rows."""
    columns = (
        column("the id", "bigint", "int64", key=True),
        column("b, (c)", "varchar(9)", "string"),
    )
    odd = TableSchema(TableId("SELECT", "1From"), 1, columns, ("the id",))
    sink = replace(by_name, partition_by={TableName("SELECT", "1From"): ("b, (c)",)})
    schemas = {(odd.table, 1): odd}
    sink.prepare(JOB, [odd])
    epochs = [
        snapshot_part(1, 1, odd, [(n, f"p/{n % 2}") for n in range(4)]),
        log_part(2, (odd, [(UPDATE, (1, None)), (DELETE, (2, "p/0"))])),
        log_part(3, (odd, [(TRUNCATE, [None] * 2)]), (odd, [(INSERT, (7, "p/0"))])),
    ]
    settings = delta_session.sparkContext._jsc.sc().conf()  # type: ignore[union-attr]  # those of each new session
    settings.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        for epoch in (*epochs, *epochs):
            write_epochs(sink, JOB, epoch, schemas)
    finally:
        settings.remove("spark.sql.sources.partitionOverwriteMode")
    assert rows_of_delta(sink, odd) == [(7, "p/0")]
    assert [commit["operation"] for commit in commits_of(sink, odd)] == ["CREATE TABLE", "WRITE", "MERGE", "WRITE"]
    assert transactions_of(sink, odd) == [(f"tidemark/{JOB.uuid}/{odd.table}", epoch) for epoch in (1, 2, 3)]
    assert problems(sink, odd) == []


@pytest.mark.pitfall(71)
def test_a_table_that_is_gone_or_another_one_is_not_written(by_name: DeltaSink, delta_session: SparkSession) -> None:
    """A table that was only moved is written."""
    by_name.prepare(JOB, [ORDERS])
    first, moved = place(by_name), replace(by_name, lake=named(place(by_name).split(".", 1)[1] + "_moved"))
    delta_session.sql(f"ALTER TABLE {first} RENAME TO {place(moved).removeprefix('spark_catalog.')}")
    assert problems(by_name) == [f"{first}, which this job wrote, is gone, or sink.table has changed since."]
    with pytest.raises(SinkError, match=r"the copy of shop\.orders, is gone"):
        write_epochs(by_name, JOB, CHANGES, SCHEMAS)
    moved.prepare(JOB, [ORDERS])
    write_epochs(moved, JOB, CHANGES, SCHEMAS)
    assert len(rows_of_delta(moved, ORDERS)) == 1
    delta_session.sql(f"CREATE OR REPLACE TABLE {place(moved)} USING delta AS SELECT * FROM {place(moved)} LIMIT 0")
    assert problems(moved) == [f"{place(moved)} is not the table that this job wrote, but another one."]
    with pytest.raises(SinkError, match=r"the copy of shop\.orders, was replaced"):
        write_epochs(moved, JOB, CHANGES, SCHEMAS)


def test_paths_are_those_of_spark() -> None:
    places = {"s3a://bucket/lake/": "s3a://bucket/lake", "file:///lake%20/": "/lake ", "/lake/": "/lake"}
    for path, root in places.items():
        lake = lake_of(DeltaSettings(type="delta", path=path))
        assert lake.location_of(ORDERS.table).relation == f"delta.`{root}/shop.orders`"


def test_tables_of_a_catalog_are_renamed() -> None:
    rename = [{"match": "shop_(.*)", "to": r"\1"}]
    settings = {"type": "delta", "catalog": "main", "table": "lake.{schema}_{table}", "rename": rename}
    assert lake_of(DeltaSettings.model_validate(settings)).location_of(ORDERS.table).text == "main.lake.orders"


def test_renamed_tables_of_one_name_and_of_none_are_refused(by_name: DeltaSink) -> None:
    other = replace(ORDERS, table=TableId("shop", "orders_v2"))
    for rule, problem in (
        (RenameRule("(orders).*", r"\1"), "shop.orders and shop.orders_v2 would be written into one table: names in"),
        (RenameRule("orders(_v2)?", r"\1"), "sink.rename leaves nothing of the name of shop.orders."),
    ):
        lake = by_name.lake
        assert isinstance(lake, CatalogLake)
        renamed = replace(by_name, lake=replace(lake, template=replace(lake.template, renames=(rule,))))
        assert any(text.startswith(problem) for text in problems(renamed, ORDERS, other))


def test_folders_are_renamed_and_two_tables_of_one_are_refused(tmp_path: Path, delta_session: SparkSession) -> None:
    rename = [{"match": "(.*?)(_v[0-9]+)?", "to": r"\1"}]
    settings = DeltaSettings.model_validate(
        {"type": "delta", "path": str(tmp_path), "table": "{table}", "rename": rename}
    )
    sink = DeltaSink.of(settings, LocalStore(str(tmp_path / "checkpoint")), lambda: delta_session)
    assert place(sink) == f"{tmp_path}/orders"
    other = replace(ORDERS, table=TableId("shop", "orders_v2"))
    assert problems(sink, ORDERS, other) == ["shop.orders and shop.orders_v2 would be written into one folder."]
    sink.prepare(JOB, [ORDERS])
    write_epochs(sink, JOB, CHANGES, SCHEMAS)
    assert len(rows_of_delta(sink, ORDERS)) == 1


def test_the_copy_of_a_table_that_has_left_is_no_other_tables(by_name: DeltaSink) -> None:
    """Its rows would stay among those of the other table."""
    lake, other = by_name.lake, replace(ORDERS, table=TableId("shop", "orders_v2"))
    assert isinstance(lake, CatalogLake)
    rule = RenameRule("(orders).*", r"\1")
    renamed = replace(by_name, lake=replace(lake, template=replace(lake.template, renames=(rule,))))
    renamed.prepare(JOB, [ORDERS])
    assert problems(renamed, other) == [f"{place(renamed)} is the copy of another table of this job."]
    renamed.prepare(JOB, [ORDERS])


@pytest.mark.pitfall(71)
def test_a_job_does_not_go_on_in_another_folder(by_name: DeltaSink, tmp_path: Path) -> None:
    first, second = (replace(by_name, lake=FolderLake(f"file://{tmp_path}/{name} %41")) for name in "ab")
    first.prepare(JOB, [ORDERS])
    write_epochs(first, JOB, CHANGES, SCHEMAS)
    assert (tmp_path / "a %41" / "shop.orders" / "_delta_log").is_dir()
    assert problems(second) == [f"{place(second)}, which this job wrote, is gone, or sink.path has changed since."]
    (tmp_path / "a %41").rename(tmp_path / "b %41")
    second.prepare(JOB, [ORDERS])
    assert len(rows_of_delta(second, ORDERS)) == 1


def test_what_is_no_table_of_ours_is_refused(by_name: DeltaSink, delta_session: SparkSession, tmp_path: Path) -> None:
    schema = place(by_name).rpartition(".")[0]
    assert problems(by_name) == []
    delta_session.sql(f"CREATE SCHEMA {schema}")
    delta_session.sql(f"CREATE VIEW {place(by_name)} AS SELECT 1 AS id")
    assert problems(by_name) == [f"{place(by_name)} is a view."]
    delta_session.sql(f"DROP VIEW {place(by_name)}")
    delta_session.sql(f"CREATE TABLE {place(by_name)} (id BIGINT) USING parquet")
    assert problems(by_name) == [f"{place(by_name)} is a table of the format parquet."]
    folders = replace(by_name, lake=FolderLake(str(tmp_path)))
    (tmp_path / "shop.orders").mkdir()
    assert problems(folders) == []
    (tmp_path / "shop.orders" / "notes.txt").touch()
    assert problems(folders) == [f"{tmp_path}/shop.orders has files, but is not a Delta table."]


@pytest.mark.every_server
def test_an_empty_table_is_taken_once(by_name: DeltaSink, delta_session: SparkSession) -> None:
    """The job may have ended between claiming the table and recording its id."""
    delta_session.sql(f"CREATE SCHEMA {place(by_name).rpartition('.')[0]}")
    columns = "id BIGINT, customer STRING, amount DECIMAL(12,2), placed_at TIMESTAMP_NTZ, note STRING, loaded STRING"
    delta_session.sql(f"CREATE TABLE {place(by_name)} ({columns}) USING delta")
    by_name.prepare(JOB, [ORDERS])
    (note,) = by_name.checkpoint.list("copies")
    by_name.checkpoint.delete(note)
    by_name.prepare(JOB, [ORDERS])
    assert by_name.checkpoint.list("copies") == [note]
    write_epochs(by_name, JOB, CHANGES, SCHEMAS)
    assert len(rows_of_delta(by_name, ORDERS)) == 1
    with pytest.raises(SinkError, match="belongs to job lake"):
        by_name.prepare(JobIdentity("another", "other"), [ORDERS])


def test_names_and_catalogs_that_can_not_be_are_refused(by_name: DeltaSink, delta_session: SparkSession) -> None:
    dashed, upper = (replace(ORDERS, table=TableId("shop", name)) for name in ("order-lines", "Orders"))
    text = "shop.Orders and shop.orders would be written into one table: names in catalogs are not case-sensitive."
    assert problems(by_name, ORDERS, upper) == [text]
    text = "spark_catalog allows only letters, digits and _ in names, not 'order-lines'."
    assert problems(by_name, dashed) == [text]
    with pytest.raises(SinkError, match="The catalog `nope` not found"):
        problems(replace(by_name, lake=named("{schema}.{table}", "nope")))
    forgetful = delta_session.newSession()
    forgetful._jsparkSession.sessionState().conf().setConfString("spark.sql.catalogImplementation", "in-memory")
    text = "spark_catalog is in memory here: its tables would be lost when Spark ends."
    assert problems(replace(by_name, session=lambda: forgetful)) == [text]
