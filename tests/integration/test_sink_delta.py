"""The Delta sink beyond the contract of all sinks."""

import json
import shutil
import time
import uuid
import zipfile
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import pytest
from pyspark.sql import SparkSession

from devtools.checkpoint_files import LOG_PLAN
from devtools.job_process import start_tidemark
from tests.support.change_parts import (
    DELETE,
    INSERT,
    ITEMS,
    NOTES,
    ORDERS,
    SCHEMAS,
    TRUNCATE,
    UNCHANGED,
    UPDATE,
    column,
    log_part,
    snapshot_part,
)
from tests.support.delta import commits_of, jars_of, published, read_delta, rows_of_delta, transactions_of, write_epochs
from tests.support.jobs import SPARK, run_to_end, source_of, write_job
from tests.support.servers import Database
from tidemark.conf.tables import TableName, parse_table_template
from tidemark.sinks.delta import buckets, locations
from tidemark.sinks.delta.epoch import EpochWriter
from tidemark.sinks.delta.locations import CatalogLake, FolderLake
from tidemark.sinks.delta.settings import delta_package, delta_settings
from tidemark.sinks.delta.side_by_side import SideSessions
from tidemark.sinks.delta.sink import DeltaSink
from tidemark.sinks.delta.tables import Style
from tidemark.sinks.sink import JobIdentity
from tidemark.state.checkpoint.codec import PLAN
from tidemark.state.checkpoint.layout import JOB_FILE, plan_file
from tidemark.state.checkpoint.store import LocalStore
from tidemark.state.errors import CheckpointError, CopySetBackError, SinkError
from tidemark.state.remedies import ANOTHER_KEY
from tidemark.state.table import TableId, TableSchema

pytestmark = pytest.mark.integration

JOB = JobIdentity("7b7b7b7b-0000-4000-8000-000000000001", "lake")
NEW_YEAR = 1_704_067_200_000_000


@pytest.fixture
def delta(tmp_path: Path, delta_session: SparkSession) -> Callable[..., DeltaSink]:
    def made(style: Style = "mirror", **partition_by: tuple[str, ...]) -> DeltaSink:
        named = {TableName("shop", table): columns for table, columns in partition_by.items()}
        checkpoint = LocalStore(str(tmp_path / "checkpoint"))
        return DeltaSink(FolderLake(f"{tmp_path}/lake"), style, named, checkpoint, lambda: delta_session)

    return made


@pytest.fixture
def in_catalog(delta: Callable[..., DeltaSink]) -> Callable[..., DeltaSink]:
    """A sink like `delta`, with tables in a catalog."""
    schema = f"delta_{uuid.uuid4().hex}"

    def made(style: Style = "mirror", table: str = "{table}") -> DeltaSink:
        return replace(delta(style), lake=CatalogLake("spark_catalog", parse_table_template(f"{schema}.{table}")))

    return made


def folder_of(sink: DeltaSink, schema: TableSchema) -> Path:
    return Path(sink.lake.location_of(schema.table).text)


def order(number: int, customer: str = "Ada") -> tuple[Any, ...]:
    return number, customer, Decimal("1.50"), NEW_YEAR, None


def note(number: int, stars: int, body: Any = UNCHANGED, size: Any = UNCHANGED) -> tuple[Any, ...]:
    return number, "en", stars, body, b"scan", size


def gone(number: int) -> tuple[Any, ...]:
    return DELETE, (number, "en", None, None, None, None)


def moved(old: int, new: int) -> list[Any]:
    return [gone(old), (INSERT, note(new, 9))]


@pytest.mark.pitfall(61)
def test_values_left_out_stay_and_rows_that_are_missing_concern_their_table(delta: Callable[..., DeltaSink]) -> None:
    sink = delta()
    sink.prepare(JOB, [NOTES])
    size = [Decimal(f"{n}.00") for n in range(10)]
    rows = [note(n, n, f"body {n}", size[n]) for n in range(1, 5)]
    changes = [*moved(1, 7), *moved(2, 1), *moved(7, 2), (UPDATE, note(3, 8, body=None)), (UPDATE, note(4, 8)), gone(4)]
    write_epochs(sink, JOB, [*snapshot_part(1, 1, NOTES, rows), *log_part(2, (NOTES, changes))], SCHEMAS)
    expected = [note(1, 9, "body 2", size[2]), note(2, 9, "body 1", size[1]), note(3, 8, None, size[3])]
    assert sorted(rows_of_delta(sink, NOTES)) == expected
    with pytest.raises(
        SinkError, match=r"public.notes: The log leaves values out of changes to rows that .* does not have"
    ) as caught:
        write_epochs(sink, JOB, log_part(3, (NOTES, [(UPDATE, note(1, 1)), (UPDATE, note(4, 1))])), SCHEMAS)
    assert caught.value.table == NOTES.table
    assert sorted(rows_of_delta(sink, NOTES)) == expected


@pytest.mark.pitfall(74)
def test_each_epoch_is_one_commit_and_a_repeated_one_is_none(delta: Callable[..., DeltaSink]) -> None:
    sink = delta()
    sink.prepare(JOB, [ORDERS])
    first = snapshot_part(1, 1, ORDERS, [order(n) for n in range(100)]) + snapshot_part(1, 2, ORDERS, [order(100)])
    second = log_part(2, (ORDERS, [(UPDATE, order(1, "new")), (DELETE, order(2))]), (ORDERS, [(INSERT, order(200))]))
    before = commits_of(sink, ORDERS)
    for epoch in (first, second, first, second):
        write_epochs(sink, JOB, epoch, SCHEMAS)
    commits = commits_of(sink, ORDERS)[len(before) :]
    assert [commit["operation"] for commit in commits] == ["WRITE", "MERGE"]
    assert commits[1]["operationMetrics"]["numTargetDeletionVectorsAdded"] != "0"
    assert commits[1]["operationMetrics"]["numTargetRowsCopied"] == "0"
    assert len(rows_of_delta(sink, ORDERS)) == 101


@pytest.mark.every_server
@pytest.mark.pitfall(74)
def test_tables_written_side_by_side_keep_their_own_identifiers(delta: Callable[..., DeltaSink]) -> None:
    tables = [replace(ORDERS, table=TableId("shop", f"orders{n}")) for n in range(2)]
    schemas = {(schema.table, 1): schema for schema in tables}
    sink = delta()
    sink.prepare(JOB, tables)
    for epoch in (1, 2, 1, 2):
        changes = ((schema, [(INSERT, order(epoch, schema.table.name))]) for schema in tables)
        write_epochs(sink, JOB, log_part(epoch, *changes), schemas, staged=False)
    for schema in tables:
        written = [(f"tidemark/{JOB.uuid}/{schema.table}", epoch) for epoch in (1, 2)]
        assert transactions_of(sink, schema) == written
        assert sorted(rows_of_delta(sink, schema)) == [order(epoch, schema.table.name) for epoch in (1, 2)]
    away = folder_of(sink, tables[1])
    away.rename(away.with_name("away"))
    third = log_part(3, *((schema, [(DELETE, order(1))]) for schema in tables))
    with pytest.raises(SinkError, match=r"the copy of shop\.orders1, is gone"):
        write_epochs(sink, JOB, third, schemas, staged=False)
    away.with_name("away").rename(away)
    write_epochs(sink, JOB, third, schemas, staged=False)
    for schema in tables:
        assert [epoch for _, epoch in transactions_of(sink, schema)] == [1, 2, 3]
        assert len(rows_of_delta(sink, schema)) == 1


def test_tables_of_an_epoch_become_visible_one_after_the_other(
    delta: Callable[..., DeltaSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [replace(ORDERS, table=TableId("shop", f"orders{n}")) for n in range(2)]
    sink, seen, commit = delta(), [], EpochWriter._commit
    sink.prepare(JOB, tables)

    def look(writer: EpochWriter, rows: Any, schema: TableSchema, *rest: Any) -> None:
        if schema == tables[1]:
            while not transactions_of(sink, tables[0]):
                time.sleep(0.1)
            seen.append([len(rows_of_delta(sink, table)) for table in tables])
        commit(writer, rows, schema, *rest)

    monkeypatch.setattr(EpochWriter, "_commit", look)
    parts = log_part(1, *((schema, [(INSERT, order(1))]) for schema in tables))
    write_epochs(sink, JOB, parts, {(schema.table, 1): schema for schema in tables})
    assert seen == [[1, 0]]
    assert [len(rows_of_delta(sink, table)) for table in tables] == [1, 1]


@pytest.mark.every_server
def test_a_table_whose_files_come_from_a_backup_is_not_noticed(
    delta: Callable[..., DeltaSink], delta_session: SparkSession, tmp_path: Path
) -> None:
    """If the checkpoint has no report any more of the epoch that it lacks."""
    sink = delta()
    sink.prepare(JOB, [ORDERS])
    for name in (JOB_FILE, plan_file(1), plan_file(2)):
        sink.checkpoint.create(name, b"written by the job")
    write_epochs(sink, JOB, log_part(1, (ORDERS, [(INSERT, order(1))])), SCHEMAS)
    shutil.copytree(folder_of(sink, ORDERS), tmp_path / "backup")
    write_epochs(sink, JOB, log_part(2, (ORDERS, [(INSERT, order(2))])), SCHEMAS)
    shutil.rmtree(folder_of(sink, ORDERS))
    shutil.copytree(tmp_path / "backup", folder_of(sink, ORDERS))
    jvm: Any = delta_session._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    sink.prepare(JOB, [ORDERS], [ORDERS.table])
    write_epochs(sink, JOB, log_part(3, (ORDERS, [(INSERT, order(3))])), SCHEMAS)
    assert sorted(rows_of_delta(sink, ORDERS)) == [order(1), order(3)]


def test_changelog_keeps_every_change(delta: Callable[..., DeltaSink]) -> None:
    sink = delta("changelog")
    sink.prepare(JOB, [NOTES])
    first = snapshot_part(1, 1, NOTES, [note(1, 1, "body", None)])
    second = log_part(2, (NOTES, [(UPDATE, note(1, 2)), gone(1)]))
    for epoch in (first, second, second):
        write_epochs(sink, JOB, epoch, SCHEMAS, staged=False)
    found = read_delta(sink, NOTES).sort_by([("_commit_version", "ascending"), ("_seq", "ascending")])
    assert found.column("_change_type").to_pylist() == ["insert", "update_postimage", "delete"]
    assert found.column("_unchanged").to_pylist() == [None, ["body", "size"], None]
    assert found.column("_is_snapshot").to_pylist() == [True, False, False]
    assert found.column("_txn_id").to_pylist() == [None, "gtid:2000", "gtid:2000"]


@pytest.mark.every_server
def test_more_changes_than_a_worker_takes_are_spread(
    delta: Callable[..., DeltaSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "WORKER_BYTES", 4000)
    sink = delta()
    sink.prepare(JOB, [ORDERS])
    transactions = [[(INSERT, order(n)) for n in range(60)], [(UPDATE, order(n, f"c{n}")) for n in range(60)]]
    transactions.append([(DELETE, order(n)) for n in range(30)])
    write_epochs(sink, JOB, log_part(1, *((ORDERS, changes) for changes in transactions)), SCHEMAS, staged=False)
    assert sorted(row[:2] for row in rows_of_delta(sink, ORDERS)) == [(n, f"c{n}") for n in range(30, 60)]
    emptied = [[(TRUNCATE, [None] * 5)], *transactions]
    epoch = log_part(2, *((ORDERS, changes) for changes in [[(DELETE, order(40))], *emptied, *emptied]))
    for _ in range(2):
        write_epochs(sink, JOB, epoch, SCHEMAS, staged=False)
        assert sorted(row[:2] for row in rows_of_delta(sink, ORDERS)) == [(n, f"c{n}") for n in range(30, 60)]


def test_partitions_and_names_that_need_quoting(delta: Callable[..., DeltaSink], delta_session: SparkSession) -> None:
    columns = (
        column("the id", "bigint", "int64", key=True),
        column("b, (c)", "varchar(9)", "string"),
        *ORDERS.columns[2:3],
    )
    odd = replace(ORDERS, table=TableId("shop", "1.5 % o'f"), columns=columns, key=("the id",))
    sink = replace(delta(), partition_by={TableName("shop", odd.table.name): ("b, (c)",)})
    schemas = {(odd.table, 1): odd}
    sink.prepare(JOB, [odd])
    rows = [(n, f"p/{n % 2}", Decimal(1)) for n in range(4)]
    write_epochs(sink, JOB, snapshot_part(1, 1, odd, rows), schemas)
    write_epochs(sink, JOB, log_part(2, (odd, [(UPDATE, (1, None, None)), (DELETE, rows[2])])), schemas)
    assert sorted(rows_of_delta(sink, odd)) == [rows[0], (1, None, None), rows[3]]
    detail = delta_session.sql(f"DESCRIBE DETAIL {sink.lake.location_of(odd.table).relation}").collect()[0]
    assert detail["partitionColumns"] == ["b, (c)"]
    assert not [finding for finding in sink.check([odd], JOB) if finding.is_problem]


def test_an_empty_text_in_a_key_by_which_the_table_is_partitioned(delta: Callable[..., DeltaSink]) -> None:
    """Delta stores it as NULL, which equals nothing."""
    sink = delta(items=("sku",))
    sink.prepare(JOB, [ITEMS])
    rows = [(1, "", 1), (2, "", 2), (3, "", 3), (1, "a", 4)]
    write_epochs(sink, JOB, snapshot_part(1, 1, ITEMS, rows), SCHEMAS)
    changes = [(UPDATE, (1, "", 5)), (DELETE, rows[1]), (DELETE, rows[3]), (INSERT, (4, "", 6))]
    write_epochs(sink, JOB, log_part(2, (ITEMS, changes)), SCHEMAS)
    assert sorted(rows_of_delta(sink, ITEMS)) == [(1, None, 5), (3, None, 3), (4, None, 6)]


def test_instants_of_a_partition_stay_apart_when_summer_ends(
    delta: Callable[..., DeltaSink], delta_session: SparkSession
) -> None:
    """Where Spark's clock is local, two of them have one local time."""
    dated = replace(ORDERS, columns=(ORDERS.columns[0], column("at", "timestamp", "timestamptz")))
    ends, hour = 1_729_987_200_000_000, 3_600_000_000  # 2024-10-27 00:00 UTC
    instants = [(n, ends + n * hour) for n in range(3)]
    context: Any = delta_session.sparkContext._jsc
    settings = context.sc().conf()  # those of each new session
    settings.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        sink = delta(orders=("at",))
        sink.prepare(JOB, [dated])
        write_epochs(sink, JOB, snapshot_part(1, 1, dated, instants[:2]), {(dated.table, 1): dated})
        changes = [(UPDATE, (0, ends + hour)), (UPDATE, (1, ends)), (INSERT, instants[2])]
        write_epochs(sink, JOB, log_part(2, (dated, changes)), {(dated.table, 1): dated})
    finally:
        settings.remove("spark.sql.session.timeZone")
    assert sorted(rows_of_delta(sink, dated)) == [(0, ends + hour), (1, ends), instants[2]]


def test_columns_that_delta_can_not_have_are_refused(delta: Callable[..., DeltaSink]) -> None:
    names = ["a.b", "_metadata", "_SOURCE_row_present_", "_target_row_present_", "_row_dropped_", "deletionVectorId"]
    odd = replace(ORDERS, columns=(ORDERS.columns[0], *(column(name, "int", "int32") for name in names)))
    needed = [f"Delta Lake needs the name of its column {name} to merge changes." for name in names[1:]]
    assert [f.text for f in delta().check([odd]) if f.is_problem] == needed
    assert [f.text for f in delta("changelog").check([odd]) if f.is_problem] == []
    setting = replace(ORDERS, columns=(*ORDERS.columns, column("${spark.app.name}", "int", "int32")))
    for style in get_args(Style):
        told = ["Spark takes a part of the name of its column ${spark.app.name} for a setting."]
        assert [f.text for f in delta(style).check([setting]) if f.is_problem] == told
    plain = replace(odd, columns=odd.columns[:2])
    assert [f.text for f in delta(orders=("a.b",)).check([plain]) if f.is_problem] == [
        "Delta Lake does not partition by a column like a.b."
    ]
    keys = replace(ORDERS, columns=ORDERS.columns[:1])
    of_all = ["Delta Lake does not partition a table by all of its columns."]
    for style, expected in (("mirror", of_all), ("changelog", [])):
        assert [f.text for f in delta(style, orders=("id",)).check([keys]) if f.is_problem] == expected


@pytest.mark.parametrize("style", ["mirror", "changelog"])
def test_names_that_are_one_for_spark_are_refused(delta: Callable[..., DeltaSink], style: Style) -> None:
    """It compares names character by character, in either case."""
    names = ["V", "v", "ß", "s", "ſ", "i", "ı", "İ", "\u00b5", "\u03bc", "ǰ"]
    odd = replace(ORDERS, columns=tuple(column(name, "int", "int32", key=name == "v") for name in names), key=("v",))
    found = [
        (f.text.removeprefix("Delta Lake takes the names of the columns "), f.remedy) for f in delta(style).check([odd])
    ]
    exclude = "Exclude it: source.columns: {{shop.orders: {{exclude: [{}]}}}}.".format
    assert found == [
        ("V and v for one.", exclude("V")),
        ("s and ſ for one.", exclude("ſ")),
        ("i and ı for one.", exclude("ı")),
        ("i and İ for one.", exclude("İ")),
        ("\u00b5 and \u03bc for one.", exclude("\u03bc")),
    ]


@pytest.mark.parametrize("style", ["mirror", "changelog"])
def test_a_name_in_the_key_that_no_copy_can_have_is_not_to_be_excluded(
    delta: Callable[..., DeltaSink], style: Style
) -> None:
    odd = replace(
        ORDERS,
        columns=(column("a`b", "int", "int32", key=True), column("_seq", "int", "int32", key=True)),
        key=("a`b", "_seq"),
    )
    assert {f.remedy for f in delta(style).check([odd])} == {ANOTHER_KEY}


def test_tables_that_do_not_fit_are_refused(delta: Callable[..., DeltaSink], delta_session: SparkSession) -> None:
    sink = delta(orders=("customer",), nothing=("x",))
    assert [str(finding.text) for finding in sink.check([ORDERS]) if finding.is_problem] == [
        "sink.partition_by names shop.nothing, which is not copied."
    ]
    sink = delta(orders=("customer",))
    place = sink.lake.location_of(ORDERS.table)
    columns = "id BIGINT NOT NULL, customer CHAR(60), amount DOUBLE, note STRING NOT NULL"
    delta_session.sql(f"CREATE TABLE {place.relation} ({columns}) USING delta")
    with pytest.raises(SinkError) as caught:
        sink.prepare(JOB, [ORDERS])
    for text in (
        "has customer as char(60), not as string.",
        "has amount as double, not as decimal(12,2).",
        "has note as NOT NULL, but it may be NULL in the source.",
        "has no column placed_at.",
        "is partitioned by nothing, not by customer.",
    ):
        assert text in str(caught.value)
    assert "has id" not in str(caught.value)
    delta_session.sql(f"INSERT INTO {place.relation} VALUES (1, 'a', 2.0, 'b')")
    with pytest.raises(SinkError, match="has rows that this job did not write"):
        sink.prepare(JOB, [ORDERS])


def test_table_that_is_gone_is_not_made_anew(delta: Callable[..., DeltaSink]) -> None:
    sink = delta()
    sink.prepare(JOB, [ORDERS])
    place = folder_of(sink, ORDERS)
    place.rename(place.with_name("away"))
    with pytest.raises(SinkError, match="which this job wrote, is gone"):
        sink.prepare(JOB, [ORDERS])
    with pytest.raises(SinkError, match=r"the copy of shop\.orders, is gone"):
        write_epochs(sink, JOB, log_part(1, (ORDERS, [(INSERT, order(1))])), SCHEMAS)


@pytest.mark.pitfall(90)
def test_a_table_or_a_checkpoint_that_was_set_back_is_noticed(delta: Callable[..., DeltaSink]) -> None:
    """A checkpoint that was set back gives numbers that the tables have already, and Delta would skip these epochs."""
    sink = delta()
    sink.prepare(JOB, [ORDERS])
    sink.checkpoint.create(JOB_FILE, b"a job")
    for epoch in (1, 2):
        sink.checkpoint.create(plan_file(epoch), PLAN.encode(LOG_PLAN))
        write_epochs(sink, JOB, snapshot_part(epoch, epoch, ORDERS, [order(epoch)]), SCHEMAS)
        sink.prepare(JOB, [ORDERS])
    relation = sink.lake.location_of(ORDERS.table).relation
    sink.session().sql(f"OPTIMIZE {relation}")
    newest = sink.session().sql(f"DESCRIBE HISTORY {relation}").agg({"version": "max"}).collect()[0][0]
    sink.session().sql(f"RESTORE TABLE {relation} TO VERSION AS OF 1")
    written = {ORDERS.table}
    for act in (
        lambda: sink.prepare(JOB, [ORDERS], written),
        lambda: write_epochs(sink, JOB, log_part(3, (ORDERS, [(INSERT, order(3))])), SCHEMAS),
    ):
        with pytest.raises(
            SinkError, match="was set back by RESTORE to a version before 2, which has epoch 2"
        ) as caught:
            act()
    for version in (2, newest):  # the first as the remedy says
        assert f"RESTORE TABLE {relation} TO VERSION AS OF 2," in caught.value.remedy
        sink.session().sql(f"RESTORE TABLE {relation} TO VERSION AS OF {version}")
        sink.prepare(JOB, [ORDERS], written)
    sink.checkpoint.delete(plan_file(2))
    with pytest.raises(CheckpointError, match=r"has epoch 2, but the newest plan of the checkpoint is that of epoch 1"):
        sink.prepare(JOB, [ORDERS], written)


@pytest.mark.parametrize("made", ["delta", "in_catalog"])
def test_only_commits_of_others_cost_a_look_at_the_history(
    made: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first version of a table, and epochs, tell by themselves that no epoch is missing."""
    sink = request.getfixturevalue(made)()
    sink.prepare(JOB, [ORDERS])
    monkeypatch.setattr(locations, "_commits", lambda *_: pytest.fail("the history was asked"))
    for epoch in (1, 2):
        write_epochs(sink, JOB, log_part(epoch, (ORDERS, [(INSERT, order(epoch))])), SCHEMAS)


@pytest.mark.pitfall(90)
@pytest.mark.parametrize("asked", ["the table", "the history, for the commit", "the history, for the table"])
def test_a_restore_by_another_process_is_noticed(
    asked: str, delta: Callable[..., DeltaSink], delta_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta has the log in memory, here for the newest one for an hour. The history is asked for a commit that another writer
    writes in another order, and for a table whose class we don't know."""
    sink = delta()
    sink.prepare(JOB, [ORDERS])
    for epoch in (1, 2):
        write_epochs(sink, JOB, log_part(epoch, (ORDERS, [(INSERT, order(epoch))])), SCHEMAS)
    info = {"timestamp": time.time_ns() // 10**6, "operation": "RESTORE", "operationParameters": {"version": 1}}
    actions: list[dict[str, Any]] = [{"commitInfo": info}, {"txn": {"appId": "another", "version": 1}}]
    if asked == "the history, for the commit":
        actions.reverse()
    if asked == "the history, for the table":
        jvm: Any = delta_session._jvm
        newest_of = locations._newest_of
        monkeypatch.setattr(locations, "_newest_of", lambda session, _: newest_of(session, jvm.java.lang.Object()))
    commit = folder_of(sink, ORDERS) / "_delta_log" / f"{3:020d}.json"
    commit.write_text("\n".join(map(json.dumps, actions)))
    context: Any = delta_session.sparkContext._jsc
    settings = context.sc().conf()  # those of each new session
    settings.set("spark.databricks.delta.stalenessLimit", "1h")
    try:
        with pytest.raises(SinkError, match="was set back by RESTORE to a version before 2, which has epoch 2"):
            write_epochs(
                replace(sink, sessions=SideSessions()), JOB, log_part(3, (ORDERS, [(INSERT, order(3))])), SCHEMAS
            )
    finally:
        settings.remove("spark.databricks.delta.stalenessLimit")


@pytest.mark.every_server
@pytest.mark.pitfall(90)
def test_a_table_that_was_set_back_before_its_last_epoch_is_noticed(
    delta: Callable[..., DeltaSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RESTORE is committed between the look at the table and the epoch's commit, and the driver dies before its second look.
    The rows of an epoch that replaces all rows are whole."""
    sink, written = delta(), {ORDERS.table}
    sink.prepare(JOB, [ORDERS])
    sink.checkpoint.create(JOB_FILE, b"a job")
    sink.checkpoint.create(plan_file(9), PLAN.encode(LOG_PLAN))
    for epoch in (1, 2):
        write_epochs(sink, JOB, snapshot_part(epoch, epoch, ORDERS, [order(epoch)]), SCHEMAS)
    relation = sink.lake.location_of(ORDERS.table).relation
    commit = EpochWriter._commit

    def commit_late(*given: Any) -> None:
        sink.session().sql(f"RESTORE TABLE {relation} TO VERSION AS OF 1")
        commit(*given)

    with monkeypatch.context() as patched:
        patched.setattr(EpochWriter, "_commit", commit_late)
        patched.setattr(EpochWriter, "_look_back", lambda *_: None)
        write_epochs(sink, JOB, log_part(3, (ORDERS, [(INSERT, order(3))])), SCHEMAS)
    with pytest.raises(CopySetBackError):  # also if the epoch, which the table has, is written again, or another one
        write_epochs(sink, JOB, log_part(3, (ORDERS, [(INSERT, order(3))])), SCHEMAS)
    assert sorted(row[0] for row in rows_of_delta(sink, ORDERS)) == [1, 3]
    for commits in (100, 2):
        monkeypatch.setattr(locations, "HISTORY_COMMITS", commits)
        with pytest.raises(SinkError, match="lacks epochs although later ones were written, up to epoch 3") as caught:
            sink.prepare(JOB, [ORDERS], written)
        assert caught.value.is_cured_by_reading
        assert caught.value.table == ORDERS.table
    sink.prepare(JOB, [ORDERS])  # it comes back
    write_epochs(sink, JOB, log_part(4, (ORDERS, [(TRUNCATE, [None] * 5)]), (ORDERS, [(INSERT, order(4))])), SCHEMAS)
    for commits in (100, 2, 1):
        monkeypatch.setattr(locations, "HISTORY_COMMITS", commits)
        sink.prepare(JOB, [ORDERS], written)
    assert rows_of_delta(sink, ORDERS) == [order(4)]


@pytest.mark.every_server
@pytest.mark.pitfall(90)
def test_a_table_that_was_set_back_to_what_its_log_no_longer_has_is_noticed(delta: Callable[..., DeltaSink]) -> None:
    """A checkpoint of Delta removes commits that are older than 30 days."""
    sink = delta()
    sink.prepare(JOB, [ORDERS])
    sink.checkpoint.create(JOB_FILE, b"a job")
    sink.checkpoint.create(plan_file(9), PLAN.encode(LOG_PLAN))
    relation, log = sink.lake.location_of(ORDERS.table).relation, folder_of(sink, ORDERS) / "_delta_log"
    sink.session().sql(f"ALTER TABLE {relation} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    for epoch in (1, 2):
        write_epochs(sink, JOB, snapshot_part(epoch, epoch, ORDERS, [order(epoch)]), SCHEMAS)
    sink.session().sql(f"RESTORE TABLE {relation} TO VERSION AS OF 2")
    for file in [path for path in log.iterdir() if path.name.lstrip(".")[:20].isdigit()]:
        if int(file.name.lstrip(".").split(".")[0]) < 4:
            file.unlink()
    jvm: Any = sink.session()._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    with pytest.raises(CopySetBackError, match="its log no longer has the commits that RESTORE took out"):
        sink.prepare(JOB, [ORDERS], {ORDERS.table})
    whole = log_part(3, (ORDERS, [(TRUNCATE, [None] * 5)]), (ORDERS, [(INSERT, order(4))]))
    write_epochs(sink, JOB, whole, SCHEMAS)
    sink.prepare(JOB, [ORDERS], {ORDERS.table})


def test_jars_are_named_unless_the_user_does() -> None:
    assert delta_settings({}, submitted=False)["spark.jars.packages"] == delta_package()
    assert "spark.jars.packages" not in delta_settings({}, submitted=True)
    assert "spark.jars.packages" not in delta_settings({"spark.jars": "/x.jar"}, submitted=False)
    assert delta_settings({"spark.sql.extensions": "a.B"}, submitted=True)["spark.sql.extensions"].startswith("a.B,")


@pytest.mark.every_server
def test_spark_without_delta_is_told(mysql_database: Database, tmp_path: Path) -> None:
    mysql_database.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    jar = tmp_path / "other.jar"
    with zipfile.ZipFile(jar, "w"):
        pass
    spark = {**SPARK, "conf": {**SPARK["conf"], "spark.jars": str(jar)}}
    sink = {"type": "delta", "path": "./lake"}
    process = run_to_end(write_job(tmp_path, source=source_of(mysql_database), sink=sink, spark=spark), expect=5)
    assert "This Spark has no Delta Lake." in process.error_text()
    assert delta_package() in process.error_text().splitlines()[-1]


@pytest.mark.every_server
def test_a_small_job_in_local_mode_needs_no_python_worker_and_without_changes_no_spark(
    mysql_database: Database, delta_session: SparkSession, tmp_path: Path
) -> None:
    """The driver reads small epochs itself. Here nothing else can run Python. At last Spark can't run either: the log has
    changes, but none of the job's tables."""
    mysql_database.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    mysql_database.execute("CREATE TABLE other (id INT PRIMARY KEY)")
    sink = {"type": "delta", "path": str(tmp_path / "lake")}
    spark = {**SPARK, "conf": {**SPARK["conf"], **jars_of(delta_session)}}
    source = source_of(mysql_database, tables=[f"{mysql_database.name}.t"])
    job = write_job(tmp_path, source=source, sink=sink, spark=spark)
    for changes in ("UPDATE t SET v = 3 WHERE id = 1", "INSERT INTO other VALUES (1)"):
        process = start_tidemark(job, environment={"PYSPARK_PYTHON": str(tmp_path / "no python")})
        assert process.wait() == 0, process.error_text()
        mysql_database.execute(changes)
    for _ in range(2):
        process = start_tidemark(job, environment={"JAVA_HOME": str(tmp_path / "no java")})
        assert process.wait() == 0, process.error_text()
    rows = delta_session.read.format("delta").load(f"{tmp_path}/lake/{mysql_database.name}.t").collect()
    assert sorted(map(tuple, rows)) == [(1, 3), (2, 2)]


@pytest.mark.parametrize("way", ["by tasks", "staged", "published"])
def test_values_are_the_same_however_spark_gets_them(delta: Callable[..., DeltaSink], way: str) -> None:
    """Days and instants of the old calendar, values that only differ in their sign, and what a Parquet file could change."""
    columns = (
        column("id", "int", "int32", key=True),
        column("day", "date", "date32"),
        column("instant", "timestamp(6)", "timestamptz"),
        column("clock", "datetime(6)", "timestamp"),
        column("amount", "decimal(38,10)", "decimal(38,10)"),
        column("ratio", "double", "float64"),
        column("raw", "blob", "binary"),
        column("a name, with {signs}", "varchar(9)", "string"),
    )
    odd = replace(ORDERS, table=TableId("shop", "odd"), columns=columns, key=("id",))
    old, late = -62_135_596_800_000_000, 253_402_300_799_999_999
    rows: list[tuple[Any, ...]] = [
        (1, -719_162, old, old, Decimal("-9999999999999999999999999999.9999999999"), float("-inf"), b"", ""),
        (2, 2_932_896, late, late, Decimal("0E-10"), -0.0, b"\x00\xff", "ü\x00"),
        (3, -141_428, -12_219_292_800_000_001, -12_219_292_800_000_001, None, float("nan"), None, None),
    ]
    sink, schemas = delta(), {(odd.table, 1): odd}
    sink.prepare(JOB, [odd])
    changes = [(INSERT, rows[1]), (INSERT, rows[2])]
    if way == "published":
        write_epochs(sink, JOB, published(sink.checkpoint, snapshot_part(1, 1, odd, rows), odd), schemas)
    else:
        write_epochs(sink, JOB, snapshot_part(1, 1, odd, rows[:1]), schemas, staged=way == "staged")
        write_epochs(sink, JOB, log_part(2, (odd, changes)), schemas, staged=way == "staged")
    assert list(map(repr, sorted(rows_of_delta(sink, odd)))) == list(map(repr, rows))
