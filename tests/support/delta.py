"""A Spark session with Delta Lake, as jobs open it, and the content of a Delta sink's tables."""

import fcntl
import itertools
import json
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tests.support.jobs import SPARK
from tidemark.conf.load import load_job_options
from tidemark.jobs.sinks import sink_needs
from tidemark.jobs.spark.session import open_session, stop_quietly
from tidemark.sinks.delta.sink import DeltaSink
from tidemark.sinks.sink import JobIdentity, PartResult, Schemas
from tidemark.state.change_batch import TRANSPORT, ChangeBatch, PartEnd, PartItem, PublishedFile, to_transport
from tidemark.state.checkpoint.store import CheckpointStore
from tidemark.state.parquet_rows import ParquetRows
from tidemark.state.table import TableId, TableSchema

WAIT_SECONDS = 60
FORGETFUL_METASTORE = "jdbc:derby:memory:tidemark;create=true"


def with_metastore(folder: Path, url: str = FORGETFUL_METASTORE) -> dict[str, Any]:
    """The job file's section `spark`, with a Hive metastore whose tables are below `folder`. Of a Derby database on disk one
    process at a time makes use."""
    log = f"-Dderby.stream.error.file={folder}/derby.log"
    return SPARK | {
        "conf": SPARK["conf"]
        | {
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.hadoop.javax.jdo.option.ConnectionURL": url,
            "spark.driver.extraJavaOptions": f"{SPARK['conf']['spark.driver.extraJavaOptions']} {log}",
        }
    }


@pytest.fixture(scope="session")
def delta_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests of a process."""
    folder = tmp_path_factory.mktemp("delta")
    spark = with_metastore(folder)
    job = {
        "job": "delta",
        "checkpoint": "./checkpoint",
        "source": {"url": "mysql://nobody:nothing@localhost/", "tables": ["a.b"]},
        "sink": {"type": "delta", "path": "./lake"},
        "spark": spark,
    }
    with Path(tempfile.gettempdir(), "tidemark-delta-jars.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Ivy's downloads can't run beside each other
        loaded = load_job_options(yaml.safe_dump(job), [], folder)
        session = open_session(loaded, sink_needs(loaded.sink).spark)
    yield session
    stop_quietly(session)


def jars_of(session: SparkSession) -> dict[str, str]:
    """A setting that gives a job the session's jars. Otherwise Spark resolves the package again at each of its starts."""
    return {"spark.jars": session.sparkContext.getConf().get("spark.jars", "")}


class Held:
    """For mapInArrow: tasks that have rows say that they run, then wait until somebody else has written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                (self.folder / "reached").touch()
                wait_for(self.folder / "written")
            yield batch


def wait_for(file: Path) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not file.exists() and time.monotonic() < until:
        time.sleep(0.05)


def epoch_of(session: SparkSession, items: Sequence[PartItem]) -> DataFrame:
    """The rows of an epoch as the data source gives them, in one Spark partition."""
    rows = pa.Table.from_batches(map(to_transport, items), schema=TRANSPORT)
    return session.createDataFrame(rows, from_arrow_schema(TRANSPORT)).coalesce(1)


def write_epochs(
    sink: Any,
    job: JobIdentity,
    items: Sequence[PartItem],
    schemas: Schemas,
    *,
    staged: bool = True,
    is_local: bool = True,
    emptied: Collection[TableId] = (),
) -> list[PartResult]:
    """Writes each epoch of `items`, whose parts follow one another: `staged` as files (`is_local`: as in local mode), or as
    rows of Spark's tasks. `emptied`: as for `EpochSink.write_epoch`."""
    ends: list[PartEnd] = []
    for _, epoch in itertools.groupby(items, lambda item: item.epoch):
        if staged:
            with sink.staging(job, is_local=is_local, tell=pytest.fail) as stager:
                ends += sink.write_staged([stager.stage(list(epoch), schemas)], job, schemas, emptied)
        else:
            ends += sink.write_epoch(epoch_of(sink.session(), list(epoch)), job, schemas, emptied)
    return [PartResult(end.epoch, end.part, end.row_count, skipped=False) for end in ends]


def published(store: CheckpointStore, items: Sequence[PartItem], schema: TableSchema) -> list[PartItem]:
    """The part of a split, with its rows in a file that `store` has, as a job publishes splits for Spark."""
    *changes, end = items
    assert isinstance(end, PartEnd)
    batches = [change.rows for change in changes if isinstance(change, ChangeBatch)]
    buffer, name = pa.BufferOutputStream(), f"published/e{end.epoch}-{end.part}"
    rows = ParquetRows(buffer, schema)
    rows.write(batches)
    rows.close()
    store.create(name, buffer.getvalue())
    file = PublishedFile(end.epoch, end.part, 0, schema.table, schema.version, end.row_count, name)
    return [file, replace(end, seq=1)]


def rows_of_delta(sink: Any, schema: TableSchema, *, deleted: bool | None = None) -> list[tuple[Any, ...]]:
    """The captured columns of every row; or only of those that the source has deleted, or has not."""
    names = [column.name for column in schema.captured]
    table = read_delta(sink, schema)
    if deleted is not None:
        table = table.filter(pc.equal(table.column("_deleted"), deleted))
    table = table.select(names)
    # Python's dates begin in year 1, ours do not.
    columns = [
        column.cast(pa.int32() if pa.types.is_date(column.type) else pa.int64())
        if pa.types.is_temporal(column.type)
        else column
        for column in table.columns
    ]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def read_delta(sink: DeltaSink, schema: TableSchema) -> pa.Table:
    return sink.session().table(sink.lake.location_of(schema.table).relation).toArrow()


def commits_of(sink: DeltaSink, schema: TableSchema) -> list[dict[str, Any]]:
    """The operation and metrics of each commit, the oldest first."""
    history = sink.session().sql(f"DESCRIBE HISTORY {sink.lake.location_of(schema.table).relation}").collect()
    return [row.asDict() for row in sorted(history, key=lambda row: row["version"])]


def transactions_of(sink: DeltaSink, schema: TableSchema) -> list[tuple[str, int]]:
    """The application and version of each commit that has them, the oldest first."""
    found = []
    detail = sink.session().sql(f"DESCRIBE DETAIL {sink.lake.location_of(schema.table).relation}").collect()[0]
    log = Path(detail["location"].removeprefix("file:"), "_delta_log")
    for commit in sorted(log.glob("*.json")):
        actions = map(json.loads, commit.read_text().splitlines())
        found += [(action["txn"]["appId"], action["txn"]["version"]) for action in actions if "txn" in action]
    return found


def newest_version(folder: Path) -> int:
    """The newest version of the Delta table in a folder."""
    return max(int(file.stem) for file in (folder / "_delta_log").glob("*.json"))
