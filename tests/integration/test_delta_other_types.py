"""Copies in Delta whose columns get other types, by the sink alone: which do, what they keep, and what is noticed if somebody
else changes them. test_delta_schema_changes.py has whole jobs."""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from tests.support.change_parts import INSERT, TRUNCATE, UPDATE, column, log_part, replacing_part, snapshot_part
from tests.support.delta import Held, newest_version, wait_for, write_epochs
from tidemark.conf.tables import TableName
from tidemark.sinks.audit import NO_AUDIT, AuditColumns
from tidemark.sinks.delta import epoch as delta_epoch
from tidemark.sinks.delta.epoch import EpochWriter
from tidemark.sinks.delta.epoch_rows import StagedRows
from tidemark.sinks.delta.locations import FolderLake, last_epoch
from tidemark.sinks.delta.sink import DeltaSink
from tidemark.sinks.delta.tables import Style
from tidemark.sinks.sink import JobIdentity, SinkBusyError
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.checkpoint.store import LocalStore
from tidemark.state.errors import CopySetBackError, SinkError
from tidemark.state.integer_range import IntegerRange
from tidemark.state.job_state import JobState, Joined, Left
from tidemark.state.key_order import INTEGERS
from tidemark.state.position import BinlogPosition
from tidemark.state.table import TableId, TableSchema

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

JOB = JobIdentity("7b7b7b7b-0000-4000-8000-000000000002", "lake")
T = TableSchema(
    TableId("shop", "t"),
    1,
    (
        column("id", "int", "int32", key=True),
        column("v", "int", "int32"),
        column("a-b", "varchar(9)", "string"),
        column("p q", "varchar(9)", "string"),
    ),
    ("id",),
)
WIDER = replace(T, version=2, columns=(T.columns[0], column("v", "bigint", "int64"), *T.columns[2:]))
SCHEMAS = {(T.table, 1): T, (T.table, 2): WIDER}


class Copy:
    """A Delta table that a sink has filled with one row."""

    def __init__(
        self,
        session: SparkSession,
        folder: Path,
        *partition_by: str,
        columns: str | None = None,
        schema: TableSchema = T,
    ) -> None:
        """`columns`: those of a table that is there before."""
        named = {TableName("shop", "t"): partition_by} if partition_by else {}
        checkpoint = LocalStore(str(folder / "checkpoint"))
        self.session, self.sink = (
            session,
            DeltaSink(FolderLake(str(folder)), "mirror", named, checkpoint, lambda: session),
        )
        self.location = self.sink.lake.location_of(T.table)
        if columns is not None:
            mapped = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
            self.sql(f"CREATE TABLE {self.location.relation} ({columns}) USING delta {mapped}")
        self.sink.prepare(JOB, [schema])
        write_epochs(self.sink, JOB, snapshot_part(1, 1, schema, [(1, 1, "x", "y")]), SCHEMAS | {(T.table, 1): schema})

    def leave(self) -> None:
        """The table leaves the job, so that all of its rows are to be read again."""
        leave(self.sink)

    def come_back(self) -> None:
        """The table joins again after epoch 1."""
        checkpoint = Checkpoint("", self.sink.checkpoint)
        state, start = checkpoint.job_state(), BinlogPosition("b.000001", 9)
        assert state is not None
        back = Joined(start, (WIDER,), (), back=(T.table,), left_files=1, after_epoch=1, replaced=(T.table,))
        checkpoint.create_joined(state, back)

    def read_again(self, rows: list[tuple[Any, ...]], end: int | None = None) -> None:
        """Writes the rows of all keys below `end`, as the next epoch."""
        ends = None if end is None else (end,)
        write_epochs(self.sink, JOB, replacing_part(3, 2, WIDER, IntegerRange(("id",), None, ends), rows), SCHEMAS)

    def is_replaceable(self, sink: DeltaSink | None = None) -> bool:
        return bool((sink or self.sink).replaceable(JOB, [WIDER], {T.table: {"id": INTEGERS}}))

    def sql(self, statement: str) -> list[Any]:
        return self.session.newSession().sql(statement).collect()

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        return sorted(map(tuple, self.session.table(self.location.relation).select(*columns or "*").collect()))

    def detail(self, name: str) -> Any:
        return self.sql(f"DESCRIBE DETAIL {self.location.relation}")[0][name]

    def type_of(self, name: str) -> str:
        return self.session.table(self.location.relation).schema[name].dataType.simpleString()

    def write(self, epoch: int, *changes: Any) -> None:
        write_epochs(self.sink, JOB, log_part(epoch, *((T, [change]) for change in changes)), SCHEMAS)


def leave(sink: DeltaSink) -> None:
    start, checkpoint = BinlogPosition("b.000001", 4), Checkpoint("", sink.checkpoint)
    state = JobState(JOB.uuid, JOB.name, "full+incremental", "server", start, (), 1, (T,), ())
    checkpoint.create_left(checkpoint.create_job_state(state), (Left(T.table, 1),))


@pytest.fixture
def copy(delta_session: SparkSession, tmp_path: Path) -> Callable[..., Copy]:
    return partial(Copy, delta_session, tmp_path)


def test_it_keeps_its_partitions(copy: Callable[..., Copy]) -> None:
    """Spark parses the names of a DataFrameWriter's partitions."""
    held = copy("a-b", "p q")
    held.write(2, (INSERT, (2, None, "", "z")))
    held.leave()
    held.sink.adapt(JOB, [WIDER])
    assert held.is_replaceable()
    assert not any(finding.is_problem for finding in held.sink.check([WIDER], JOB))
    held.read_again([(1, 2**40, "x", "y")], end=2)
    assert (held.rows("id", "v"), held.type_of("v")) == ([(1, 2**40), (2, None)], "bigint")
    assert held.detail("partitionColumns") == ["a-b", "p q"]


@pytest.mark.every_server
def test_one_that_is_emptied_keeps_its_partitions(copy: Callable[..., Copy]) -> None:
    held = copy("a-b", "p q")
    held.leave()
    held.sink.adapt(JOB, [WIDER])
    emptied = log_part(3, (WIDER, [(TRUNCATE, [None] * 4)]))
    write_epochs(held.sink, JOB, emptied, SCHEMAS, emptied=[T.table])
    assert (held.rows(), held.type_of("v")) == ([], "bigint")
    assert held.detail("partitionColumns") == ["a-b", "p q"]


@pytest.mark.every_server
def test_it_is_not_clustered_any_more(copy: Callable[..., Copy]) -> None:
    """As docs/delta.md says, with the statement that gives it its clusters again."""
    held = copy()
    clustered = f"ALTER TABLE {held.location.relation} CLUSTER BY (id, v)"
    held.sql(clustered)
    assert held.detail("clusteringColumns") == ["id", "v"]
    held.leave()
    held.read_again([(1, 1, "x", "y")])
    assert held.detail("clusteringColumns") == []
    held.sql(clustered)
    assert held.detail("clusteringColumns") == ["id", "v"]


@pytest.mark.parametrize(
    "rule",
    ["w INT GENERATED ALWAYS AS (id * 2)", "w BIGINT GENERATED BY DEFAULT AS IDENTITY"],
    ids=["value", "identity"],
)
def test_one_with_generated_columns_is_refused(copy: Callable[..., Copy], rule: str) -> None:
    """Spark would take their rules from the table."""
    held = copy(columns=f"id INT, v INT, `a-b` STRING, `p q` STRING, {rule}")
    held.leave()
    before = held.rows("id", "v", "w")
    assert before[0][2] is not None
    held.sink.adapt(JOB, [WIDER])
    assert held.rows("id", "v", "w") == before
    assert "has v as int, not as bigint" in str(held.sink.check([WIDER], JOB))
    assert not held.is_replaceable()


def test_one_is_refused_for_other_reasons_than_its_types(copy: Callable[..., Copy]) -> None:
    """NOT NULL that somebody gave it is no reason: the commit takes it from the table."""
    never_null = replace(T, columns=(*T.columns[:2], replace(T.columns[2], nullable=False), T.columns[3]))
    held = copy(columns="id INT, v INT, `a-b` STRING NOT NULL, `p q` STRING", schema=never_null)
    assert "has v as int, not as bigint" in str(held.sink.check([WIDER], JOB)), "it is not read again yet"
    held.leave()
    other = replace(held.sink, partition_by={TableName("shop", "t"): ("a-b",)})
    assert "is partitioned by nothing, not by a-b" in str(other.check([WIDER], JOB))
    held.sink.adapt(JOB, [WIDER])
    assert not any(finding.is_problem for finding in held.sink.check([WIDER], JOB))
    assert held.rows("id", "v") == [(1, 1)]
    held.read_again([(1, 2, None, "y")])
    assert held.rows("id", "a-b") == [(1, None)]


@pytest.mark.every_server
@pytest.mark.parametrize(
    ("rule", "kind", "value"),
    [("v < 100", "bigint", 2**40), ("v < 100", "string", "x")],
)
def test_a_constraint_refuses_the_new_type(copy: Callable[..., Copy], rule: str, kind: str, value: Any) -> None:
    """The error is about its table, and the copy stays as it is. Without the constraint it gets the type."""
    held = copy()
    held.sql(f"ALTER TABLE {held.location.relation} ADD CONSTRAINT mine CHECK ({rule})")
    held.leave()
    new = column("v", "bigint", "int64") if kind == "bigint" else column("v", "varchar(9)", "string")
    schema = replace(T, version=2, columns=(T.columns[0], new, *T.columns[2:]))
    part = replacing_part(3, 2, schema, IntegerRange(("id",), None, None), [(1, value, "x", "y")])
    held.sink.adapt(JOB, [schema])
    with pytest.raises(SinkError) as caught:
        write_epochs(held.sink, JOB, part, {(T.table, 2): schema})
    assert caught.value.table == T.table
    assert (held.rows("id", "v"), held.type_of("v")) == ([(1, 1)], "int")
    held.sql(f"ALTER TABLE {held.location.relation} DROP CONSTRAINT mine")
    write_epochs(held.sink, JOB, part, {(T.table, 2): schema})
    assert (held.rows("id", "v"), held.type_of("v")) == ([(1, value)], kind)


@pytest.mark.parametrize("is_late", [True, pytest.param(False, marks=pytest.mark.every_server)], ids=["late", "before"])
def test_a_whole_commit_after_somebody_gave_the_copy_other_types(
    copy: Callable[..., Copy], monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    """Spark casts the rows without a word, to 7 instead of 007. `is_late`: after the last look at the copy."""
    held = copy()
    commit, relation = EpochWriter._commit, held.location.relation

    def change(*given: Any) -> None:
        session = held.session.newSession()
        rows = session.sql(f"SELECT id, v, CAST(NULL AS INT) AS `a-b`, `p q` FROM {relation}")
        rows.writeTo(relation).option("overwriteSchema", "true").overwrite(lit(True))
        if given:
            commit(*given)

    if is_late:
        monkeypatch.setattr(EpochWriter, "_commit", change)
    else:
        change()
    with pytest.raises(CopySetBackError, match="has a-b as int, not as string") as caught:
        held.write(2, (TRUNCATE, [None] * 4), (INSERT, (1, 1, "007", "y")))
    assert caught.value.table == T.table


def test_it_gets_its_types_though_its_log_has_no_epoch_any_more(copy: Callable[..., Copy]) -> None:
    """Delta removes commits that are older than 30 days when others, such as those of VACUUM, make a checkpoint."""
    held = copy()
    held.sql(f"ALTER TABLE {held.location.relation} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    log, newest = Path(held.location.text, "_delta_log"), newest_version(Path(held.location.text))
    for file in [file for file in log.iterdir() if file.name.lstrip(".")[:20].isdigit()]:
        if int(file.name.lstrip(".")[:20]) < newest:
            file.unlink()
    jvm: Any = held.session._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert last_epoch(held.session, held.location) is None
    held.leave()
    held.come_back()
    assert not any(finding.is_problem for finding in held.sink.check([WIDER], JOB))
    assert held.is_replaceable()
    held.read_again([(1, 2**40, "x", "y")])
    assert (held.rows("id", "v"), held.type_of("v")) == ([(1, 2**40)], "bigint")


@pytest.mark.parametrize("style", ["changelog", pytest.param("mirror", marks=pytest.mark.every_server)])
def test_a_copy_with_a_history_keeps_it_though_somebody_gives_it_other_types(
    delta_session: SparkSession, tmp_path: Path, style: Style
) -> None:
    """After the check of a table that comes back, and before the TRUNCATE that precedes its rows. `mirror`: one that keeps
    deleted rows."""
    audit = AuditColumns(deleted="gone") if style == "mirror" else NO_AUDIT
    store = LocalStore(str(tmp_path / "checkpoint"))
    sink = DeltaSink(FolderLake(str(tmp_path)), style, {}, store, lambda: delta_session, audit=audit)
    sink.prepare(JOB, [T])
    write_epochs(sink, JOB, snapshot_part(1, 1, T, [(1, 1, "x", "y")]), SCHEMAS)
    leave(sink)
    relation = sink.lake.location_of(T.table).relation
    rows = delta_session.table(relation).withColumn("v", lit(1).cast("smallint"))
    rows.writeTo(relation).option("overwriteSchema", "true").overwrite(lit(True))
    emptied = log_part(3, (T, [(TRUNCATE, [None] * 4)]))
    with pytest.raises(CopySetBackError, match="has v as smallint, not as int"):
        write_epochs(sink, JOB, emptied, SCHEMAS, emptied=[T.table])
    assert [row["id"] for row in delta_session.table(relation).collect()] == [1]


def test_a_copy_that_loses_the_partitions_of_its_key_while_a_run_writes_it(
    copy: Callable[..., Copy], delta_session: SparkSession
) -> None:
    """It has NULL for empty texts of the key, which no MERGE finds."""
    keyed = replace(
        T, columns=(T.columns[0], T.columns[1], replace(T.columns[2], nullable=False), T.columns[3]), key=("id", "a-b")
    )
    held = copy("a-b")
    schemas = {(T.table, 1): keyed}
    write_epochs(held.sink, JOB, log_part(2, (keyed, [(INSERT, (2, 1, "", "y"))])), schemas)
    place, relation = held.location.text, held.location.relation
    again = delta_session.createDataFrame(delta_session.table(relation).collect(), delta_session.table(relation).schema)
    again.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(place)
    with pytest.raises(CopySetBackError, match="was partitioned by a-b") as caught:
        write_epochs(held.sink, JOB, log_part(3, (keyed, [(UPDATE, (2, 7, "", "y"))])), schemas)
    assert caught.value.table == T.table
    assert held.rows("id", "v") == [(1, 1), (2, 1)]


@pytest.mark.parametrize("attempts", [pytest.param(1, marks=pytest.mark.every_server), 2])
def test_it_gets_its_types_though_somebody_writes_to_it_meanwhile(
    copy: Callable[..., Copy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    held, failures, original = copy(), list[BaseException](), StagedRows.read
    held.leave()
    monkeypatch.setattr(delta_epoch, "MAX_ATTEMPTS", attempts)

    def waiting(*given: Any) -> DataFrame:
        rows = original(*given)
        return rows.mapInArrow(Held(tmp_path), rows.schema)

    def write_meanwhile() -> None:
        try:
            wait_for(tmp_path / "reached")
            held.sql(f"UPDATE {held.location.relation} SET v = 9")
        except BaseException as error:  # noqa: BLE001 -- raised again by the test
            failures.append(error)
        (tmp_path / "written").touch()

    other = threading.Thread(target=write_meanwhile)
    other.start()
    monkeypatch.setattr(StagedRows, "read", waiting)
    if attempts == 1:
        with pytest.raises(SinkBusyError, match="written by somebody else at the same time"):
            held.read_again([(2, 5, "", "")])
    else:
        held.read_again([(2, 5, "", "")])
    other.join()
    assert not failures
    assert (tmp_path / "reached").exists()
    assert (held.rows("v"), held.type_of("v")) == (([(9,)], "int") if attempts == 1 else ([(5,)], "bigint"))
