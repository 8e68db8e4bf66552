"""Speed of reading MySQL's log into memory: Tidemark into Arrow batches, mysql-replication into Python objects."""

import time
from collections.abc import Callable
from functools import partial

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from benchmarks.bench import Bench
from benchmarks.report import Cell, print_table, ratio, thousands
from benchmarks.source import Source

ROUNDS = 3
PEER_SERVER_ID = 900_100
ROWS_OF_A_TRANSACTION = 1000


def run(bench: Bench) -> None:
    rows: list[list[Cell]] = []
    notes = []
    for transaction_rows, change_count, peer_count in (
        (ROWS_OF_A_TRANSACTION, bench.rows * 2 // 5, bench.rows // 25),
        (1, bench.rows // 25, bench.rows // 100),
    ):
        source = bench.source
        table = source.orders(f"log_{transaction_rows}", bench.rows // 5)
        source.execute("FLUSH BINARY LOGS")
        source.forget()
        source.change(table, change_count, transaction_rows=transaction_rows)
        _ours(source, table)  # loads the compiled code
        ours = _best(partial(_ours, source, table))
        theirs = _best(partial(_theirs, source, table, peer_count))
        if ours[0] != change_count:
            raise RuntimeError(f"{ours[0]} changes were read, {change_count} expected")
        kind = "one row each" if transaction_rows == 1 else f"{transaction_rows:,} rows each"
        for name, (count, seconds) in (("Tidemark", ours), ("mysql-replication", theirs)):
            rows.append([f"transactions of {kind}: {name}", count, seconds, thousands(count / seconds)])
        speed = ratio(ours[0] / ours[1], theirs[0] / theirs[1])
        notes.append(f"Transactions of {kind}: **{speed}**")
    print_table(
        "Log of MySQL",
        ["", "changes", "s", "changes/s"],
        rows,
        *notes,
        f"One connection, one core; best of {ROUNDS}. The same log from the same position; mysql-replication reads only "
        "its beginning, because it is slow. Tidemark gives Arrow batches, mysql-replication a dict per row.",
    )


def _best(measure: Callable[[], tuple[int, float]]) -> tuple[int, float]:
    return min((measure() for _ in range(ROUNDS)), key=lambda found: found[1])


def _ours(source: Source, table: str) -> tuple[int, float]:
    """Returns the number of changes, and the seconds that reading them took."""
    log_range = source.range()
    reader = source.reader(table)
    started = time.perf_counter()
    count = sum(batch.rows.num_rows for batch in reader.read(log_range))
    return count, time.perf_counter() - started


def _theirs(source: Source, table: str, at_most: int) -> tuple[int, float]:
    server = source.server
    account = {"host": server.host, "port": server.port, "user": server.user, "passwd": server.password}
    started = time.perf_counter()
    stream = BinLogStreamReader(
        connection_settings=account,
        server_id=PEER_SERVER_ID,
        log_file=source.start.file,
        log_pos=source.start.pos,
        resume_stream=True,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        only_tables=[table],
    )
    count = 0
    for event in stream:
        count += len(event.rows)
        if count >= at_most:
            break
    seconds = time.perf_counter() - started
    stream.close()
    return count, seconds
