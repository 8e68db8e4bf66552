"""Speed of reading PostgreSQL's log into memory: Tidemark into Arrow batches, next to a plain loop of psycopg2."""

import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg2
from psycopg2.extras import LogicalReplicationConnection, StopReplication

from benchmarks.bench import Bench
from benchmarks.postgres_source import COLUMNS, VALUES
from benchmarks.report import Cell, print_table, ratio, thousands
from devtools.databases import fresh_database
from devtools.postgres_log import LoggedDatabase
from tidemark.state.log_range import LogRange

ROUNDS = 3
ROWS_OF_A_TRANSACTION = 1000
CHANGE = f"""
    CREATE PROCEDURE change(round_count bigint, size bigint) LANGUAGE plpgsql AS $$
    DECLARE base bigint;
    BEGIN
        FOR round IN 0..round_count - 1 LOOP
            base := 2 * size * round;
            INSERT INTO orders SELECT {VALUES} FROM generate_series(base + 1, base + size) AS i; COMMIT;
            UPDATE orders SET status = 'sent', total = total + 1 WHERE id > base AND id <= base + size; COMMIT;
            UPDATE orders SET status = 'paid', weight = 0.5 WHERE id > base AND id <= base + size; COMMIT;
            DELETE FROM orders WHERE id > base AND id <= base + size; COMMIT;
        END LOOP;
    END $$
"""
CHANGES_PER_ROUND = 4


def run(bench: Bench) -> None:
    rows: list[list[Cell]] = []
    notes = []
    server = bench.server("postgres")
    for transaction_rows, change_count in ((ROWS_OF_A_TRANSACTION, bench.rows // 5), (1, bench.rows // 25)):
        with fresh_database(server) as database:
            log = LoggedDatabase(database)
            log.execute(f"CREATE TABLE orders ({COLUMNS})", CHANGE)
            log.publish("orders")
            rounds = change_count // (CHANGES_PER_ROUND * transaction_rows)
            log.execute("SET synchronous_commit = off", f"CALL change({rounds}, {transaction_rows})", "CHECKPOINT")
            part = LogRange(log.start, log.end())
            count = rounds * CHANGES_PER_ROUND * transaction_rows
            _ours(log, part, count)  # loads the compiled code
            ours = _best(partial(_ours, log, part, count))
            theirs = _best(partial(_theirs, log, count))
        kind = "one row each" if transaction_rows == 1 else f"{transaction_rows:,} rows each"
        for name, seconds in (("Tidemark", ours), ("psycopg2", theirs)):
            rows.append([f"transactions of {kind}: {name}", count, seconds, thousands(count / seconds)])
        notes.append(f"Transactions of {kind}: **{ratio(theirs, ours)}**")
    print_table(
        f"Log of PostgreSQL {server.version}",
        ["", "changes", "s", "changes/s"],
        rows,
        *notes,
        f"One connection; best of {ROUNDS}. The same log from the same slot; psycopg2's loop only splits messages into "
        "columns, and acknowledges nothing. Tidemark gives Arrow batches.",
    )


def _best(measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(ROUNDS))


def _ours(log: LoggedDatabase, part: LogRange, expected: int) -> float:
    """Returns the seconds that reading the range took."""
    reader = log.reader("orders")
    started = time.perf_counter()
    count = sum(batch.rows.num_rows for batch in reader.read(part))
    seconds = time.perf_counter() - started
    if count != expected:
        raise RuntimeError(f"{count} changes were read, {expected} expected")
    return seconds


def _theirs(log: LoggedDatabase, expected: int) -> float:
    connection: Any = psycopg2.connect(log.database.url, connection_factory=LogicalReplicationConnection)
    try:
        cursor = connection.cursor()
        options = {"proto_version": "1", "publication_names": log.name}
        started = time.perf_counter()
        cursor.start_replication(slot_name=log.name, decode=False, options=options)
        try:
            cursor.consume_stream(_Splitter(expected))
        except StopReplication:
            return time.perf_counter() - started
    finally:
        connection.close()
    raise RuntimeError("the replication stream ended before the last change")


class _Splitter:
    """Splits changes into columns, and stops at the end of the transaction with the last change."""

    def __init__(self, expected: int) -> None:
        self.left = expected
        self.values: list[bytes | None] = []

    def __call__(self, message: Any) -> None:
        data: bytes = message.payload
        match data[:1]:
            case b"I" | b"U" | b"D":
                self.values = _tuple(data, 6)
                self.left -= 1
            case b"C" if self.left == 0:
                raise StopReplication


def _tuple(data: bytes, at: int) -> list[bytes | None]:
    (count,) = struct.unpack_from(">H", data, at)
    at += 2
    values: list[bytes | None] = []
    for _ in range(count):
        if data[at] == ord("t"):
            (size,) = struct.unpack_from(">I", data, at + 1)
            values.append(data[at + 5 : at + 5 + size])
            at += 5 + size
        else:
            values.append(None)
            at += 1
    return values
