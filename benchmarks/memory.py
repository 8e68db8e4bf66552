"""Peak memory of a job's processes, for tables and for transactions of two sizes, one ten times the other."""

import shutil
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.processes import JOB, Sampler
from benchmarks.report import Cell, print_table
from benchmarks.tidemark import MASTER, orders_job, run_tidemark


def run(bench: Bench) -> None:
    """Measures jobs that read MySQL."""
    assert bench.warmed_up
    source, rows = bench.source, list[list[Cell]]()
    for row_count in (bench.rows // 5, bench.rows * 2):
        table = source.orders(f"rows_{row_count}", row_count)
        job = _job(bench.folder(), bench.server_url, table, mode="full")
        rows.append([f"snapshot of {row_count:,} rows", *_peaks(job, row_count)])
    for row_count in (bench.rows // 10, bench.rows):
        table = source.orders(f"transaction_{row_count}", 0)
        source.forget()
        source.execute(f"INSERT INTO {table} SELECT * FROM rows_{bench.rows * 2} WHERE id <= {row_count}")
        start = {"start": {"file": source.start.file, "pos": source.start.pos}}
        job = _job(bench.folder(), bench.server_url, table, mode="incremental", log=start)
        rows.append([f"one transaction of {row_count:,} rows", *_peaks(job, row_count)])
    _print("MySQL", rows)


def run_postgres(bench: Bench) -> None:
    assert bench.warmed_up
    source, rows = bench.postgres, list[list[Cell]]()
    for row_count in (bench.rows // 5, bench.rows * 2):
        table = source.orders(f"rows_{row_count}", row_count)
        job = _job(bench.folder(), source.database.url, table, schema="public", mode="full")
        rows.append([f"snapshot of {row_count:,} rows", *_peaks(job, row_count)])
    for row_count in (bench.rows // 10, bench.rows):
        table = source.orders(f"transaction_{row_count}", 0)
        job = _job(bench.folder(), source.database.url, table, schema="public", mode="incremental")
        run_tidemark(job)
        source.database.execute(f"INSERT INTO {table} SELECT * FROM rows_{bench.rows * 2} WHERE id <= {row_count}")
        rows.append([f"one transaction of {row_count:,} rows", *_peaks(job, row_count)])
    _print("PostgreSQL", rows)


def _print(source: str, rows: list[list[Cell]]) -> None:
    print_table(
        f"Peak memory of a job from {source} into Parquet, MiB",
        ["", "all", *JOB],
        rows,
        "Proportional set size, sampled five times a second; the roles may have their peaks at different times. local[2] "
        "with Tidemark's own defaults: the JVM is driver and executor, and may use its whole heap of 1 GiB.",
    )


def _job(folder: Path, url: str, table: str, **changes: Any) -> Path:
    sink = {"type": "files", "path": str(folder / "out")}
    return orders_job(folder, url, table, sink, spark={"master": MASTER}, **changes)


def _peaks(job: Path, row_count: int) -> list[Cell]:
    """Runs the job. Returns peak memory in MiB: of the whole job, then of each role."""
    with Sampler(memory=True) as sampler:
        run = run_tidemark(job)
    if run.rows + run.changes != row_count:
        raise RuntimeError(f"{run.rows} rows and {run.changes} changes were copied, {row_count} expected")
    shutil.rmtree(job.parent)
    print(f"{row_count:,} rows: {run.wall_seconds:.1f} s", flush=True)
    return [sampler.peak_of_job_bytes >> 20, *(sampler.peak_bytes[role] >> 20 for role in JOB)]
