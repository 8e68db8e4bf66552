"""Publishing a split: once, whole, and the second attempt gets what the first one wrote."""

import json
import multiprocessing
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.change_parts import array
from tests.support.s3 import Application, s3_server
from tidemark.readers.snapshot import gathered_rows, published_file
from tidemark.readers.snapshot import publish as publishing
from tidemark.readers.snapshot.gathered_rows import GatheredRows
from tidemark.readers.snapshot.publish import is_published, publish, published_name, read_published, read_report
from tidemark.readers.snapshot.published_file import PublishedFormat
from tidemark.readers.snapshot.split_read import SplitRead, rows_seq
from tidemark.state.change_batch import batch_schema
from tidemark.state.checkpoint.store import LocalStore, open_store
from tidemark.state.errors import CheckpointError, SourceNotUsableError
from tidemark.state.position import BinlogPosition
from tidemark.state.split import KeyRange, Report, Split
from tidemark.state.table import Column, TableId, TableSchema

TABLE = TableId("shop", "orders")
SCHEMA = TableSchema(TABLE, 1, (Column("id", "int", "int32", False), Column("s", "text", "string", True)), ("id",))
FORMATS = pytest.mark.parametrize("form", ["arrow", "parquet"])
HIGH = BinlogPosition("binlog.000003", 1234, "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5")
SPLIT = Split(7, TABLE, 1, ("id",), KeyRange(None, None))


def report_of(rows: pa.Table, split_id: int = 7) -> Report:
    return Report(split_id, TABLE, 1, HIGH, rows.num_rows, 3)


def some_rows(count: int, text: str = "x") -> pa.Table:
    values = {"id": pa.array(range(count), pa.int32()), "s": pa.array([f"{text}{i}" for i in range(count)])}
    return pa.table(values)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def test_rows_and_report_come_back_as_change_batches(store: LocalStore) -> None:
    rows = some_rows(5)
    published = publish(store, 3, SPLIT, SplitRead(report_of(rows), rows, 1_700_000_000_000_001), SCHEMA)
    found = read_published(store, 3, SPLIT)
    assert found == published
    assert found is not None
    assert found.report == report_of(rows)
    (batch,) = found.batches
    assert batch.schema == batch_schema(SCHEMA)
    assert batch.schema.metadata is None
    assert batch.select(["id", "s"]) == rows.to_batches()[0]
    first = batch.slice(0, 1).to_pylist()[0]
    assert (first["_change_type"], first["_commit_version"], first["_seq"]) == (0, HIGH.version, rows_seq(1))
    assert (first["_txn_id"], first["_is_snapshot"]) == (None, True)
    assert first["_commit_timestamp"].timestamp() == pytest.approx(1_700_000_000.000001)
    assert batch["_seq"].to_pylist() == [rows_seq(1)] * 5


def test_the_file_is_an_ordinary_arrow_file(store: LocalStore) -> None:
    rows = some_rows(4)
    publish(store, 1, SPLIT, SplitRead(report_of(rows), rows, 0), SCHEMA)
    path = Path(store.root, published_name(1, SPLIT))
    assert path == Path(store.root, "published", "e1-s7")
    with pa.ipc.open_file(path.read_bytes()) as reader:
        assert reader.read_all().select(["id", "s"]) == rows


def test_statistics_in_parquets_footer_stay_what_the_rows_are(store: LocalStore, tmp_path: Path) -> None:
    text = "tidemark-crc32=00000000"
    rows = pa.table({"id": pa.array([1], pa.int32()), "s": [text]})
    published = publish(store, 1, SPLIT, SplitRead(report_of(rows), rows, 1), SCHEMA, "parquet")
    assert read_published(store, 1, SPLIT, "parquet") == published
    assert store.copy_to(published.name, tmp_path / "copy.parquet")
    statistics = pq.read_metadata(tmp_path / "copy.parquet").row_group(0).column(1).statistics
    assert (statistics.min, statistics.max) == (text, text)


def test_for_a_sink_that_takes_it_the_file_is_parquet(store: LocalStore, tmp_path: Path) -> None:
    first, second = some_rows(5, "tidemark-crc32=00000000 "), some_rows(6)
    published = publish(store, 1, SPLIT, SplitRead(report_of(first), first, 1), SCHEMA, "parquet")
    assert (published.report, published.batches) == (report_of(first), ())
    assert publish(store, 1, SPLIT, SplitRead(report_of(second), second, 2), SCHEMA, "parquet") == published
    assert read_published(store, 1, SPLIT, "parquet") == published
    assert read_report(store, 1, SPLIT) == report_of(first)
    assert store.copy_to(published.name, tmp_path / "copy.parquet")
    rows = pq.read_table(tmp_path / "copy.parquet")
    assert rows.select(["id", "s"]) == first
    assert rows["_change_type"].to_pylist() == ["insert"] * 5
    assert rows["_commit_version"].to_pylist() == [HIGH.version] * 5


def test_rows_of_a_parquet_file_are_those_of_an_arrow_file(store: LocalStore) -> None:
    """Where Spark can't read the checkpoint, a task reads them. All types, and NULL in each."""
    types = (
        *("bool", "int8", "int16", "int32", "int64", "float32", "float64", "string", "binary", "date32", "timestamp"),
        *("timestamptz", "decimal(38,10)", "decimal(20,0)", "list<float32>", "list<decimal(9,2)>", "list<timestamptz>"),
    )
    schema = replace(
        SCHEMA,
        columns=tuple(Column(f"c{i}", kind, kind, nullable=True, toastable=i > 3) for i, kind in enumerate(types)),
        key=("c4",),
    )
    examples = (
        [True],
        [-128],
        [5],
        [2**31 - 1],
        [-(2**63)],
        [0.1],
        [-0.0],
        ["\0ü"],
        [b"\0\xff"],
        [-800_000],
        [-(2**60)],
    )
    more = ([2**60], [Decimal("1e-10")], [Decimal(2**64 - 1)], [[1.5, None]], [[Decimal("1.25")], []], [[0, None]])
    columns = [array([*values, None] * 3, kind) for values, kind in zip((*examples, *more), types, strict=True)]
    rows = pa.table([column.slice(0, 6) for column in columns], schema=schema.arrow_schema())
    splits = [replace(SPLIT, id=7), replace(SPLIT, id=8)]
    found = []
    for form, split in zip(("arrow", "parquet"), splits, strict=True):
        read = SplitRead(report_of(rows, split.id), rows, 5)
        publish(store, 1, split, read, schema, form)
        published = read_published(store, 1, split, None)
        assert published is not None
        found.append(pa.Table.from_batches(published.rows(schema)))
    assert found[0].schema == batch_schema(schema)
    assert found[1].equals(found[0])


@pytest.mark.parametrize(("before", "now"), [("arrow", "parquet"), ("parquet", "arrow")])
def test_a_split_published_for_another_sink_is_refused(
    store: LocalStore, before: PublishedFormat, now: PublishedFormat
) -> None:
    rows = some_rows(3)
    publish(store, 2, SPLIT, SplitRead(report_of(rows), rows, 0), SCHEMA, before)
    with pytest.raises(CheckpointError, match="another kind of sink"):
        read_published(store, 2, SPLIT, now)
    with pytest.raises(CheckpointError, match="another kind of sink"):
        publish(store, 2, SPLIT, SplitRead(report_of(rows), rows, 0), SCHEMA, now)


@pytest.mark.pitfall(128)
@FORMATS
def test_a_report_is_read_without_the_rows(form: PublishedFormat) -> None:
    sent = []

    def counts(server: Application) -> Application:
        def answer(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
            for part in server(environ, start_response):
                sent.append(len(part))
                yield part

        return answer

    rows = some_rows(100_000, "a longer text " * 8)
    with s3_server(counts) as bucket:
        store = open_store(f"{bucket}/job")
        assert not is_published(store, 1, SPLIT)
        publish(store, 1, SPLIT, SplitRead(report_of(rows), rows, 0), SCHEMA, form)
        sent.clear()
        assert is_published(store, 1, SPLIT)
        assert read_report(store, 1, SPLIT) == report_of(rows)
        assert 0 < sum(sent) < 100_000
        sent.clear()
        assert read_published(store, 1, SPLIT, form) is not None
        assert sum(sent) > 200_000


@FORMATS
@pytest.mark.parametrize("footer_bytes", [1, 20, 1 << 20])
def test_a_report_is_found_however_long_the_footer_is(
    store: LocalStore, form: PublishedFormat, footer_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = some_rows(5)
    publish(store, 1, SPLIT, SplitRead(report_of(rows), rows, 0), SCHEMA, form)
    monkeypatch.setattr(publishing, "FOOTER_BYTES", footer_bytes)
    if footer_bytes < 20:  # the length itself must be among the bytes
        with pytest.raises(CheckpointError, match="damaged"):
            read_report(store, 1, SPLIT)
    else:
        assert read_report(store, 1, SPLIT) == report_of(rows)


def test_nothing_published_is_none(store: LocalStore) -> None:
    assert read_published(store, 1, SPLIT) is None


def test_a_split_without_rows_is_published_too(store: LocalStore) -> None:
    rows = some_rows(0)
    publish(store, 1, SPLIT, SplitRead(report_of(rows), rows, 0), SCHEMA)
    found = read_published(store, 1, SPLIT)
    assert found is not None
    assert (found.report.row_count, found.batches) == (0, ())


@pytest.mark.pitfall(74)
def test_the_second_attempt_gets_what_the_first_one_published(store: LocalStore) -> None:
    first, second = some_rows(5), some_rows(6, "other")
    publish(store, 3, SPLIT, SplitRead(report_of(first), first, 1), SCHEMA)
    found = publish(store, 3, SPLIT, SplitRead(report_of(second), second, 2), SCHEMA)
    assert found.report.row_count == 5
    assert pa.Table.from_batches(found.batches).select(["id", "s"]) == first
    other_epoch = publish(store, 4, SPLIT, SplitRead(report_of(second), second, 2), SCHEMA)
    assert other_epoch.report.row_count == 6


def race(root: str, number: int, start: Any, answers: Any) -> None:
    rows = some_rows(number + 1, f"attempt {number} ")
    start.wait()
    published = publish(LocalStore(root), 1, SPLIT, SplitRead(report_of(rows), rows, number), SCHEMA)
    answers.put((published.report.row_count, pa.Table.from_batches(published.batches).to_pylist()))


@pytest.mark.pitfall(74)
def test_racing_processes_all_emit_the_winners_rows(store: LocalStore) -> None:
    context = multiprocessing.get_context("spawn")
    start, answers = context.Barrier(4), context.Queue()
    processes = [context.Process(target=race, args=(store.root, n, start, answers)) for n in range(4)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert all(answer == found[0] for answer in found)


def test_batches_are_cut_by_size(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "MAX_BATCH_BYTES", 4096)
    rows = pa.table({"id": pa.array(range(100), pa.int32()), "s": pa.array(["y" * (i * 20) for i in range(100)])})
    found = publish(store, 1, SPLIT, SplitRead(report_of(rows), rows, 0), SCHEMA)
    read = read_published(store, 1, SPLIT)
    assert read == found
    assert len(found.batches) > 10
    assert all(batch.select(["id", "s"]).nbytes <= 4096 or batch.num_rows == 1 for batch in found.batches)
    whole = pa.Table.from_batches(found.batches)
    assert whole.select(["id", "s"]) == rows
    assert whole["_seq"].to_pylist() == [rows_seq(1)] * 100


def test_many_small_chunks_become_one_batch(store: LocalStore) -> None:
    rows = pa.concat_tables([some_rows(3)] * 20)
    assert len(publish(store, 1, SPLIT, SplitRead(report_of(rows), rows, 0), SCHEMA).batches) == 1


def test_rows_that_look_like_a_checksum_do_no_harm(store: LocalStore) -> None:
    rows = some_rows(5, "tidemark-crc32=00000000 ")
    published = publish(store, 1, SPLIT, SplitRead(report_of(rows), rows, 0), SCHEMA)
    assert read_published(store, 1, SPLIT) == published


def test_the_report_must_fit_the_rows(store: LocalStore) -> None:
    with pytest.raises(ValueError, match="6 in the report"):
        publish(store, 1, SPLIT, SplitRead(report_of(some_rows(6)), some_rows(5), 0), SCHEMA)


@FORMATS
def test_any_damaged_byte_is_noticed(store: LocalStore, form: PublishedFormat) -> None:
    rows = some_rows(20)
    publish(store, 1, SPLIT, SplitRead(report_of(rows), rows, 0), SCHEMA, form)
    path = Path(store.root, published_name(1, SPLIT))
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(CheckpointError, match="e1-s7 is damaged"):
            read_published(store, 1, SPLIT, form)


@FORMATS
@pytest.mark.parametrize("length", [0, 1, 8, 200, -1, -8, -300])
def test_a_file_that_is_cut_off_is_refused(length: int, store: LocalStore, form: PublishedFormat) -> None:
    rows = some_rows(20)
    publish(store, 1, SPLIT, SplitRead(report_of(rows), rows, 0), SCHEMA, form)
    path = Path(store.root, published_name(1, SPLIT))
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointError, match="damaged"):
        read_published(store, 1, SPLIT, form)


def test_a_file_of_another_version_is_refused(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = published_file.PUBLISHED_SPLIT.encode

    def of_tomorrow(report: Report) -> bytes:
        header, _, body = encode(report).partition(b"\n")
        return json.dumps({**json.loads(header), "version": 999}).encode() + b"\n" + body

    rows = some_rows(2)
    monkeypatch.setattr(published_file.PUBLISHED_SPLIT, "encode", of_tomorrow)
    publish(store, 1, SPLIT, SplitRead(report_of(rows), rows, 0), SCHEMA)
    with pytest.raises(CheckpointError, match="version 999"):
        read_published(store, 1, SPLIT)


def test_a_winner_that_is_gone_already_is_an_error(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = some_rows(2)
    monkeypatch.setattr(LocalStore, "create", lambda self, name, data: False)
    with pytest.raises(CheckpointError, match="committed"):
        publish(store, 1, SPLIT, SplitRead(report_of(rows), rows, 0), SCHEMA)


def test_rows_of_a_table_whose_log_leaves_values_out_are_whole(store: LocalStore) -> None:
    toastable = replace(SCHEMA, columns=(SCHEMA.columns[0], replace(SCHEMA.columns[1], toastable=True)))
    rows = some_rows(3)
    (batch,) = publish(store, 1, SPLIT, SplitRead(report_of(rows), rows, 0), toastable).batches
    assert batch.schema == batch_schema(toastable)
    assert batch.schema.names == [*batch_schema(SCHEMA).names, "_unchanged"]
    assert batch.column("_unchanged").to_pylist() == [None] * 3


@FORMATS
def test_a_split_that_is_too_large_for_memory_goes_through_a_file(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, form: PublishedFormat
) -> None:
    expected = some_rows(1000)
    kept = publish(store, 1, SPLIT, SplitRead(report_of(expected), expected, 5), SCHEMA, form)
    monkeypatch.setattr(gathered_rows, "SPILL_BYTES", 2000)
    monkeypatch.setattr(publishing, "SPILL_BYTES", 2000)
    gathered = GatheredRows(SCHEMA.arrow_schema())
    for batch in expected.cast(SCHEMA.arrow_schema()).to_batches(max_chunksize=30):
        gathered.add(batch)
    rows = gathered.table()
    assert rows.equals(expected.cast(SCHEMA.arrow_schema()))
    monkeypatch.setattr(gathered_rows, "scratch_file", None)
    hidden = GatheredRows(SCHEMA.arrow_schema(), in_memory=True)
    for batch in rows.to_batches():
        hidden.add(batch)
    assert hidden.table() == rows
    monkeypatch.undo()
    monkeypatch.setattr(gathered_rows, "SPILL_BYTES", 2000)
    monkeypatch.setattr(publishing, "SPILL_BYTES", 2000)
    assert publish(store, 2, SPLIT, SplitRead(report_of(rows), rows, 5), SCHEMA, form).report == kept.report
    found = read_published(store, 2, SPLIT, form)
    assert found is not None
    if form == "arrow":
        assert pa.Table.from_batches(found.batches) == pa.Table.from_batches(kept.batches)
    else:
        files = [pq.read_table(pa.BufferReader(store.read(published_name(epoch, SPLIT)))) for epoch in (1, 2)]
        assert files[0] == files[1]


def test_no_room_for_a_large_split_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gathered_rows, "SPILL_BYTES", 2000)
    monkeypatch.setattr(gathered_rows, "scratch_file", full)
    gathered = GatheredRows(SCHEMA.arrow_schema())
    (batch,) = some_rows(1000).cast(SCHEMA.arrow_schema()).to_batches()
    with pytest.raises(SourceNotUsableError, match="No space left"):
        gathered.add(batch)
