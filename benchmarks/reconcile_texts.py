"""The cost of `tidemark reconcile` of a mirror whose key is a text that it orders in its own way."""

import time

from benchmarks.bench import Bench
from benchmarks.catch_up import mirror_in
from benchmarks.processes import DRIVER, JVM, POSTGRES, WORKERS, Sampler
from benchmarks.reconcile import RANGES, compared, divide
from benchmarks.report import Cell, print_table
from benchmarks.tidemark import orders_job, run_tidemark
from devtools.server import Server
from tidemark.conf.endpoint import parse_endpoint
from tidemark.jobs.sources import table_rows
from tidemark.state.table import TableId

TABLE, DATABASE = "by_code", "copy_of_texts"
NAMES = ["code", "customer_id", "status", "total", "weight", "placed_at", "email", "note"]
COLUMNS = """
    code varchar(40) NOT NULL PRIMARY KEY, customer_id int NOT NULL, status varchar(16) NOT NULL, total numeric(12,2) NOT NULL,
    weight double precision, placed_at {time} NOT NULL, email varchar(80) NOT NULL, note varchar(200)
"""
OF_MYSQL = """
    WITH RECURSIVE numbers (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < {rows})
    SELECT LEFT(SHA2(i, 256), 32), 1 + CRC32(i) % 100000, ELT(1 + i % 5, 'new', 'paid', 'packed', 'sent', 'returned'),
        CRC32(i + 7) % 1000000 / 100, IF(i % 10 = 0, NULL, CRC32(i + 3) % 100000 / 1000),
        TIMESTAMP '2024-01-01 00:00:00' + INTERVAL CRC32(i + 5) % 31536000 SECOND,
        CONCAT('customer', CRC32(i) % 100000, '@example.com'), SHA2(i, 256) FROM numbers
"""
OF_POSTGRES = """
    SELECT md5(i::text), 1 + i * 7919 % 100000, (ARRAY['new', 'paid', 'packed', 'sent', 'returned'])[1 + i % 5],
        i * 104729 % 1000000 / 100.0, nullif(i % 10, 0) * 0.1, timestamp '2024-01-01 00:00' + i * interval '17.000123 s',
        concat('customer', i * 7919 % 100000, '@example.com'), md5(i::text) || md5(i::text)
    FROM generate_series(1::bigint, {rows}) AS i
"""


def run(bench: Bench) -> None:
    """Copies a table from MySQL into PostgreSQL, and one from PostgreSQL into MySQL, and compares each with its source."""
    rows = list[list[Cell]]()
    mysql, postgres = bench.source.server, bench.postgres.database
    bench.source.execute(
        f"CREATE TABLE {TABLE} ({COLUMNS.format(time='datetime(6)')}) COLLATE utf8mb4_0900_ai_ci",
        "SET sql_log_bin = OFF",
        f"SET cte_max_recursion_depth = {bench.rows}",
        f"INSERT INTO {TABLE} {OF_MYSQL.format(rows=bench.rows)}",
        f"ANALYZE TABLE {TABLE}",
    )
    postgres.execute(
        f"CREATE TABLE {TABLE} ({COLUMNS.format(time='timestamp')})",
        f"INSERT INTO {TABLE} {OF_POSTGRES.format(rows=bench.rows)}",
        f"VACUUM ANALYZE {TABLE}",
    )
    pairs = (
        ("MySQL to PostgreSQL", mysql, mysql.url, f"{mysql.url}d", TableId("d", TABLE), "postgres"),
        ("PostgreSQL to MySQL", postgres.server, postgres.url, postgres.url, TableId("public", TABLE), "mysql"),
    )
    for name, source, job_url, url, table, kind in pairs:
        target = bench.server(kind)
        job = orders_job(bench.folder(), job_url, TABLE, mirror_in(target, DATABASE), schema=table.database)
        run_tidemark(job)
        for what in ("reconcile", "again", "by tasks"):
            if what == "by tasks":
                divide(job, bench.rows // RANGES)
            with Sampler({source.port: "source", target.port: "target"}) as sampler:
                seconds = compared(job, bench.rows)
            cpu = sampler.cpu_seconds()
            of_job = [cpu.get(role, 0.0) for role in (DRIVER, WORKERS, JVM)]
            rows.append([f"{name}: {what}", seconds, *_of_sides(sampler, kind), *of_job])
        rows.append([f"{name}: both sides read once", *_read(source, url, table, target), "", ""])
    print_table(
        f"Comparing {bench.rows:,} rows, whose key is a text, with a mirror",
        ["", "whole process, s", "CPU s: source", "target", "command", "tasks", "JVM"],
        rows,
        f"By tasks: the table has {RANGES} ranges, and Spark's tasks read those after the first 64. Reading both sides: this "
        "process, one connection to each, the readers of snapshots, without the start of a process.",
    )


def _of_sides(sampler: Sampler, kind: str) -> list[Cell]:
    """Returns the seconds of source and target. `kind`: of the target, the other one has another kind."""
    cpu = sampler.cpu_seconds()
    source, target, others = cpu.get("source", 0.0), cpu.get("target", 0.0), cpu.get(POSTGRES, 0.0)
    return [source, target + others] if kind == "postgres" else [source + others, target]


def _read(source: Server, url: str, table: TableId, target: Server) -> list[Cell]:
    began, used = time.monotonic(), time.process_time()
    copy = TableId("public" if target.kind == "postgres" else DATABASE, TABLE)
    with Sampler({source.port: "source", target.port: "target"}) as sampler:
        for address, name in ((url, table), (f"{target.url}{DATABASE}", copy)):
            with table_rows(parse_endpoint(address), None, name, NAMES) as rows:
                rows.read("TRUE")
    return [time.monotonic() - began, *_of_sides(sampler, target.kind), time.process_time() - used]
