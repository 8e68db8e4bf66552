"""How much faster Spark's tasks read splits with two cores than with one. All processes have these cores, the source's server,
too: so a server that is busy on a third core can't hide what the tasks do not share out."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.processes import JOB, Sampler
from benchmarks.report import Cell, print_table, ratio, thousands
from benchmarks.tidemark import CONF, orders_job, run_tidemark
from devtools.server_supervisor import descendants

TABLE = "orders_for_cores"
COUNTS = (1, 2)
ROUNDS = 2


def run(bench: Bench) -> None:
    assert bench.warmed_up
    source = bench.source
    source.orders(TABLE, bench.rows)
    source.query(f"SELECT SUM(LENGTH(note)) FROM {TABLE}")  # loads the table into the buffer pool
    cores = sorted(os.sched_getaffinity(0))
    rows, speeds = list[list[Cell]](), list[float]()
    for count in COUNTS:
        if count > len(cores):
            raise RuntimeError(f"this machine has {len(cores)} core, {count} are needed")
        best = None
        for _ in range(ROUNDS):
            folder = bench.folder()
            job = orders_job(
                folder,
                bench.server_url,
                TABLE,
                {"type": "files", "path": str(folder / "out")},
                snapshot={"parallelism": count, "driver_rows": 0},
                spark={"master": f"local[{count}]", "conf": CONF},
            )
            with _pinned(cores[:count]), Sampler({source.server.port: "source"}) as sampler:
                found = run_tidemark(job)
            cpu = sampler.cpu_seconds()
            if best is None or found.working_seconds < best[0].working_seconds:
                best = (found, cpu["source"], sum(cpu[role] for role in JOB))
        assert best is not None
        measured, source_seconds, job_seconds = best
        speeds.append(measured.rows / measured.working_seconds)
        rows.append([str(count), measured.working_seconds, thousands(speeds[-1]), source_seconds, job_seconds])
    print_table(
        f"Splits read by Spark's tasks: {bench.rows:,} rows of MySQL into Parquet, by cores",
        ["cores", "working, s", "rows/s", "CPU s: source", "job"],
        rows,
        f"With {COUNTS[1]} cores: {ratio(speeds[1], speeds[0])}. All processes have these cores, the server, too.",
    )


@contextlib.contextmanager
def _pinned(cores: list[int]) -> Iterator[None]:
    """Lets this process, and all that it started or starts meanwhile, use these cores only."""
    before = os.sched_getaffinity(0)
    _pin(cores)
    try:
        yield
    finally:
        _pin(sorted(before))


def _pin(cores: list[int]) -> None:
    for pid in [os.getpid(), *descendants(os.getpid())]:
        with contextlib.suppress(OSError):  # it may end while we look
            for thread in Path("/proc", str(pid), "task").iterdir():
                os.sched_setaffinity(int(thread.name), cores)
