"""Rows per second and per second of processor time: Tidemark's whole job next to readers of PyPI that write Parquet.

The readers copy the table once. They have no checkpoint, need no place in the log, and can't follow changes.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import pyarrow.dataset as ds

from benchmarks.bench import Bench
from benchmarks.processes import JOB, POSTGRES, READER, Sampler
from benchmarks.report import Cell, print_table, thousands
from benchmarks.tidemark import orders_job, run_tidemark
from devtools.server import Server
from devtools.server_packages import cache_folder

SCRIPT = Path(__file__).with_name("peer_readers.py")
PACKAGES = (
    "adbc-driver-postgresql==1.13.0",
    "connectorx==0.4.6",
    "dlt[filesystem,parquet]==1.31.0",
    "psycopg2-binary==2.9.13",
    "pyarrow==26.0.1",
    "pymysql==1.2.4",
    "sqlalchemy==2.1.9",
)
ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Table:
    """A table to copy. `url`: of the server, for a job. `reader_url`: of the database."""

    schema: str
    name: str
    row_count: int
    server: Server
    url: str
    reader_url: str
    readers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Copied:
    seconds: float
    own_seconds: float
    """Seconds of processor time, without the server's."""
    server_seconds: float


def run(bench: Bench) -> None:
    """Measures copies of a MySQL and of a PostgreSQL table."""
    assert bench.warmed_up
    _python()
    mysql = bench.source
    mysql.orders("orders", bench.rows)
    mysql.query("SELECT SUM(LENGTH(note)) FROM orders")
    url = bench.server_url
    _compare("MySQL", Table("d", "orders", bench.rows, mysql.server, url, f"{url}d", ("connectorx", "dlt")))
    postgres = bench.postgres
    postgres.orders("orders", bench.rows)
    postgres.database.query("SELECT SUM(LENGTH(note)) FROM orders")
    server, url = postgres.database.server, postgres.database.url
    readers = ("connectorx", "adbc", "dlt")
    _compare(f"PostgreSQL {server.version}", Table("public", "orders", bench.rows, server, url, url, readers))


def _compare(source: str, table: Table) -> None:
    best: dict[str, Copied] = {}
    for name in ("Tidemark", *table.readers) * ROUNDS:
        found = _copied(table, name)
        best[name] = min(best.get(name, found), found, key=lambda copied: copied.seconds)
    rows: list[list[Cell]] = [
        [
            name,
            copied.seconds,
            thousands(table.row_count / copied.seconds),
            copied.own_seconds,
            copied.server_seconds,
            thousands(table.row_count / copied.own_seconds),
        ]
        for name, copied in best.items()
    ]
    print_table(
        f"Readers: {table.row_count:,} rows of {source} into Parquet, whole process",
        ["", "s", "rows/s", "CPU s", "CPU s: server", "rows per CPU s"],
        rows,
        f"Best of {ROUNDS}. connectorx and dlt hold all rows in memory; connectorx reads two partitions side by side. ADBC "
        "streams over one connection. Only Tidemark's copy knows its place in the log, and goes on from there.",
    )


def _copied(table: Table, name: str) -> Copied:
    with TemporaryDirectory(prefix="tidemark-bench-") as temporary:
        folder = Path(temporary)
        with Sampler({table.server.port: "source"}) as sampler:
            if name == "Tidemark":
                sink = {"type": "files", "path": str(folder / "out")}
                job = orders_job(folder / "job", table.url, table.name, sink, schema=table.schema, mode="full")
                seconds = run_tidemark(job).wall_seconds
                out = folder / "out" / f"{table.schema}.{table.name}"
            else:
                out = folder
                began = monotonic()
                words = [str(_python()), str(SCRIPT), name, table.reader_url, table.name, str(folder)]
                subprocess.run(words, check=True, capture_output=True)
                seconds = monotonic() - began
        cpu = sampler.cpu_seconds()
        found = Copied(seconds, sum(cpu[role] for role in (*JOB, READER)), cpu["source"] + cpu[POSTGRES])
        print(f"{name}: {found.seconds:.1f} s, processor seconds {found.own_seconds:.1f}", flush=True)
        files = [str(path) for path in out.rglob("*.parquet") if "state" not in path.parts and "_dlt" not in str(path)]
        copied = ds.dataset(files, format="parquet").count_rows()
        if copied != table.row_count:
            raise RuntimeError(f"{name} has copied {copied} rows, {table.row_count} expected")
    return found


@cache
def _python() -> Path:
    """Returns the interpreter of the readers' environment, which is made once for each list of packages."""
    folder = cache_folder() / "readers"
    python, made = folder / "bin" / "python", folder / "packages"
    if not made.is_file() or made.read_text() != "\n".join(PACKAGES):
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES],
            check=True,
            env=os.environ | {"PYTHONPATH": ""},
        )
        made.write_text("\n".join(PACKAGES))
    return python
