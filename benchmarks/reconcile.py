"""The cost of `tidemark reconcile`, beside reading the rows of both sides once."""

import subprocess
import sys
import time
from pathlib import Path

import yaml

from benchmarks.bench import Bench
from benchmarks.catch_up import mirror_in
from benchmarks.processes import JOB, POSTGRES, Sampler
from benchmarks.report import Cell, print_table
from benchmarks.tidemark import TIMEOUT_SECONDS, orders_job, run_tidemark
from devtools.server import Server
from tidemark.conf.endpoint import parse_endpoint
from tidemark.jobs.sources import table_rows
from tidemark.state.table import TableId

TABLE, DATABASE = "compared", "copy"
SPLIT_ROWS = 50_000
RANGES = 200
"""So many are too many for the command: Spark's tasks compare the table."""


def run(bench: Bench) -> None:
    """Copies a table into mirrors in PostgreSQL and MySQL, and compares each with its source."""
    source = bench.source
    table, rows = source.orders(TABLE, bench.rows), list[list[Cell]]()
    for name, kind in (("PostgreSQL", "postgres"), ("MySQL", "mysql")):
        target = bench.server(kind)
        job = orders_job(bench.folder(), bench.server_url, table, mirror_in(target, DATABASE))
        load = run_tidemark(job)
        rows.append([f"{name}: first load", load.wall_seconds, "", "", ""])
        ports = {source.server.port: "source", target.port: "target"}
        with Sampler(ports) as sampler:
            seconds = compared(job, bench.rows)
        cpu = sampler.cpu_seconds()
        of_target = cpu.get("target", 0.0) + cpu.get(POSTGRES, 0.0)
        of_command = sum(cpu.get(role, 0.0) for role in JOB)
        rows.append([f"{name}: reconcile", seconds, cpu.get("source", 0.0), of_command, of_target])
        rows.append([f"{name}: both sides read once", *_read(source.server, "d", target, table, bench.rows)])
    print_table(
        f"Comparing {bench.rows:,} rows of MySQL with a mirror",
        ["", "whole process, s", "CPU s: source", "command", "target"],
        rows,
        "Reading both sides: this process, one connection to each, the readers of snapshots, without the start of a process.",
    )


def compared(job: Path, row_count: int) -> float:
    began = time.monotonic()
    command = [sys.executable, "-m", "tidemark.jobs.cli", "reconcile", str(job)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)
    if ended.returncode != 0 or f"{row_count:,}" not in ended.stdout:
        raise RuntimeError(f"reconcile ended with {ended.returncode}: {ended.stdout} {ended.stderr}")
    return time.monotonic() - began


def divide(job: Path, split_rows: int) -> None:
    """Changes the size of the ranges."""
    changed = yaml.safe_load(job.read_text())
    changed["snapshot"]["split_rows"] = split_rows
    job.write_text(yaml.safe_dump(changed, sort_keys=False))


def _read(source: Server, database: str, target: Server, table: str, row_count: int) -> list[Cell]:
    ports = {source.port: "source", target.port: "target"}
    began, used = time.monotonic(), time.process_time()
    with Sampler(ports) as sampler:
        copies = f"{target.url}{DATABASE}", TableId("public" if target.kind == "postgres" else DATABASE, table)
        for url, name in ((f"{source.url}{database}", TableId(database, table)), copies):
            read_rows(url, name, row_count)
    cpu = sampler.cpu_seconds()
    of_target = cpu.get("target", 0.0) + cpu.get(POSTGRES, 0.0)
    return [time.monotonic() - began, cpu.get("source", 0.0), time.process_time() - used, of_target]


def read_rows(url: str, table: TableId, row_count: int) -> None:
    """Reads rows of orders range by range, as a snapshot does."""
    with table_rows(parse_endpoint(url), None, table, _columns()) as rows:
        for first in range(1, row_count + 1, SPLIT_ROWS):
            rows.read(f"id >= {first} AND id < {first + SPLIT_ROWS}")


def _columns() -> list[str]:
    return ["id", "customer_id", "status", "total", "weight", "is_gift", "placed_at", "shipped_on", "email", "note"]
