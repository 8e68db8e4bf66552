"""From decoded rows to Arrow: the column buffers that the compiled loop fills, and the batches made of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.readers.bad_values import STOP, BadValueRule
from tidemark.readers.log.log_batch import LogBatch, meta_arrays, runs, with_added
from tidemark.readers.mysql.binlog.arrays import (
    TX_FIELDS,
    TX_GTID_NUMBER,
    TX_ORIGINAL_TIMESTAMP,
    TX_SOURCE_INDEX,
    TX_TIMESTAMP,
    TX_VERSION,
    Rows,
)
from tidemark.readers.mysql.binlog.tables import Slot
from tidemark.readers.mysql.decoding.arrow import to_arrow
from tidemark.readers.mysql.decoding.decode import ColumnBuffers
from tidemark.readers.mysql.keys.key_columns import null_key
from tidemark.state.change_batch import batch_schema
from tidemark.state.commit_times import CommitTimes
from tidemark.state.gtid import GtidSet, Interval, Source
from tidemark.state.kernel import Bytes, Int64s
from tidemark.state.table import TableSchema

COLUMN_BUFFER_BYTES = 48 << 20
MAX_ROWS = 1 << 17
MIN_ROWS = 16
TRANSACTIONS = 1 << 17
_POSITION_BITS = 40
_POSITION_MASK = (1 << _POSITION_BITS) - 1


def empty_rows(width: int, *, column_buffer_bytes: int = COLUMN_BUFFER_BYTES, transactions: int = TRANSACTIONS) -> Rows:
    """Allocates buffers for rows of at most `width` columns."""
    capacity = max(MIN_ROWS, min(MAX_ROWS, column_buffer_bytes // (17 * width)))
    buffers = ColumnBuffers.empty(width, capacity)
    before = ColumnBuffers.empty(width, 1)
    return Rows(
        np.empty(capacity, np.int32),
        np.empty(capacity, np.uint8),
        np.empty(capacity, np.int32),
        np.empty(capacity, np.int32),
        buffers.lo,
        buffers.hi,
        buffers.valid,
        np.zeros((transactions, TX_FIELDS), np.int64),
        before.lo,
        before.hi,
        before.valid,
        np.zeros((1, 2), np.int64),
    )


@dataclass(frozen=True, slots=True)
class Names:
    """The names in transaction ids: each source's text before the number, and the file names by file number."""

    sources: Sequence[str]
    files: Mapping[int, str]


def batches(
    rows: Rows,
    count: int,
    buf: Bytes,
    slots: Sequence[Slot],
    names: Names,
    *,
    zero_dates_null: bool,
    rule: BadValueRule = STOP,
) -> list[LogBatch]:
    """The first `count` rows, one batch per slot, in the order of the slots."""
    made = []
    buffers = ColumnBuffers(rows.lo, rows.hi, rows.valid)
    present = rows.slot[:count]
    for number in np.unique(present).tolist():
        slot = slots[number]
        chosen = np.flatnonzero(present == number)
        wanted = count if len(chosen) == count else chosen
        arrays = to_arrow(slot.plan, buf, buffers, wanted, zero_dates_null=zero_dates_null, rule=rule)
        if not rule.takes_null_keys:
            _require_keys(slot.logged, arrays, rule)
        arrays = with_added(slot.schema, slot.logged, arrays, len(chosen))
        arrays += _meta(rows, chosen, names)
        batch = pa.RecordBatch.from_arrays(arrays, schema=batch_schema(slot.schema))
        made.append(LogBatch(slot.schema.table, slot.schema.version, batch))
    return made


def _require_keys(schema: TableSchema, arrays: Sequence[pa.Array], rule: BadValueRule) -> None:
    """Raises SourceNotUsableError for a row with an invalid date in its key: a sink that finds rows by key can't tell such rows
    apart."""
    for column, array in zip(schema.captured, arrays, strict=True):
        if column.name in schema.key and array.null_count:
            raise null_key(schema.table, column, stops=rule.policy(schema.table, column.name) == "stop")


def _meta(rows: Rows, chosen: Int64s, names: Names) -> list[pa.Array]:
    tx = rows.tx[chosen]
    indices, starts = runs(tx)
    ids = transaction_ids(rows.transactions[tx[starts]], names)
    transactions = rows.transactions[tx]
    return meta_arrays(
        rows.kind[chosen],
        transactions[:, TX_VERSION],
        transactions[:, TX_TIMESTAMP],
        rows.seq[chosen],
        pa.DictionaryArray.from_arrays(pa.array(indices), ids),
    )


def transaction_ids(transactions: Int64s, names: Names) -> pa.Array:
    """The transactions' GTIDs; for a transaction without one, `file:pos` of its end."""
    source = transactions[:, TX_SOURCE_INDEX]
    version = transactions[:, TX_VERSION]
    prefixes = list(names.sources)
    which = source.copy()
    numbers = np.where(source >= 0, transactions[:, TX_GTID_NUMBER], version & _POSITION_MASK)
    for file_number in np.unique(version[source < 0] >> _POSITION_BITS):
        which[(source < 0) & (version >> _POSITION_BITS == file_number)] = len(prefixes)
        prefixes.append(f"{names.files[int(file_number)]}:")
    texts = pc.cast(pa.array(numbers), pa.string())
    return pc.binary_join_element_wise(pa.array(prefixes, pa.string()).take(pa.array(which)), texts, "")


def gtids_of(transactions: Int64s, sources: Sequence[Source]) -> tuple[GtidSet, CommitTimes]:
    """The GTIDs of the transactions that have one, with the times of the last ones."""
    intervals, times = {}, {}
    for number, source in enumerate(sources):
        mine = np.flatnonzero(transactions[:, TX_SOURCE_INDEX] == number)
        if not len(mine):
            continue
        steps = np.diff(transactions[mine, TX_GTID_NUMBER])
        if (steps < 0).any():
            mine = mine[np.argsort(transactions[mine, TX_GTID_NUMBER], kind="stable")]
            steps = np.diff(transactions[mine, TX_GTID_NUMBER])
        breaks = np.flatnonzero(steps != 1) + 1
        parts = list(zip([0, *breaks.tolist()], [*breaks.tolist(), len(mine)], strict=True))
        numbers = transactions[:, TX_GTID_NUMBER]
        intervals[source] = tuple((int(numbers[mine[a]]), int(numbers[mine[b - 1]]) + 1) for a, b in parts)
        times[source] = dict(time for a, b in parts for time in _last_time(transactions, mine[a:b]))
    return GtidSet(intervals), CommitTimes(times)


def _last_time(transactions: Int64s, lines: Int64s) -> Iterator[tuple[int, int]]:
    """Yields the number and the time of the last of these transactions whose time is known."""
    known = lines[-1:]
    if not transactions[lines[-1], TX_ORIGINAL_TIMESTAMP]:
        known = lines[transactions[lines, TX_ORIGINAL_TIMESTAMP] > 0]
    for line in known[-1:].tolist():
        yield int(transactions[line, TX_GTID_NUMBER]), int(transactions[line, TX_ORIGINAL_TIMESTAMP])


def among(transactions: Int64s, sources: Sequence[Source], gtids: GtidSet) -> Int64s:
    """The transactions that the set has."""
    found = np.zeros(len(transactions), np.bool_)
    for number, source in enumerate(sources):
        intervals = np.array(gtids.intervals.get(source, ()), np.int64).reshape(-1, 2)
        mine = np.flatnonzero(transactions[:, TX_SOURCE_INDEX] == number)
        numbers = transactions[mine, TX_GTID_NUMBER]
        # Intervals are sorted and half-open: a number is in one if it follows more starts than ends.
        starts, ends = (np.searchsorted(intervals[:, side], numbers, side="right") for side in (0, 1))
        found[mine] = starts > ends
    return transactions[found]


def states_of(transactions: Int64s, sources: Sequence[Source]) -> tuple[GtidSet, CommitTimes]:
    """MariaDB: the last transaction of each source, as `GtidSet.parse_state` has it, with its time."""
    last, times = dict[Source, tuple[Interval, ...]](), {}
    for number, source in enumerate(sources):
        mine = np.flatnonzero(transactions[:, TX_SOURCE_INDEX] == number)
        if len(mine):
            mine = mine[transactions[mine, TX_GTID_NUMBER] == transactions[mine, TX_GTID_NUMBER].max()]
            last[source] = ((1, int(transactions[mine[-1], TX_GTID_NUMBER]) + 1),)
            times[source] = dict(_last_time(transactions, mine))
    return GtidSet(last), CommitTimes(times)
