"""The cost of `tidemark reconcile` of a copy in files, beside reading the rows of both sides once."""

import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow.json as pj
import pyarrow.parquet as pq

from benchmarks.bench import Bench
from benchmarks.processes import DRIVER, JVM, POSTGRES, WORKERS, Sampler
from benchmarks.reconcile import RANGES, compared, divide, read_rows
from benchmarks.report import Cell, print_table
from benchmarks.tidemark import orders_job, run_tidemark
from devtools.server import Server
from tidemark.state.table import TableId

TABLE = "compared_files"


def run(bench: Bench) -> None:
    """Copies a table of MySQL and one of PostgreSQL into Parquet and JSON Lines, and compares each copy with its source."""
    rows = list[list[Cell]]()
    bench.source.orders(TABLE, bench.rows)
    bench.postgres.orders(TABLE, bench.rows)
    mysql, postgres = bench.source.server, bench.postgres.database
    sources = (
        ("MySQL", mysql, mysql.url, f"{mysql.url}d", TableId("d", TABLE)),
        ("PostgreSQL", postgres.server, postgres.url, postgres.url, TableId("public", TABLE)),
    )
    for name, server, job_url, url, table in sources:
        for file_format in ("parquet", "jsonl"):
            folder = bench.folder()
            sink = {"type": "files", "path": str(folder / "out"), "format": file_format}
            job = orders_job(folder, job_url, TABLE, sink, schema=table.database)
            load = run_tidemark(job)
            what = f"{name}, {file_format}"
            rows.append([f"{what}: first load", load.wall_seconds, "", "", "", ""])
            for how in ("reconcile", "by tasks"):
                if how == "by tasks":
                    divide(job, bench.rows // RANGES)
                with Sampler({server.port: "source"}) as sampler:
                    seconds = compared(job, bench.rows)
                rows.append([f"{what}: {how}", seconds, *_seconds(sampler)])
            files = sorted((folder / "out" / f"{table.database}.{TABLE}").glob("e*"))
            rows.append([f"{what}: both sides read once", *_read(server, url, table, files, bench.rows), "", ""])
    print_table(
        f"Comparing {bench.rows:,} rows with a copy in files",
        ["", "whole process, s", "CPU s: source", "command", "tasks", "JVM"],
        rows,
        f"By tasks: the table has {RANGES} ranges, too many for the command. Reading both sides: this process, the reader of "
        "snapshots on one connection, the files by pyarrow, without the start of a process.",
    )


def _seconds(sampler: Sampler) -> list[Cell]:
    cpu = sampler.cpu_seconds()
    return [cpu.get("source", 0.0) + cpu.get(POSTGRES, 0.0), *(cpu.get(role, 0.0) for role in (DRIVER, WORKERS, JVM))]


def _read(server: Server, url: str, table: TableId, files: Sequence[Path], row_count: int) -> list[Cell]:
    began, used = time.monotonic(), time.process_time()
    with Sampler({server.port: "source"}) as sampler:
        read_rows(url, table, row_count)
        for file in files:
            if file.suffix == ".parquet":
                pq.read_table(file)
            elif file.stat().st_size:
                pj.read_json(file)
    cpu = sampler.cpu_seconds()
    of_source = cpu.get("source", 0.0) + cpu.get(POSTGRES, 0.0)
    return [time.monotonic() - began, of_source, time.process_time() - used]
