"""Time from a commit in the source until a client of the target sees it: while a job follows the log, and in a first load."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.bench import Bench
from benchmarks.report import print_table
from benchmarks.tidemark import orders_job
from devtools.job_process import Process, start_tidemark
from devtools.server import Server

SECONDS = 20.0
POLL_SECONDS = 0.005
ARRIVAL_SECONDS = 60.0
"""How long the last marks may take. A mark that never arrives is an error."""
ROWS_OF_A_TRANSACTION = 20
MARKS = "a_marks"
SPLIT_ROWS = 50_000


@dataclass
class _Marks:
    """Marker rows: one in each transaction. `committed`, `seen`: by number, seconds of the monotonic clock."""

    committed: dict[int, float] = field(default_factory=dict)
    seen: dict[int, float] = field(default_factory=dict)

    def delays_ms(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array([(self.seen[n] - at) * 1000 for n, at in self.committed.items()])


def run(bench: Bench) -> None:
    """Measures with writers of two rates, then with a large table that is being loaded beside the followed one."""
    target = bench.server("postgres")
    rows = []
    for name, rate in (("following, 2,000 rows/s", 2_000), ("following, 20,000 rows/s", 20_000)):
        rows.append([name, *_measured(bench, target, rate, large=None)])
    large = bench.source.orders("beside", bench.rows)
    rows.append(["first load beside it, 2,000 rows/s", *_measured(bench, target, 2_000, large=large)])
    print_table(
        "Commit in MySQL → visible in a PostgreSQL mirror",
        ["", "marks", "rows/s written", "p50, ms", "p99, ms", "longest, ms"],
        rows,
        f"One marker row in each transaction of {ROWS_OF_A_TRANSACTION} rows; a client of the target looks every "
        f"{POLL_SECONDS * 1000:.0f} ms. trigger: 50ms, splits of {SPLIT_ROWS:,} rows, local[2]. In the first load the marks' "
        f"table is complete, and another one of {bench.rows:,} rows is being read.",
    )


def _measured(bench: Bench, target: Server, rate: int, *, large: str | None) -> list[float | int | str]:
    source = bench.source.server
    _execute(source, "d", f"DROP TABLE IF EXISTS {MARKS}", f"CREATE TABLE {MARKS} (id BIGINT PRIMARY KEY, note TEXT)")
    database = f"copy_{bench.folder().name}"
    _execute(target, None, f"CREATE DATABASE {database}")
    sink = {"type": "mirror", "url": f"{target.url}{database}", "table": "{table}"}
    tables = [f"d.{MARKS}", *([] if large is None else [f"d.{large}"])]
    job = orders_job(
        bench.folder(),
        source.url,
        MARKS,
        sink,
        trigger="50ms",
        source={"url": source.url, "tables": tables},
        snapshot={"parallelism": 2, "split_rows": SPLIT_ROWS},
    )
    process = start_tidemark(job)
    try:
        _await(process, lambda event: event.get("phase") == "stream" or event.get("tables_done", 0) >= 1)
        marks, stop = _Marks(), threading.Event()
        watcher = threading.Thread(target=_watch, args=(target, database, marks, stop), daemon=True)
        watcher.start()
        began = time.monotonic()
        written = _write(source, marks, rate, lambda: time.monotonic() - began > SECONDS or _is_loaded(process, large))
        seconds = time.monotonic() - began
        process.wait_until(lambda: marks.seen.keys() >= marks.committed.keys(), ARRIVAL_SECONDS)
        stop.set()
        watcher.join()
    finally:
        process.kill()
    delays = marks.delays_ms()
    p50, p99 = (round(float(np.percentile(delays, q))) for q in (50, 99))
    return [len(delays), round(written / seconds), p50, p99, round(float(delays.max()))]


def _write(server: Server, marks: _Marks, rate: int, is_done: Callable[[], bool]) -> int:
    """Writes at most `rate` rows per second. Returns how many."""
    number, began = 0, time.monotonic()
    connection = server.connect("d", autocommit=False)
    with connection.cursor() as cursor:
        while not is_done():
            values = ", ".join(f"({number + i}, 'x')" for i in range(ROWS_OF_A_TRANSACTION))
            cursor.execute(f"INSERT INTO {MARKS} VALUES {values}")
            connection.commit()
            number += ROWS_OF_A_TRANSACTION
            marks.committed[number - 1] = time.monotonic()
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
    connection.close()
    return number


def _watch(server: Server, database: str, marks: _Marks, stop: threading.Event) -> None:
    last = -1
    connection = server.connect(database)
    with connection.cursor() as cursor:
        while not stop.wait(POLL_SECONDS):
            cursor.execute(f"SELECT max(id) FROM {MARKS}")
            newest, now = cursor.fetchone()[0], time.monotonic()
            if newest is not None and newest > last:
                for number in range(last + 1, newest + 1):
                    if number % ROWS_OF_A_TRANSACTION == ROWS_OF_A_TRANSACTION - 1:
                        marks.seen[number] = now
                last = newest
    connection.close()


def _is_loaded(process: Process, large: str | None) -> bool:
    if large is None:
        return False
    return any(event.get("phase") == "stream" for event in process.events()[-5:])


def _await(process: Process, matches: Callable[[dict[str, Any]], bool]) -> None:
    process.wait_until(lambda: any(matches(event) for event in process.events()))


def _execute(server: Server, database: str | None, *statements: str) -> None:
    connection = server.connect(database)
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    connection.close()
