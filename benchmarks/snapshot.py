"""Speed of copying a table of orders into Parquet: Tidemark's whole job, next to Spark's own JDBC reader."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds

from benchmarks.bench import Bench
from benchmarks.processes import JOB, POSTGRES, Sampler
from benchmarks.report import Cell, print_table, ratio, thousands
from benchmarks.spark_jdbc import FETCH_ROWS, PARTITIONS
from benchmarks.tidemark import Run, orders_job, run_tidemark
from devtools.server import Server

ROUNDS = 2
FEW_ROWS = 1000
WITHOUT_TLS = "sslMode=DISABLED&allowPublicKeyRetrieval=true"
PEERS = {
    f"Spark JDBC, cursor of {FETCH_ROWS:,} rows": f"?{WITHOUT_TLS}&useCursorFetch=true",
    "Spark JDBC, whole partitions in memory": f"?{WITHOUT_TLS}",
}
POSTGRES_PEERS = {f"Spark JDBC, cursor of {FETCH_ROWS:,} rows": ""}


@dataclass(frozen=True, slots=True)
class Table:
    """A table to copy. `jdbc_url` has no options; `peers` has the options of each variant of the peer, by its name."""

    schema: str
    name: str
    row_count: int
    server: Server
    url: str
    jdbc_url: str
    peers: Mapping[str, str]


def run(bench: Bench) -> None:
    """Measures copies of a MySQL table."""
    assert bench.warmed_up
    source = bench.source

    def table(name: str, row_count: int) -> Table:
        source.orders(name, row_count)
        jdbc_url = f"jdbc:mysql://{source.server.host}:{source.server.port}/d"
        return Table("d", name, row_count, source.server, bench.server_url, jdbc_url, PEERS)

    small, large = table("few_orders", FEW_ROWS), table("orders", bench.rows)
    source.query(
        f"SELECT SUM(LENGTH(note)) FROM {large.name}"
    )  # loads the table into the buffer pool, for Tidemark and its peers
    _compare(bench, "MySQL", small, large)


def run_postgres(bench: Bench) -> None:
    assert bench.warmed_up
    source = bench.postgres
    server = source.database.server

    def table(name: str, row_count: int) -> Table:
        source.orders(name, row_count)
        jdbc_url = f"jdbc:postgresql://{server.host}:{server.port}/{source.database.name}"
        return Table("public", name, row_count, server, source.database.url, jdbc_url, POSTGRES_PEERS)

    small, large = table("few_orders", FEW_ROWS), table("orders", bench.rows)
    source.database.query(f"SELECT SUM(LENGTH(note)) FROM {large.name}")
    _compare(bench, f"PostgreSQL {server.version}", small, large)


def _compare(bench: Bench, source: str, small: Table, large: Table) -> None:
    started, best = _best_of_each(bench, small), _best_of_each(bench, large)
    fastest = min(large.peers, key=lambda name: best[name].wall_seconds)
    rows: list[list[Cell]] = []
    for name, run in best.items():
        between = (bench.rows - FEW_ROWS) / (run.wall_seconds - started[name].wall_seconds)
        whole: list[Cell] = [run.wall_seconds, thousands(run.rows / run.wall_seconds)]
        up: list[Cell] = [run.working_seconds, thousands(run.rows / run.working_seconds)]
        rows.append([name, *whole, *up, started[name].wall_seconds, thousands(between)])
    ours, theirs = best["Tidemark"], best[fastest]
    without_start = (
        theirs.wall_seconds - started[fastest].wall_seconds,
        ours.wall_seconds - started["Tidemark"].wall_seconds,
    )
    print_table(
        f"Snapshot: {bench.rows:,} rows of {source} into Parquet",
        ["", "whole process, s", "rows/s", "working, s", "rows/s", f"{FEW_ROWS:,} rows, s", "rows/s beyond"],
        rows,
        f"Tidemark next to {fastest}, the fastest of the peer's variants: the whole process "
        f"**{ratio(theirs.wall_seconds, ours.wall_seconds)}**, working "
        f"**{ratio(theirs.working_seconds, ours.working_seconds)}**, beyond what {FEW_ROWS:,} rows take "
        f"**{ratio(*without_start)}**.",
        f"local[2], best of {ROUNDS}; the peer reads {PARTITIONS} partitions by the key; both copies have all rows. "
        "Tidemark's rows are published durably in the checkpoint before they are written, and carry their changelog "
        f"columns; {ours.epochs} epochs.",
    )


def _best_of_each(bench: Bench, table: Table) -> dict[str, Run]:
    found: dict[str, list[Run]] = {name: [] for name in ("Tidemark", *table.peers)}
    for _ in range(ROUNDS):
        found["Tidemark"].append(_tidemark(bench, table))
        for name, options in table.peers.items():
            found[name].append(_spark(bench, table, options))
    return {name: min(runs, key=lambda run: run.wall_seconds) for name, runs in found.items()}


def _tidemark(bench: Bench, table: Table) -> Run:
    folder = bench.folder()
    out = folder / "out"
    sink = {"type": "files", "path": str(out)}
    job = orders_job(folder, table.url, table.name, sink, schema=table.schema, mode="full")
    with Sampler({table.server.port: "source"}) as sampler:
        run = run_tidemark(job)
    _say("Tidemark", run, sampler)
    _check_count(out / f"{table.schema}.{table.name}", table.row_count)
    shutil.rmtree(folder)
    return run


def _spark(bench: Bench, table: Table, options: str) -> Run:
    folder, row_count = bench.folder(), table.row_count
    words = [table.jdbc_url + options, table.server.user, table.name, str(row_count), str(folder), "parquet"]
    with Sampler({table.server.port: "source"}) as sampler:
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.spark_jdbc", *words], check=True, capture_output=True, text=True
        )
        wall_seconds = time.monotonic() - started
    moments = json.loads(done.stdout.splitlines()[-1])
    run = Run(wall_seconds, moments["written"] - moments["up"], row_count, 0, 0)
    _say("Spark JDBC", run, sampler)
    _check_count(folder, row_count)
    shutil.rmtree(folder)
    return run


def _say(name: str, run: Run, sampler: Sampler) -> None:
    cpu = ", ".join(
        f"{role} {seconds:.1f}" for role, seconds in sampler.cpu_seconds().items() if role in {*JOB, POSTGRES, "source"}
    )
    print(
        f"{name}: {run.wall_seconds:.1f} s, working {run.working_seconds:.1f} s; processor seconds: {cpu}",
        flush=True,
    )


def _check_count(folder: Path, expected: int) -> None:
    copied = ds.dataset(folder, format="parquet").count_rows()
    if copied != expected:
        raise RuntimeError(f"{copied} rows in {folder}, {expected} expected")
