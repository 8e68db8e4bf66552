"""The files sink on a real filesystem: the files that readers see at any time, that failures leave, and that Spark
reads."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.support.change_parts import (
    DELETE,
    INSERT,
    ITEMS,
    NOTES,
    ORDERS,
    SCHEMAS,
    UNCHANGED,
    UPDATE,
    log_part,
    rows,
    snapshot_part,
)
from tests.support.every_type import EVERY_TYPE, every_value
from tests.support.sink_state import FILE_SINKS, SinkCase, make_case
from tidemark.sinks.console import ConsoleSink
from tidemark.sinks.delta.locations import FolderLake
from tidemark.sinks.files import part as files_part
from tidemark.sinks.files.sink import FilesSink, table_folder_name
from tidemark.sinks.sink import JobIdentity
from tidemark.state.change_batch import PartEnd, PartItem, PublishedFile
from tidemark.state.checkpoint.store import LocalStore
from tidemark.state.errors import JobFileError, SinkError
from tidemark.state.parquet_rows import ParquetRows
from tidemark.state.table import TableId

FOLDER = table_folder_name(ORDERS.table)


def order(number: int, customer: str = "Ada") -> tuple[Any, ...]:
    return (number, customer, None, number, None)


@pytest.fixture(params=FILE_SINKS)
def files(request: pytest.FixtureRequest) -> SinkCase:
    case = make_case(request.param, request)
    case.sink.prepare(case.job, [ORDERS, ITEMS])
    return case


def visible(case: SinkCase) -> list[str]:
    return sorted(
        f"{path.parent.name}/{path.name}" for path in Path(case.place).glob("[!_]*/*") if path.name[0] not in "._"
    )


def hidden(case: SinkCase) -> list[str]:
    return [str(path) for path in Path(case.place).rglob("*") if path.name.endswith(".tmp")]


def test_names_say_epoch_and_part_and_columns_say_what_changed(files: SinkCase) -> None:
    end = "parquet" if files.kind == "parquet" else "jsonl"
    files.write(
        snapshot_part(7, 12, ORDERS, [order(1)]),
        log_part(
            42, (ORDERS, [(UPDATE, order(1, "Grace")), (DELETE, order(1, "Grace"))]), (ITEMS, [(INSERT, (1, "pen", 2))])
        ),
    )
    assert visible(files) == [
        f"shop.items/e0000000042-log.{end}",
        f"shop.orders/e0000000007-s12.{end}",
        f"shop.orders/e0000000042-log.{end}",
    ]
    first, second, third = files.changes(ORDERS)
    assert (first["_change_type"], first["_is_snapshot"], first["_txn_id"]) == ("insert", True, None)
    assert (second["_change_type"], second["_is_snapshot"], second["customer"]) == ("update_postimage", False, "Grace")
    assert (third["_change_type"], third["_seq"], third["_commit_version"]) == ("delete", 1, 42000)
    assert third["_txn_id"] == "gtid:42000"
    assert list(first) == [
        *(c.name for c in ORDERS.captured),
        *("_change_type", "_commit_version", "_commit_timestamp", "_seq", "_txn_id", "_is_snapshot"),
    ]
    assert hidden(files) == []


def test_values_that_the_log_left_out_are_null_and_named(files: SinkCase) -> None:
    files.sink.prepare(files.job, [NOTES])
    files.write(
        snapshot_part(1, 1, NOTES, [(1, "en", 5, "text", b"\1", None)]),
        log_part(
            2,
            (NOTES, [(UPDATE, (1, "en", 4, UNCHANGED, b"\2", UNCHANGED))]),
            (NOTES, [(DELETE, (1, "en", None, None, None, None)), (INSERT, (2, "en", 4, UNCHANGED, UNCHANGED, 7))]),
            (NOTES, [(UPDATE, (2, "en", 3, None, b"", 8))]),
        ),
    )
    found = files.changes(NOTES)
    assert [row["_unchanged"] for row in found] == [None, ["body", "size"], None, ["body", "scan"], None]
    assert [(row["stars"], row["body"]) for row in found] == [
        (5, "text"),
        (4, None),
        (None, None),
        (4, None),
        (3, None),
    ]
    assert list(found[0])[-2:] == ["_is_snapshot", "_unchanged"]


class Failing:
    """The nth call of some functions of `os` fails as on a full disk."""

    def __init__(self, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        for name in ("fsync", "replace"):
            original = getattr(os, name)

            def call(*arguments: Any, original: Any = original) -> Any:
                self.calls += 1
                if self.calls == step:
                    raise OSError(28, "No space left on device")
                return original(*arguments)

            monkeypatch.setattr(os, name, call)


def test_failure_at_each_step_leaves_whole_files_and_a_replay_completes_them(
    files: SinkCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = log_part(2, (ORDERS, [(INSERT, order(1)), (UPDATE, order(1, "B"))]), (ITEMS, [(INSERT, (1, "pen", 2))]))
    step = 0
    while True:
        step += 1
        files.clear(ORDERS)
        files.clear(ITEMS)
        for mark in (Path(files.place) / "_tidemark" / files.job.uuid).glob("*.json"):
            mark.unlink()
        with monkeypatch.context() as patched:
            failing = Failing(step, patched)
            try:
                files.write(changes)
            except SinkError as exc:
                error = exc
            else:
                break
        assert "No space left" in error.message
        assert failing.calls >= step
        assert files.rows(ORDERS) in ([], [order(1, "B")])
        assert files.rows(ITEMS) in ([], [(1, "pen", 2)])
        assert hidden(files) == []
        files.write(changes)
        assert files.rows(ORDERS) == [order(1, "B")]
        assert files.rows(ITEMS) == [(1, "pen", 2)]
        assert len(visible(files)) == 2
    assert step > 5


def test_tables_of_an_epoch_become_visible_one_after_the_other(
    files: SinkCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, replace = [], os.replace

    def look(source: Any, target: Any) -> None:
        replace(source, target)
        seen.append(len(visible(files)))

    monkeypatch.setattr(os, "replace", look)
    files.write(log_part(1, (ORDERS, [(INSERT, order(1))]), (ITEMS, [(INSERT, (1, "pen", 2))])))
    assert seen[:2] == [1, 2]


def test_killed_writer_leaves_no_visible_file_and_prepare_clears_its_traces(files: SinkCase) -> None:
    """A part is killed between its last row and the renames."""
    code = (
        "import os, sys\n"
        "from tidemark.sinks.files import part as files_part\n"
        "files_part.FilesPart.publish = lambda self: os._exit(9)\n"
        "from tidemark.sinks.files.sink import FilesSink\n"
        "from tidemark.sinks.sink import JobIdentity\n"
        "from tests.support.change_parts import *\n"
        "sink = FilesSink.of(sys.argv[1], sys.argv[2])\n"
        "items = snapshot_part(1, 1, ORDERS, [(1, 'Ada', None, 1, None)])\n"
        "list(sink.writer(JobIdentity(sys.argv[3], 'contract')).write(items, SCHEMAS))\n"
    )
    arguments = [sys.executable, "-c", code, str(files.place), files.kind, files.job.uuid]
    assert subprocess.run(arguments, check=False, cwd=Path(__file__).parents[2]).returncode == 9
    assert visible(files) == []
    assert len(hidden(files)) == 1
    files.sink.prepare(files.job, [ORDERS, ITEMS])
    assert hidden(files) == []
    files.write(snapshot_part(1, 1, ORDERS, [order(1)]))
    assert files.rows(ORDERS) == [order(1)]


def test_folder_with_files_of_somebody_else_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    (folder / "part-0.parquet").write_text("")
    sink = FilesSink.of(str(tmp_path), "parquet")
    with pytest.raises(SinkError, match="has files that no job wrote"):
        sink.prepare(JobIdentity("a", "a"), [ORDERS])
    (folder / "part-0.parquet").unlink()
    sink.prepare(JobIdentity("a", "a"), [ORDERS])
    with pytest.raises(SinkError, match="belongs to job a"):
        sink.prepare(JobIdentity("b", "b"), [ORDERS])
    (folder / "_tidemark.json").write_text("{")
    with pytest.raises(SinkError, match="is damaged"):
        sink.prepare(JobIdentity("a", "a"), [ORDERS])


def test_damaged_ledger_is_an_error(files: SinkCase) -> None:
    files.write(snapshot_part(1, 1, ORDERS, [order(1)]))
    (mark,) = (Path(files.place) / "_tidemark" / files.job.uuid).glob("*.json")
    mark.write_text("")
    with pytest.raises(SinkError, match="is damaged"):
        files.write(snapshot_part(1, 1, ORDERS, [order(1)]))


def test_only_local_paths_for_now(tmp_path: Path) -> None:
    for path in ("s3://bucket/copy", "hdfs://nn/copy", "abfss://c@a/x"):
        with pytest.raises(JobFileError, match="not supported yet"):
            FilesSink.of(path, "parquet")
    with pytest.raises(JobFileError, match="names a host"):
        FilesSink.of("file://host/copy", "parquet")
    assert FilesSink.of(f"file://{tmp_path}/a%20b", "parquet").root == tmp_path / "a b"
    assert FilesSink.of(f"{tmp_path}/a:b", "parquet").root == tmp_path / "a:b"


def test_folder_names_are_unambiguous_and_never_hidden() -> None:
    names = [
        ("a.b", "c"),
        ("a", "b.c"),
        ("_x", "y"),
        (".x", "y"),
        ("x", "a/b"),
        ("x", "a%2Fb"),
        ("x", "é"),
        ("..", ".."),
        ("", "x"),
    ]
    folders = [table_folder_name(TableId(database, name)) for database, name in names]
    assert len(set(folders)) == len(folders)
    assert not [folder for folder in folders if folder[:1] in "._" and folder != ".x"]
    assert all("/" not in folder and folder not in {".", ".."} for folder in folders)
    assert table_folder_name(TableId("shop", "orders")) == "shop.orders"


@pytest.mark.pitfall(83)
def test_folder_names_that_are_too_long_are_refused(tmp_path: Path) -> None:
    sink, job = FilesSink.of(str(tmp_path / "out"), "parquet"), JobIdentity("7f" * 16, "long", 1)
    long = dataclasses.replace(ORDERS, table=TableId("д" * 64, "т" * 64))
    fitting = dataclasses.replace(ORDERS, table=TableId("д" * 63, "т" * 64))
    with pytest.raises(SinkError, match="The name of its folder would have 257 bytes"):
        sink.prepare(job, [fitting, long])
    sink.prepare(job, [fitting])
    lake = FolderLake(str(tmp_path / "lake"))
    assert [finding.table for finding in lake.findings(lambda: None, [fitting, long])] == [long.table]  # type: ignore[arg-type, return-value]


def test_many_tables_need_few_open_files_and_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alternating rows of 40 tables, with three open files and a small buffer: the other tables use spill files."""
    monkeypatch.setattr(files_part, "MAX_OPEN_FILES", 3)
    monkeypatch.setattr(files_part, "MAX_BUFFERED_BYTES", 2000)
    monkeypatch.setattr(files_part, "FLUSH_BYTES", 500)
    tables = [dataclasses.replace(ORDERS, table=TableId("shop", f"t{n}")) for n in range(40)]
    schemas = {(schema.table, 1): schema for schema in tables}
    sink = FilesSink.of(str(tmp_path), "parquet")
    case = SinkCase("parquet", sink, tmp_path)
    sink.prepare(case.job, tables)
    rounds = [(schema, [(INSERT, order(number))]) for number in range(20) for schema in tables]
    case.write(log_part(1, *rounds), schemas=schemas)
    for schema in tables:
        assert case.rows(schema) == [order(number) for number in range(20)]
    assert len(visible(case)) == 40
    assert hidden(case) == []


@pytest.fixture
def taking(tmp_path: Path) -> SinkCase:
    """A files sink that is given splits as files, with the file of split 1 in its store."""
    store = LocalStore(str(tmp_path / "checkpoint"))
    data = pa.BufferOutputStream()
    written = ParquetRows(data, ORDERS)
    written.write([rows(ORDERS, [(INSERT, order(1)), (INSERT, order(2))], snapshot=True)])
    written.close({"tidemark.report": "…"})
    assert store.create("published/e1-s1", data.getvalue())
    case = SinkCase("parquet", FilesSink(tmp_path / "out", "parquet", store), tmp_path / "out")
    case.sink.prepare(case.job, [ORDERS, ITEMS])
    return case


TAKEN: list[PartItem] = [
    PublishedFile(1, "s1", 0, ORDERS.table, ORDERS.version, 2, "published/e1-s1"),
    PartEnd(1, "s1", 1, 2),
]


def test_a_splits_file_is_taken_as_it_is(taking: SinkCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever step fails, readers see the whole file or none, and the next attempt succeeds, as a replay does."""
    sink = taking.sink
    assert isinstance(sink, FilesSink)
    step = 0
    while True:
        step += 1
        with monkeypatch.context() as patched:
            Failing(step, patched)
            try:
                taking.write(TAKEN)
            except SinkError as exc:
                error = exc
            else:
                break
        assert "No space left" in error.message
        assert taking.rows(ORDERS) in ([], [order(1), order(2)])
        assert hidden(taking) == []
    assert step > 2
    assert visible(taking) == [f"{FOLDER}/e0000000001-s1.parquet"]
    assert taking.rows(ORDERS) == [order(1), order(2)]
    (taken,) = Path(taking.place, FOLDER).glob("*.parquet")
    assert taken.stat().st_nlink == 2  # not copied
    assert [result.skipped for result in taking.write(TAKEN)] == [True]
    for mark in (Path(taking.place) / "_tidemark" / taking.job.uuid).glob("*.json"):
        mark.unlink()
    assert [result.skipped for result in taking.write(TAKEN)] == [False]
    assert hidden(taking) == []
    taken.unlink()
    sink.published.delete("published/e1-s1")  # type: ignore[union-attr]
    for mark in (Path(taking.place) / "_tidemark" / taking.job.uuid).glob("*.json"):
        mark.unlink()
    with pytest.raises(SinkError, match="its epoch is committed"):
        taking.write(TAKEN)
    assert visible(taking) == []


def test_files_are_for_the_files_sink_alone(taking: SinkCase) -> None:
    with pytest.raises(SinkError, match="can't take"):
        list(ConsoleSink().writer(taking.job).write(TAKEN, SCHEMAS))


def test_empty_part_writes_no_file(files: SinkCase) -> None:
    files.write(snapshot_part(1, 1, ORDERS, []))
    assert visible(files) == []


@pytest.mark.integration
def test_spark_reads_both_formats_back(tmp_path: Path, delta_session: SparkSession) -> None:
    """Parquet is read without a schema, JSON Lines with one."""
    values = every_value()
    held = {}
    for kind in FILE_SINKS:
        case = SinkCase(kind, FilesSink.of(str(tmp_path / kind), kind), tmp_path / kind)  # type: ignore[arg-type]
        case.sink.prepare(case.job, [EVERY_TYPE])
        case.write(snapshot_part(1, 1, EVERY_TYPE, values), schemas={(EVERY_TYPE.table, 1): EVERY_TYPE})
        held[kind] = case
    spark = delta_session.newSession()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    folder = table_folder_name(EVERY_TYPE.table)
    parquet = spark.read.parquet(str(tmp_path / "parquet" / folder))
    json_lines = spark.read.schema(parquet.schema).json(str(tmp_path / "jsonl" / folder))
    sums = [d.selectExpr("count(*)", *[f"sum(hash(`{c}`))" for c in d.columns]).first() for d in (parquet, json_lines)]
    assert sums[0] is not None
    assert sums[0] == sums[1]
    assert sums[0][0] == len(values)
    types = {field["name"]: field["type"] for field in json.loads(parquet.schema.json())["fields"]}
    assert types["tiny"] == "byte"
    assert types["big_unsigned"] == "decimal(20,0)"
    assert types["amount"] == "decimal(12,2)"
    assert types["day"] == "date"
    assert types["moment"] == "timestamp_ntz"
    assert types["instant"] == "timestamp"
    assert types["embedding"]["elementType"] == "float"
    assert types["_change_type"] == types["_txn_id"] == "string"
    assert types["_commit_timestamp"] == "timestamp"
    assert types["_is_snapshot"] == "boolean"
    file = next((tmp_path / "parquet" / folder).glob("e*.parquet"))
    assert pq.ParquetFile(file).schema_arrow.field("_change_type").type == "string"
