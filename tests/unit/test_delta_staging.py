"""Tasks stage their rows as Parquet files for Spark: what is in the files, in how much memory, and what is left of them."""

import stat
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
    log_part,
    snapshot_part,
)
from tests.support.s3 import s3_server
from tidemark.sinks.delta import buckets, staging, staging_places
from tidemark.sinks.delta.epoch_rows import EpochTable, StagedRows
from tidemark.sinks.delta.rows import NULL_PARTITION, schema_of
from tidemark.sinks.delta.staging import DeltaStager
from tidemark.sinks.delta.staging_places import FolderPlace, remove_staged, staging_folder, staging_objects
from tidemark.sinks.delta.tables import Style
from tidemark.sinks.sink import JobIdentity
from tidemark.state.change_batch import PartEnd, PartItem, PublishedFile
from tidemark.state.checkpoint.object_store import S3Store
from tidemark.state.checkpoint.store import CheckpointStore, LocalStore, open_store
from tidemark.state.errors import SinkError

JOB = JobIdentity("7b7b7b7b-0000-4000-8000-000000000002", "staging")


def order(number: int, customer: str = "Ada") -> tuple[Any, ...]:
    return number, customer, Decimal("1.50"), 0, None


def stager(folder: Path, style: Style = "mirror", *, keeps_deleted: bool = False) -> DeltaStager:
    return DeltaStager(FolderPlace(str(folder), "/checkpoint"), style, keeps_deleted)


def staged_rows(folder: Path, items: list[Any], *, keeps_deleted: bool = False) -> dict[str, list[str]]:
    """The rows in the files of each table, without the order of rows."""
    report = stager(folder, keeps_deleted=keeps_deleted).stage(items, SCHEMAS)
    return {str(file.table): sorted(map(repr, pq.read_table(file.path).to_pylist())) for file in report.files}


def test_rows_of_splits_have_the_columns_that_spark_writes(tmp_path: Path) -> None:
    items = [*snapshot_part(1, 1, ORDERS, [order(1)]), *snapshot_part(1, 2, ORDERS, [order(2)])]
    for style, shape in (("mirror", "rows"), ("changelog", "changes")):
        report = stager(tmp_path, style).stage(items, SCHEMAS)  # type: ignore[arg-type]
        (file,) = report.files
        assert file.shape == shape
        rows = pq.read_table(file.path)
        assert rows.schema.names == schema_of(ORDERS, shape).names  # type: ignore[arg-type]
        assert rows.column("id").to_pylist() == [1, 2]
    assert [head["row_count"] for head in report.heads] == [1, 1, 1, 1]


def test_a_published_file_is_not_written_again(tmp_path: Path) -> None:
    file = PublishedFile(1, "s1", 0, ORDERS.table, 1, 5, "published/e1-s1")
    report = stager(tmp_path).stage([file, PartEnd(1, "s1", 1, 5)], SCHEMAS)
    assert [(found.path, found.shape) for found in report.files] == [("/checkpoint/published/e1-s1", "rows")]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keeps_deleted", [False, True])
@pytest.mark.parametrize("truncates", [False, True])
def test_changes_beyond_the_memory_have_the_same_net_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, keeps_deleted: bool, truncates: bool
) -> None:
    """Each key has many changes, in many batches. Some have none after the TRUNCATE. NOTES can't be divided: the log leaves
    values out."""
    transactions: list[Any] = [(ORDERS, [(INSERT, order(n)) for n in range(90)])]
    for time in range(5):
        transactions.append((ORDERS, [(UPDATE, order(n, f"{time} {n}")) for n in range(60)]))
        transactions.append((NOTES, [(UPDATE, (1, "en", time, UNCHANGED, b"scan", UNCHANGED))]))
    transactions += [(ITEMS, [(INSERT, (n, "a", n)), (INSERT, (n, "b", n))]) for n in range(20)]
    transactions += [(ORDERS, [(DELETE, order(n)) for n in range(30)])]
    transactions.append((NOTES, [(UPDATE, (1, "en", 9, UNCHANGED, b"scan", UNCHANGED))]))
    if truncates:
        transactions.insert(4, (ORDERS, [(TRUNCATE, [None] * 5)]))
    epoch = log_part(2, *transactions)
    expected = staged_rows(tmp_path, epoch, keeps_deleted=keeps_deleted)
    assert set(expected) == {"shop.orders", "shop.items", "public.notes"}
    spooled, counts = list[int](), list[int]()
    to_spool, buckets_for = staging._TableChanges.to_spool, buckets.buckets_for
    monkeypatch.setattr(staging._TableChanges, "to_spool", lambda changes: (spooled.append(1), to_spool(changes)))
    monkeypatch.setattr(staging, "buckets_for", lambda *given: counts.append(buckets_for(*given)) or counts[-1])
    monkeypatch.setattr(staging, "MEMORY_BYTES", 2000)
    monkeypatch.setattr(buckets, "WORKER_BYTES", 4000)
    assert staged_rows(tmp_path, epoch, keeps_deleted=keeps_deleted) == expected
    assert len(spooled) > 3
    assert counts[0] > 2
    assert 1 in counts
    assert all(path.suffix == ".parquet" for path in tmp_path.iterdir())


def test_each_attempt_writes_files_of_its_own(tmp_path: Path) -> None:
    """Spark reads those of the reports alone. An attempt that fails reports none."""

    def broken(items: list[Any]) -> Iterator[PartItem]:
        yield from items[:1]
        raise OSError("gone")

    items = snapshot_part(1, 1, ORDERS, [order(1)])
    with pytest.raises(OSError, match="gone"):
        stager(tmp_path).stage(broken(items), SCHEMAS)
    reports = [stager(tmp_path).stage(items, SCHEMAS) for _ in range(2)]
    paths = {file.path for report in reports for file in report.files}
    assert len(paths) == 2
    assert len(list(tmp_path.iterdir())) == 3


def test_values_that_no_partition_can_have_are_reported(tmp_path: Path) -> None:
    rows = [(1, "a", 1), (2, NULL_PARTITION, 1)]
    for items in (snapshot_part(1, 1, ITEMS, rows), log_part(1, (ITEMS, [(INSERT, row) for row in rows]))):
        (file,) = stager(tmp_path).stage(items, SCHEMAS).files
        assert [column for column, _ in file.unfit] == ["sku"]
        (fit,) = stager(tmp_path).stage(snapshot_part(1, 1, ITEMS, rows[:1]), SCHEMAS).files
        assert fit.unfit == ()


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CheckpointStore]:
    """A checkpoint in a folder, and one in a bucket."""
    monkeypatch.setattr(staging_places.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    if request.param == "folder":
        yield LocalStore(str(tmp_path / "checkpoint"))
        return
    with s3_server() as bucket:
        yield open_store(f"{bucket}/job")


@pytest.fixture
def bucket() -> Iterator[S3Store]:
    with s3_server() as url:
        yield S3Store(f"{url.replace('s3a', 's3')}/a/job")


def test_nobody_else_looks_into_the_folder_and_nothing_is_left(store: CheckpointStore, tmp_path: Path) -> None:
    with staging_folder(store, JOB, is_local=True) as place:
        folder = Path(place.folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        DeltaStager(place, "mirror", False).stage(snapshot_part(1, 1, ORDERS, [order(1)]), SCHEMAS)
    assert list(tmp_path.rglob("*.parquet")) == []
    assert not folder.exists()


def test_the_next_driver_removes_what_a_killed_one_has_staged(store: CheckpointStore) -> None:
    with staging_folder(store, JOB, is_local=True) as place:
        folder = Path(place.folder)
        DeltaStager(place, "mirror", False).stage(snapshot_part(1, 1, ORDERS, [order(1)]), SCHEMAS)
        remove_staged(store, JobIdentity("7b7b7b7b-0000-4000-8000-000000000003", "another job"))
        # The checkpoint's folder is the job's own. Of temporary files, only this job's go.
        assert folder.exists() == isinstance(store, S3Store)
        remove_staged(store, JOB)
        assert not folder.exists()


@pytest.mark.parametrize("style", ["mirror", "changelog"])
def test_files_of_a_bucket_are_put_there_whole_and_end_at_a_size(
    bucket: S3Store, monkeypatch: pytest.MonkeyPatch, style: Style
) -> None:
    """They are never on a disk. The names by which Spark reads them are those of Hadoop."""
    monkeypatch.setattr(staging_places, "OBJECT_BYTES", 1000)
    monkeypatch.setattr(staging, "ROW_GROUP_BYTES", 1000)
    items = [
        item for n in range(4) for item in snapshot_part(1, n, ORDERS, [order(m) for m in range(n * 40, n * 40 + 40)])
    ]
    with staging_objects(bucket, "driver") as place:
        report = DeltaStager(place, style, False).stage(items, SCHEMAS)
        names = [f"for_spark/driver/{file.path.rpartition('/')[2]}" for file in report.files]
        assert [file.path for file in report.files] == [f"{bucket.url.replace('s3:', 's3a:')}/{name}" for name in names]
        contents = [pq.read_table(pa.BufferReader(bucket.read(name))) for name in names]
        assert sorted(names) == bucket.list("for_spark/driver")
    assert len(names) > 2
    assert [file.row_count for file in report.files] == [content.num_rows for content in contents]
    assert [n for content in contents for n in content.column("id").to_pylist()] == list(range(160))
    assert bucket.list("for_spark/driver") == []


def test_spark_reads_the_published_files_of_a_bucket(bucket: S3Store) -> None:
    file = PublishedFile(1, "s1", 0, ORDERS.table, 1, 5, "published/e1-s1")
    with staging_objects(bucket, "driver") as place:
        report = DeltaStager(place, "mirror", False).stage([file, PartEnd(1, "s1", 1, 5)], SCHEMAS)
        assert bucket.list("for_spark/driver") == []
    assert [found.path for found in report.files] == [f"{bucket.url.replace('s3:', 's3a:')}/published/e1-s1"]


def test_what_late_tasks_and_killed_drivers_have_left_in_a_bucket_goes(bucket: S3Store) -> None:
    """Each attempt removes what tasks of the attempts before it have put there late. The files of another driver stay: this one
    may have been frozen, and replaced."""
    for name in ("for_spark/driver/late.parquet", "for_spark/killed/left.parquet"):
        bucket.create(name, b"rows")
    with staging_objects(bucket, "driver"):
        pass
    assert bucket.list("for_spark/driver") == []
    assert bucket.list("for_spark/killed") == ["for_spark/killed/left.parquet"]
    remove_staged(bucket, JOB)
    assert bucket.list("for_spark") == []


def test_a_file_of_a_bucket_without_its_rows_is_found_and_so_is_a_value_that_no_partition_can_have(
    bucket: S3Store,
) -> None:
    rows = [(1, "a", 1), (2, NULL_PARTITION, 1)]
    with staging_objects(bucket, "driver") as place:
        (file,) = DeltaStager(place, "mirror", False).stage(snapshot_part(1, 1, ITEMS, rows), SCHEMAS).files
        table = EpochTable(
            ITEMS.table, 1, 1, is_log=False, byte_count=0, truncates=False, ranges=(), partitioned_by=("sku",)
        )
        published = StagedRows([replace(file, unfit=(), is_published=True)], table)
        published._require_whole()
        with pytest.raises(SinkError, match="column sku of a row"):
            published._require_fit(ITEMS, "rows")
        with pytest.raises(SinkError, match="has 2 rows, but 3 were written"):
            StagedRows([replace(file, row_count=3)], table)._require_whole()
    with pytest.raises(SinkError, match="is damaged"):
        published._require_whole()
