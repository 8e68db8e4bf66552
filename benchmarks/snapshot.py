"""A table of orders into Parquet: Tidemark's whole job beside Spark's own JDBC reader."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.dataset as ds

from benchmarks.bench import Bench
from benchmarks.processes import JOB, Sampler
from benchmarks.report import Cell, print_table, ratio, thousands
from benchmarks.spark_jdbc import FETCH_ROWS, PARTITIONS
from benchmarks.tidemark import Run, orders_job, run_tidemark

AIM = 2.5
ROUNDS = 2
WITHOUT_TLS = "sslMode=DISABLED&allowPublicKeyRetrieval=true"
PEERS = {
    f"Spark JDBC, cursor of {FETCH_ROWS:,} rows": f"{WITHOUT_TLS}&useCursorFetch=true",
    "Spark JDBC, whole partitions in memory": WITHOUT_TLS,
}


def run(bench: Bench) -> None:
    assert bench.warmed_up
    table = bench.source.orders("orders", bench.rows)
    bench.source.query(f"SELECT SUM(LENGTH(note)) FROM {table}")  # all in the buffer pool, for all alike
    found: dict[str, list[Run]] = {name: [] for name in ("Tidemark", *PEERS)}
    for _ in range(ROUNDS):
        found["Tidemark"].append(_tidemark(bench, table))
        for name, options in PEERS.items():
            found[name].append(_spark(bench, table, options))
    best = {name: min(runs, key=lambda run: run.wall_seconds) for name, runs in found.items()}
    fastest = min(PEERS, key=lambda name: best[name].wall_seconds)
    rows: list[list[Cell]] = [
        [
            name,
            run.wall_seconds,
            thousands(run.rows / run.wall_seconds),
            run.query_seconds,
            thousands(run.rows / run.query_seconds),
        ]
        for name, run in best.items()
    ]
    ours, theirs = best["Tidemark"], best[fastest]
    print_table(
        f"Snapshot: {bench.rows:,} rows of MySQL into Parquet",
        ["", "whole process, s", "rows/s", "Spark being up, s", "rows/s"],
        rows,
        f"Tidemark beside {fastest}, the fastest of the peer's variants: the whole process "
        f"**{ratio(theirs.wall_seconds, ours.wall_seconds, AIM)}**, "
        f"Spark being up **{ratio(theirs.query_seconds, ours.query_seconds)}**.",
        f"local[2], best of {ROUNDS}; the peer reads {PARTITIONS} partitions by the key; both copies have all rows. "
        "Tidemark's rows are published durably in the checkpoint before they are written, and carry their changelog "
        f"columns; {ours.epochs} epochs.",
    )


def _tidemark(bench: Bench, table: str) -> Run:
    folder = bench.folder()
    out = folder / "out"
    job = orders_job(folder, bench.server_url, table, {"type": "files", "path": str(out)}, mode="full")
    with Sampler({bench.source.server.port: "source"}) as sampler:
        run = run_tidemark(job)
    _say("Tidemark", run, sampler)
    _check_count(bench, out / f"d.{table}")
    shutil.rmtree(folder)
    return run


def _spark(bench: Bench, table: str, options: str) -> Run:
    folder, server = bench.folder(), bench.source.server
    words = [f"{server.host}:{server.port}", server.user, table, str(bench.rows), str(folder), options]
    with Sampler({server.port: "source"}) as sampler:
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.spark_jdbc", *words], check=True, capture_output=True, text=True
        )
        wall_seconds = time.monotonic() - started
    moments = json.loads(done.stdout.splitlines()[-1])
    run = Run(wall_seconds, moments["written"] - moments["up"], bench.rows, 0, 0)
    _say("Spark JDBC", run, sampler)
    _check_count(bench, folder)
    shutil.rmtree(folder)
    return run


def _say(name: str, run: Run, sampler: Sampler) -> None:
    cpu = ", ".join(
        f"{role} {seconds:.1f}" for role, seconds in sampler.cpu_seconds().items() if role in {*JOB, "source"}
    )
    print(
        f"{name}: {run.wall_seconds:.1f} s, with Spark up {run.query_seconds:.1f} s; processor seconds: {cpu}",
        flush=True,
    )


def _check_count(bench: Bench, folder: Path) -> None:
    copied = ds.dataset(folder, format="parquet").count_rows()
    if copied != bench.rows:
        raise RuntimeError(f"{copied} rows in {folder}, {bench.rows} expected")
