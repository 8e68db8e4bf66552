"""Jobs whose rows and log Spark reads: MySQL to Parquet files, PostgreSQL to a mirror, and MySQL to Delta, if Spark has a build
of it. `smoke_spark.sh` runs this with each version of Spark."""

import argparse
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pyspark
import yaml
from pyspark.sql import SparkSession

import tidemark
from devtools.databases import Database, fresh_database
from devtools.job_process import ROOT, start_tidemark
from devtools.servers import start_server
from tidemark.sinks.delta.settings import PACKAGES, delta_settings

ROWS = 1000
SPLIT_ROWS = 300
Sums = tuple[int, int]
"""The number of rows, and the sum of their column `v`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", help="the Spark that must be installed, such as 4.2")
    version = parser.parse_args().version
    if not pyspark.__version__.startswith(f"{version}."):
        sys.exit(f"pyspark {pyspark.__version__} is installed, not {version}")
    if Path(tidemark.__file__).is_relative_to(ROOT / "src"):
        sys.exit("the wheel is not installed")
    _mysql_to_parquet()
    _postgres_to_mirror()
    if version in PACKAGES:
        _mysql_to_delta()
    print(f"pyspark {pyspark.__version__}: {'all' if version in PACKAGES else 'both'} jobs are right.")


def _mysql_to_parquet() -> None:
    with ExitStack() as stack:
        source = stack.enter_context(fresh_database(stack.enter_context(start_server("mysql"))))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        out = folder / "out"
        sink = {"type": "files", "path": str(out), "format": "parquet"}

        def copied() -> Sums:
            files = [str(path) for path in out.glob("*/*.parquet")]
            changes = pyarrow.dataset.dataset(files).to_table(["id", "v", "_commit_version", "_seq"])
            newest = changes.sort_by([("_commit_version", "ascending"), ("_seq", "ascending")]).to_pylist()
            rows = {row["id"]: row["v"] for row in newest}
            return len(rows), sum(rows.values())

        _run_twice(folder, source, {"url": source.server.url, "tables": [f"{source.name}.t"]}, sink, copied)


def _postgres_to_mirror() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(start_server("postgres"))
        source, target = (stack.enter_context(fresh_database(server)) for _ in range(2))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sink = {"type": "mirror", "url": target.url, "table": "public.{table}"}
        section = {"url": source.url, "tables": ["public.t"], "slot": source.name, "publication": source.name}
        _run_twice(folder, source, section, sink, lambda: _sums(target))


def _mysql_to_delta() -> None:
    with ExitStack() as stack:
        source = stack.enter_context(fresh_database(stack.enter_context(start_server("mysql"))))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        out = folder / "out"

        def copied() -> Sums:
            builder = SparkSession.builder.master("local[1]")
            for name, value in delta_settings({}, submitted=False).items():
                builder = builder.config(name, value)
            session = builder.getOrCreate()
            try:
                rows = session.read.format("delta").load(f"{out}/{source.name}.t").select("v").collect()
            finally:
                session.stop()
            return len(rows), sum(row["v"] for row in rows)

        sink = {"type": "delta", "path": str(out)}
        _run_twice(folder, source, {"url": source.server.url, "tables": [f"{source.name}.t"]}, sink, copied)


def _run_twice(
    folder: Path, source: Database, section: dict[str, Any], sink: dict[str, Any], copied: Callable[[], Sums]
) -> None:
    """The rows are read by Spark's tasks, and in the second run the log."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL)")
    source.execute(f"INSERT INTO t VALUES {', '.join(f'({number}, {number * 7})' for number in range(ROWS))}")
    settings = {
        "job": "smoke-spark",
        "checkpoint": "./checkpoint",
        "source": section,
        "snapshot": {"split_rows": SPLIT_ROWS, "parallelism": 2, "driver_rows": 0},
        "log": {"driver_bytes": 0},
        "sink": sink,
        "spark": {"master": "local[2]"},
    }
    job = folder / "job.yaml"
    job.write_text(yaml.safe_dump(settings))
    _run(job, source, copied)
    source.execute("UPDATE t SET v = v + 1 WHERE id < 10", f"INSERT INTO t VALUES ({ROWS}, 5)")
    _run(job, source, copied)


def _run(job: Path, source: Database, copied: Callable[[], Sums]) -> None:
    process = start_tidemark(job)
    try:
        code = process.wait()
    finally:
        process.kill()
    if code != 0:
        sys.exit(f"the job ended with {code}:\n{process.error_text()}")
    if not any(event["event"] == "spark" for event in process.events()):
        sys.exit("the job did not use Spark")
    expected, found = _sums(source), copied()
    if found != expected:
        sys.exit(f"the copy has {found} (rows, sum), the source {expected}")


def _sums(database: Database) -> Sums:
    ((rows, total),) = database.query("SELECT count(*), sum(v) FROM t")
    return int(rows), int(total)


if __name__ == "__main__":
    main()
