"""A run of Tidemark as its users start it: a job file and a process of its own."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.jobs import start_tidemark, write_job

MASTER, CONF = "local[2]", {"spark.driver.memory": "2g"}
"""Of Spark, for Tidemark and its peer."""

TIMEOUT_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Run:
    """`wall_seconds`: of the process, from its start to its end. `query_seconds`: from when Spark was up to the last
    epoch's commit; the start of Python, JVM and session is not in it."""

    wall_seconds: float
    query_seconds: float
    rows: int
    changes: int
    epochs: int


def orders_job(folder: Path, url: str, table: str, sink: dict[str, Any], *, schema: str = "d", **changes: Any) -> Path:
    """A job file for one table, in a new folder; splits and log as they are by default, two splits at a time."""
    folder.mkdir()
    source = {"url": url, "tables": [f"{schema}.{table}"]}
    settings = {
        "snapshot": {"parallelism": 2},
        "spark": {"master": MASTER, "conf": CONF},
        "source": source,
        "sink": sink,
    }
    return write_job(folder, **(settings | changes))


def run_tidemark(job: Path) -> Run:
    """To its end, for the first time or again. Raises RuntimeError if it fails."""
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
    begun = [f.stat().st_mtime for f in (checkpoint / "spark/metadata", *(checkpoint / "plans").glob("*"))]
    committed = max(f.stat().st_mtime for f in (checkpoint / "spark/commits").iterdir())
    query_seconds = committed - min(moment for moment in begun if moment >= started)
    return Run(wall_seconds, query_seconds, finished["rows"], finished["changes"], finished["epochs"])
