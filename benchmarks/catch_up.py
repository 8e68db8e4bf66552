"""Speed of a whole job that catches up with the log: into files, and into mirrors in MySQL and PostgreSQL by one and by two
connections."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from benchmarks.bench import Bench
from benchmarks.processes import JOB, POSTGRES, Sampler
from benchmarks.report import Cell, print_table, thousands
from benchmarks.tidemark import Run, orders_job, run_tidemark
from devtools.server import Server

TABLE, SINGLE_ROWS, FEW_ROWS = "followed", "followed_by_rows", "followed_by_few"
FEW_CHANGES = 1_000
ROWS_OF_A_TRANSACTION = 1000
CONNECTIONS = (1, 2)
"""The values of `log.apply_parallelism` that are measured."""


def run(bench: Bench) -> None:
    """Lets each job copy the existing rows, makes the changes, then measures how each job catches up with them."""
    source = bench.source
    table, change_count = source.orders(TABLE, bench.rows // 5), bench.rows * 2 // 5
    mysql, postgres = bench.server("mysql"), bench.server("postgres")
    targets = {
        f"mirror in {name}, {connections} connection{'s' if connections > 1 else ''}": (server, f"copy{connections}")
        for name, server in (("MySQL", mysql), ("PostgreSQL", postgres))
        for connections in CONNECTIONS
    }
    folder = bench.folder()
    jobs = {
        "files (Parquet)": orders_job(folder, bench.server_url, table, {"type": "files", "path": str(folder / "out")})
    }
    for (name, (server, database)), connections in zip(targets.items(), 2 * CONNECTIONS, strict=True):
        log = {"apply_parallelism": connections}
        jobs[name] = orders_job(bench.folder(), bench.server_url, table, mirror_in(server, database), log=log)
    for job in jobs.values():
        run_tidemark(job)
    source.change(table, change_count, transaction_rows=ROWS_OF_A_TRANSACTION)
    rows = []
    for name, job in jobs.items():
        target = targets.get(name)
        ports = {source.server.port: "source"} | ({} if target is None else {target[0].port: "target"})
        with Sampler(ports) as sampler:
            run = run_tidemark(job)
        if run.changes != change_count:
            raise RuntimeError(f"{name}: {run.changes} changes, {change_count} expected")
        if target is not None:
            _check_copy(bench, *target, table)
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
    _run_single_rows(bench)


def _run_single_rows(bench: Bench) -> None:
    """The same with transactions of one row, into files. What a start takes is told by a run with few of them: one with
    nothing new does not load what decodes them."""
    change_count = bench.rows // 25
    few, _ = _follow_single_rows(bench, FEW_ROWS, FEW_CHANGES)
    run, sampler = _follow_single_rows(bench, SINGLE_ROWS, change_count)
    starts, more = few.wall_seconds, change_count - FEW_CHANGES
    seconds = run.wall_seconds - starts
    source_seconds, job_seconds, _ = _cpu(sampler.cpu_seconds())
    print_table(
        f"Catching up: {change_count:,} changes of MySQL's log, transactions of one row, into Parquet",
        ["whole process, s", f"{FEW_CHANGES:,} changes, s", "changes/s beyond", "epochs", "CPU s: source", "job"],
        [[run.wall_seconds, starts, thousands(more / seconds), run.epochs, source_seconds, job_seconds]],
    )


def _follow_single_rows(bench: Bench, name: str, change_count: int) -> tuple[Run, Sampler]:
    source, folder = bench.source, bench.folder()
    table = source.orders(name, bench.rows // 5)
    job = orders_job(folder, bench.server_url, table, {"type": "files", "path": str(folder / "out")})
    run_tidemark(job)
    source.change(table, change_count, transaction_rows=1)
    with Sampler({source.server.port: "source"}) as sampler:
        run = run_tidemark(job)
    if run.changes != change_count:
        raise RuntimeError(f"{run.changes} changes, {change_count} expected")
    return run, sampler


def mirror_in(target: Server, database: str) -> dict[str, Any]:
    with closing(target.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database}")
    return {"type": "mirror", "url": f"{target.url}{database}", "table": "{table}"}


def _cpu(seconds: Mapping[str, float]) -> list[Cell]:
    target = seconds.get("target", 0.0) + seconds.get(POSTGRES, 0.0)
    return [seconds.get("source", 0.0), sum(seconds.get(role, 0.0) for role in JOB), target]


def _check_copy(bench: Bench, target: Server, database: str, table: str) -> None:
    question = f"SELECT COUNT(*), SUM(total), SUM(id) FROM {table}"
    connection = target.connect(database)
    with connection.cursor() as cursor:
        cursor.execute(question)
        copied = cursor.fetchone()
    connection.close()
    if tuple(copied) != bench.source.query(question)[0]:
        raise RuntimeError(f"the copy in {target.kind} has {copied}, the source {bench.source.query(question)[0]}")
