"""Job files for tests, and runs of them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from devtools.databases import Database
from devtools.job_process import ROOT, Process, start_process, start_tidemark

__all__ = [
    "BY_DRIVER",
    "BY_SPARK",
    "ROOT",
    "SPARK",
    "Process",
    "run_to_end",
    "running",
    "source_of",
    "start_process",
    "start_tidemark",
    "write_job",
    "write_workload_job",
]

SPARK = {
    "master": "local[2]",
    "conf": {
        "spark.driver.memory": "700m",
        # These JVMs live for seconds, on two cores that others want, too.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m",
        # Each task that joins or aggregates takes a page, of 16 MB otherwise, for a few rows.
        "spark.buffer.pageSize": "1m",
        "spark.sql.codegen.wholeStage": "false",
        # Compiling the expressions of a query takes longer than evaluating them for a few rows.
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    },
}

BY_SPARK = ("--set", "snapshot.driver_rows=0", "--set", "log.driver_bytes=0")
"""Arguments of a run whose splits and log are all read by Spark."""

BY_DRIVER = ("--set", "snapshot.split_rows=2000", "--set", "snapshot.parallelism=16")
"""Arguments of a run that reads small tables without Spark: they have few splits, and the first epoch has them all."""


def source_of(database: Database, **settings: Any) -> dict[str, Any]:
    """A job file's section `source` for all tables of a database. A table's error stops the job: most tests want to see it."""
    section: dict[str, Any] = {"url": database.server.url, "tables": [f"{database.schema}.*"], "on_table_error": "stop"}
    if database.kind == "postgres":
        section |= {"url": database.url, "slot": database.name, "publication": database.name}
    return section | settings


def write_job(folder: Path, **changes: Any) -> Path:
    """A job file in `folder`, with the checkpoint beside it; sections in `changes` are merged over the defaults. A
    table that is altered, and a log that is lost, stop the job: most tests want to see the error."""
    job: dict[str, Any] = {
        "job": "test-job",
        "mode": "full+incremental",
        "trigger": "once",
        "checkpoint": "./checkpoint",
        "snapshot": {"split_rows": 500, "parallelism": 2},
        "spark": SPARK,
    }
    job.update(changes)
    if "sink" in job:
        job["sink"] = {"on_schema_change": "stop"} | job["sink"]
    if "source" in job:
        job["source"] = {"on_log_lost": "stop"} | job["source"]
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job, sort_keys=False))
    return path


def write_workload_job(folder: Path, source: dict[str, Any], target: Database | None = None, **changes: Any) -> Path:
    """A job of the tables of `tests.support.workload`, a few splits each: into files in `folder`/out, or into tables `copy_…`
    of `target`."""
    sink = {"type": "files", "path": str(folder / "out")}
    if target is not None:
        sink = {"type": "mirror", "url": target.url, "table": "copy_{table}"}
    return write_job(folder, source=source, snapshot={"split_rows": 20, "parallelism": 2}, sink=sink, **changes)


@contextlib.contextmanager
def running(job: Path, *arguments: str, environment: dict[str, str] | None = None) -> Iterator[Process]:
    """A run that is killed when the block ends, if it still lives."""
    process = start_tidemark(job, *arguments, environment=environment)
    try:
        yield process
    finally:
        process.kill()


def run_to_end(job: Path, *arguments: str, command: str = "run", expect: int = 0) -> Process:
    """Runs until the end and checks the exit code."""
    process = start_tidemark(job, *arguments, command=command)
    try:
        code = process.wait()
    except BaseException:
        process.kill()
        raise
    assert code == expect, f"exit code {code}, {expect} expected: {process.error_text()}"
    return process
