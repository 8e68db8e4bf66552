"""Speed of a whole job that catches up with the log: into files, and into mirrors in MySQL and PostgreSQL."""

from collections.abc import Mapping
from typing import Any

from benchmarks.bench import Bench
from benchmarks.processes import JOB, POSTGRES, Sampler
from benchmarks.report import Cell, print_table, thousands
from benchmarks.tidemark import orders_job, run_tidemark
from devtools.server import Server

TABLE = "followed"
ROWS_OF_A_TRANSACTION = 1000


def run(bench: Bench) -> None:
    """Lets each job copy the existing rows, makes the changes, then measures how each job catches up with them."""
    source = bench.source
    table, change_count = source.orders(TABLE, bench.rows // 5), bench.rows * 2 // 5
    targets = {"mirror in MySQL": bench.server("mysql"), "mirror in PostgreSQL": bench.server("postgres")}
    jobs = {}
    for name, sink in {"files (Parquet)": None, **targets}.items():
        folder = bench.folder()
        jobs[name] = orders_job(folder, bench.server_url, table, _sink(sink, str(folder / "out")))
        run_tidemark(jobs[name])
    source.change(table, change_count, transaction_rows=ROWS_OF_A_TRANSACTION)
    rows = []
    for name, job in jobs.items():
        target = targets.get(name)
        ports = {source.server.port: "source"} | ({} if target is None else {target.port: "target"})
        with Sampler(ports) as sampler:
            run = run_tidemark(job)
        if run.changes != change_count:
            raise RuntimeError(f"{name}: {run.changes} changes, {change_count} expected")
        if target is not None:
            _check_copy(bench, target, table)
        speeds: list[Cell] = [
            run.wall_seconds,
            run.working_seconds,
            thousands(run.changes / run.working_seconds),
            run.epochs,
        ]
        rows.append([name, *speeds, *_cpu(sampler.cpu_seconds())])
    print_table(
        f"Catching up: {change_count:,} changes of MySQL's log, transactions of {ROWS_OF_A_TRANSACTION:,} rows",
        ["", "whole process, s", "working, s", "changes/s", "epochs", "CPU s: source", "job", "target"],
        rows,
        "Half updates, a quarter inserts, a quarter deletes; local[2]. The log is read by one task.",
    )


def _sink(target: Server | None, path: str) -> dict[str, Any]:
    if target is None:
        return {"type": "files", "path": path}
    if target.kind == "mysql":
        with target.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE copy")
        return {"type": "mirror", "url": f"{target.url}copy", "table": "{table}"}
    return {"type": "mirror", "url": f"{target.url}postgres", "table": "{table}"}


def _cpu(seconds: Mapping[str, float]) -> list[Cell]:
    target = seconds.get("target", 0.0) + seconds.get(POSTGRES, 0.0)
    return [seconds.get("source", 0.0), sum(seconds.get(role, 0.0) for role in JOB), target]


def _check_copy(bench: Bench, target: Server, table: str) -> None:
    question = f"SELECT COUNT(*), SUM(total), SUM(id) FROM {table}"
    connection = target.connect("copy" if target.kind == "mysql" else None)
    with connection.cursor() as cursor:
        cursor.execute(question)
        copied = cursor.fetchone()
    connection.close()
    if tuple(copied) != bench.source.query(question)[0]:
        raise RuntimeError(f"the copy in {target.kind} has {copied}, the source {bench.source.query(question)[0]}")
