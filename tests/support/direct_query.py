"""One table as a Spark stream, as its users write it: options, sessions, queries, and what a Parquet sink then holds.

python -m tests.support.direct_query FOLDER URL TABLE    # until it is killed
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.support.jobs import SPARK
from tidemark.jobs.spark.source import TidemarkDataSource

ENDS_WITHIN_SECONDS = 300


@contextlib.contextmanager
def spark_session() -> Iterator[SparkSession]:
    """A session with the data source. The JVM ends with it."""
    builder = SparkSession.builder.master("local[2,4]").appName("direct").config("spark.ui.enabled", "false")
    for name, value in SPARK["conf"].items():
        builder = builder.config(name, value)
    session = builder.config("spark.sql.session.timeZone", "America/New_York").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(TidemarkDataSource)
    try:
        yield session
    finally:
        gateway = SparkContext._gateway
        session.stop()
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(60)
            SparkContext._gateway = SparkContext._jvm = None


def read_stream(session: SparkSession, folder: Path, url: str, table: str, **options: str) -> DataFrame:
    """A stream. Tidemark's checkpoint is `folder`/tidemark; `__` in an option's name means a dot."""
    reader = session.readStream.format("tidemark").option("checkpoint", str(folder / "tidemark"))
    reader = reader.option("url", url).option("table", table)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), value)
    return reader.load()


def writer(stream: DataFrame, folder: Path) -> DataStreamWriter:
    """A query. Its checkpoint is `folder`/query."""
    return stream.writeStream.option("checkpointLocation", str(folder / "query"))


def into_parquet(stream: DataFrame, folder: Path) -> DataStreamWriter:
    return writer(stream, folder).format("parquet").option("path", str(folder / "rows"))


def catch_up(query: DataStreamWriter) -> StreamingQuery:
    """Runs the query up to the log's end as of now."""
    started = query.trigger(availableNow=True).start()
    if not started.awaitTermination(ENDS_WITHIN_SECONDS):
        started.stop()
        raise AssertionError(f"the query did not end within {ENDS_WITHIN_SECONDS} s")
    return started


def parquet_rows(session: SparkSession, folder: Path) -> pa.Table:
    """The rows that Spark's file sink committed, in the log's order."""
    rows = session.read.parquet(str(folder / "rows")).toArrow()
    return rows.sort_by([("_commit_version", "ascending"), ("_seq", "ascending")])


def main(folder: Path, url: str, table: str) -> None:
    with spark_session() as session:
        stream = read_stream(session, folder, url, table, snapshot__split_rows="200", snapshot__parallelism="4")
        into_parquet(stream, folder).trigger(processingTime="100 milliseconds").start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
