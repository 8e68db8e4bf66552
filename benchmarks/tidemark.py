"""Runs Tidemark as users do: with a job file, in a separate process."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from devtools.job_process import start_tidemark

MASTER, CONF = "local[2]", {"spark.driver.memory": "2g"}
"""Spark's master and settings, for Tidemark and its peer."""

TIMEOUT_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Run:
    """Times and counts of one run.

    `wall_seconds`: from the start of the process to its end. `working_seconds`: from the first plan to the
    last epoch's commit, without what a start takes; 0 without an epoch. For Spark JDBC: from when its session was up.
    """

    wall_seconds: float
    working_seconds: float
    rows: int
    changes: int
    epochs: int


def orders_job(folder: Path, url: str, table: str, sink: dict[str, Any], *, schema: str = "d", **changes: Any) -> Path:
    """Writes a job file for one table to a new folder. Two splits are read at a time; other settings are the defaults."""
    folder.mkdir()
    job = {
        "job": "benchmark",
        "mode": "full+incremental",
        "trigger": "once",
        "checkpoint": "./checkpoint",
        "snapshot": {"parallelism": 2},
        "spark": {"master": MASTER, "conf": CONF},
        "source": {"url": url, "tables": [f"{schema}.{table}"]},
        "sink": sink,
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job | changes, sort_keys=False))
    return path


def run_tidemark(job: Path) -> Run:
    """Runs the job to its end, for the first time or again. Raises RuntimeError if it fails."""
    started = time.time()
    process = start_tidemark(job)
    try:
        code = process.wait(TIMEOUT_SECONDS)
    except BaseException:
        process.kill()
        raise
    wall_seconds = time.monotonic() - process.started
    if code != 0:
        raise RuntimeError(f"tidemark ended with {code}: {process.error_text()}")
    finished = process.events()[-1]
    checkpoint = job.parent / "checkpoint"
    begun = [moment for file in (checkpoint / "plans").glob("*") if (moment := file.stat().st_mtime) >= started]
    committed = [file.stat().st_mtime for file in (checkpoint / "committed").glob("*")]
    working_seconds = max(committed) - min(begun) if begun else 0.0
    return Run(wall_seconds, working_seconds, finished["rows"], finished["changes"], finished["epochs"])
