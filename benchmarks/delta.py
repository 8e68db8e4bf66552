"""Processor time of copying a MySQL table into Delta and of catching up with its log, next to Spark's own JDBC reader."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.processes import DRIVER, JVM, WORKERS, Sampler
from benchmarks.report import Cell, print_table, ratio
from benchmarks.spark_jdbc import FETCH_ROWS, PARTITIONS
from benchmarks.tidemark import Run, orders_job, run_tidemark
from devtools.job_process import start_tidemark

ROWS_OF_A_TRANSACTION = 1000
ROUNDS = 2
JDBC_OPTIONS = "?sslMode=DISABLED&allowPublicKeyRetrieval=true&useCursorFetch=true"
JDBC = f"Spark JDBC, cursor of {FETCH_ROWS:,} rows"
HEADER = ("", "whole process, s", "working, s", "epochs", "CPU s: all", "driver", "JVM", "workers", "source")


def run(bench: Bench) -> None:
    """Lets a job copy the rows and then catch up, `ROUNDS` times, each time a new table and copy. Compares the last copy with
    its source."""
    assert bench.warmed_up
    rows: list[list[Cell]] = []
    loads, peers = list[float](), list[float]()
    change_count = bench.rows // 5
    for number in range(1, ROUNDS + 1):
        table = bench.source.orders(f"to_delta_{number}", bench.rows)
        bench.source.query(f"SELECT SUM(LENGTH(note)) FROM {table}")  # loads the table into the buffer pool
        row, cpu = _spark(bench, table)
        rows.append([f"{JDBC}, {number}", *row])
        peers.append(cpu)
        sink = {"type": "delta", "path": "./lake"}
        job = orders_job(bench.folder(), bench.server_url, table, sink)
        row, cpu = _tidemark(bench, job, rows=bench.rows)
        rows.append([f"Tidemark: first load, {number}", *row])
        loads.append(cpu)
        bench.source.change(table, change_count, transaction_rows=ROWS_OF_A_TRANSACTION)
        row, _ = _tidemark(bench, job, changes=change_count)
        rows.append([f"Tidemark: {change_count:,} changes, {number}", *row])
        if number == ROUNDS:
            _require_equal(job)
        shutil.rmtree(job.parent)
    print_table(
        f"Delta: {bench.rows:,} rows of MySQL, then {change_count:,} changes in transactions of "
        f"{ROWS_OF_A_TRANSACTION:,} rows",
        HEADER,
        rows,
        f"First load: Spark JDBC needs {ratio(min(peers), min(loads))} the processor time. It reads {PARTITIONS} "
        'partitions by the key and writes with `df.write.format("delta")`.',
        "local[2]; half updates, a quarter inserts, a quarter deletes. `tidemark reconcile` finds that the copy is the source.",
    )


def _tidemark(bench: Bench, job: Path, *, rows: int = 0, changes: int = 0) -> tuple[list[Cell], float]:
    with Sampler({bench.source.server.port: "source"}) as sampler:
        run = run_tidemark(job)
    if (run.rows, run.changes) != (rows, changes):
        raise RuntimeError(f"{run.rows} rows and {run.changes} changes, {rows} and {changes} expected")
    return _cells(run, sampler.cpu_seconds())


def _spark(bench: Bench, table: str) -> tuple[list[Cell], float]:
    server, folder = bench.source.server, bench.folder()
    url = f"jdbc:mysql://{server.host}:{server.port}/d{JDBC_OPTIONS}"
    words = [url, server.user, table, str(bench.rows), str(folder), "delta"]
    with Sampler({server.port: "source"}) as sampler:
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.spark_jdbc", *words], check=True, capture_output=True, text=True
        )
        wall_seconds = time.monotonic() - started
    moments: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    shutil.rmtree(folder)
    return _cells(Run(wall_seconds, moments["written"] - moments["up"], bench.rows, 0, 0), sampler.cpu_seconds())


def _cells(run: Run, cpu: Mapping[str, float]) -> tuple[list[Cell], float]:
    of_job = [cpu.get(role, 0.0) for role in (DRIVER, JVM, WORKERS)]
    return [run.wall_seconds, run.working_seconds, run.epochs, sum(of_job), *of_job, cpu.get("source", 0.0)], sum(
        of_job
    )


def _require_equal(job: Path) -> None:
    process = start_tidemark(job, command="reconcile")
    try:
        code = process.wait()
    except BaseException:
        process.kill()
        raise
    if code != 0:
        raise RuntimeError(f"reconcile ended with {code}: {process.error_text()}")
