"""Peak memory of the job's processes: a table ten times as large, and a transaction ten times as large."""

import shutil
from typing import Any

from benchmarks.bench import Bench
from benchmarks.processes import JOB, Sampler
from benchmarks.report import Cell, print_table
from benchmarks.tidemark import MASTER, orders_job, run_tidemark


def run(bench: Bench) -> None:
    assert bench.warmed_up
    source, rows = bench.source, list[list[Cell]]()
    for row_count in (bench.rows // 5, bench.rows * 2):
        table = source.orders(f"rows_{row_count}", row_count)
        rows.append([f"snapshot of {row_count:,} rows", *_peaks(bench, table, row_count, mode="full")])
    for row_count in (bench.rows // 10, bench.rows):
        table = source.orders(f"transaction_{row_count}", 0)
        source.forget()
        source.execute(f"INSERT INTO {table} SELECT * FROM rows_{bench.rows * 2} WHERE id <= {row_count}")
        start = {"start": {"file": source.start.file, "pos": source.start.pos}}
        peaks = _peaks(bench, table, row_count, mode="incremental", log=start)
        rows.append([f"one transaction of {row_count:,} rows", *peaks])
    print_table(
        "Peak memory of a job into Parquet, MiB",
        ["", "all", *JOB],
        rows,
        "Proportional set size, sampled five times a second; the peaks of the roles need not fall together. local[2] with "
        "Tidemark's own defaults: the JVM is driver and executor, and takes of its heap of 1 GiB what it is given.",
    )


def _peaks(bench: Bench, table: str, row_count: int, **changes: Any) -> list[Cell]:
    """MiB: of the whole job, then of each role."""
    folder = bench.folder()
    sink = {"type": "files", "path": str(folder / "out")}
    job = orders_job(folder, bench.server_url, table, sink, spark={"master": MASTER}, **changes)
    with Sampler(memory=True) as sampler:
        run = run_tidemark(job)
    if run.rows + run.changes != row_count:
        raise RuntimeError(f"{run.rows} rows and {run.changes} changes were copied, {row_count} expected")
    shutil.rmtree(folder)
    print(f"{table}: {run.wall_seconds:.1f} s", flush=True)
    return [sampler.peak_of_job_bytes >> 20, *(sampler.peak_bytes[role] >> 20 for role in JOB)]
