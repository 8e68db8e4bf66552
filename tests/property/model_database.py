"""Databases in memory, with a log: transactions are logged first, and become visible to SELECTs some time later."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

from tidemark.state.key_encoding import encode_bytes, encode_composite, encode_integer
from tidemark.state.key_statistics import IntegerKey, KeyStatistics, PageStatistics, TableSize
from tidemark.state.log_extent import BinlogExtent, LogExtent, LogFile, WalExtent
from tidemark.state.log_range import LogRange
from tidemark.state.position import BinlogPosition, Position, WalPosition, binlog_position
from tidemark.state.split import Bound, KeyRange, SharedSnapshot
from tidemark.state.table import TableId

Key = tuple[int | str, ...]
State = tuple[int, int]
"""(transaction, number of the change in it): the change that left a key as it is. Transactions count from 1; 0 made the
rows that were there before."""

FIRST_FILE_NUMBER = 999_998  # so that names get longer, and text order would be wrong
HEADER_END_POS = 157
FIRST_XID = 2**32 - 20  # 64 bits: the log's 32 bits wrap around
SERVER_UUID = "00000000-0000-0000-0000-00000000000a"

_WEIGHTS = {letter: bytes([1 + "eécaßzbB".index(letter)]) for letter in "eécaßzb"} | {"A": b"\4", "B": b"\7"}
"""A collation that sorts like no codepage, and in which a = A and b = B."""


def text_rank(text: str) -> bytes:
    return encode_bytes(b"".join(_WEIGHTS[letter] for letter in text))


def int_rank(value: int) -> bytes:
    return encode_integer(value, unsigned=False)


@dataclass(frozen=True)
class ModelTable:
    """A table of the model. `encoded_key` encodes the split key and `unique` the primary key, both from a whole key."""

    id: TableId
    split_columns: tuple[str, ...]
    value_range: tuple[Key, ...]
    encoded_key: Callable[[Key], bytes]
    unique: Callable[[Key], bytes]

    @property
    def is_integer(self) -> bool:
        return len(self.value_range[0]) == 1 and isinstance(self.value_range[0][0], int)


_TEXTS = ("", "e", "é", "c", "a", "A", "ß", "z", "b", "B", "ab", "AB", "ba", "ée", "zz", "bé")

TABLES = (
    ModelTable(
        TableId("shop", "numbers"),
        ("id",),
        tuple((n,) for n in [-(2**63), *range(-5, 30), 2**63 - 1]),
        lambda key: int_rank(key[0]),
        lambda key: int_rank(key[0]),
    ),
    ModelTable(
        TableId("shop", "names"),
        ("name",),
        tuple((t,) for t in _TEXTS),
        lambda key: text_rank(key[0]),
        lambda key: text_rank(key[0]),
    ),
    ModelTable(
        TableId("shop", "lines"),
        ("order_id", "line"),
        tuple((n, t) for n in (-1, 0, 7) for t in ("", "a", "A", "z")),
        lambda key: encode_composite([int_rank(key[0]), text_rank(key[1])]),
        lambda key: encode_composite([int_rank(key[0]), text_rank(key[1])]),
    ),
    ModelTable(  # split by the first column of its primary key only
        TableId("stock", "events"),
        ("day",),
        tuple((n, m) for n in (1, 2, 3) for m in range(4)),
        lambda key: int_rank(key[0]) + b"\0\0",
        lambda key: encode_composite([int_rank(key[0]), int_rank(key[1])]),
    ),
    ModelTable(  # without a key that could be split: what is called so here tells rows apart, for the log and the checks
        TableId("stock", "heap"),
        (),
        tuple((f"r{n}",) for n in range(9)),
        lambda key: str(key[0]).encode(),
        lambda key: str(key[0]).encode(),
    ),
)
PAGE_COUNT = 5


def page_of(key: Key, state: State) -> int:
    """The page of each row. Each transaction that changes a row moves it to another page."""
    return (int(str(key[0])[1:]) + 2 * state[0]) % PAGE_COUNT


@dataclass(frozen=True)
class Change:
    table: ModelTable
    key: Key
    state: State
    is_delete: bool


@dataclass(frozen=True)
class Transaction:
    """A committed transaction. The `end` of a binlog's transaction carries the GTIDs of all transactions up to it."""

    number: int
    changes: tuple[Change, ...]
    end: Position
    version: int

    @property
    def xid(self) -> int:
        """The transaction's id. Ids have another order than the log."""
        return xid_of(self.number)


def xid_of(number: int) -> int:
    xid = FIRST_XID + (number ^ 1)
    return xid if xid < 2**32 else xid + 3  # PostgreSQL gives 0, 1 and 2 to nobody


Rows = dict[tuple[TableId, Key], State]


@dataclass
class ModelDatabase:
    initial: frozenset[tuple[ModelTable, Key]]
    log: list[Transaction] = field(default_factory=list)
    places: list[tuple[int, ...]] = field(default_factory=list)
    """The number of each transaction, by which `prefix` counts it."""
    visible: set[int] = field(default_factory=set)
    file_number: int = FIRST_FILE_NUMBER
    file_sizes: list[int] = field(default_factory=lambda: [HEADER_END_POS])
    is_exact: bool = False
    """True if a split contains no more than what is visible to its SELECT (MariaDB)."""

    # --- writing

    def write(self, wishes: Iterable[tuple[int, int, int, int]], size_bytes: int, *, rotate: bool) -> None:
        """Writes a transaction of the `wishes` that are possible: (table, key, operation, other key)."""
        if rotate:
            self.file_sizes.append(HEADER_END_POS)
        number = len(self.log) + 1
        locked = {
            (change.table.id, change.table.unique(change.key))
            for transaction in self.log
            if transaction.number not in self.visible
            for change in transaction.changes
        }
        rows = self.rows_at(range(1, number))
        changes: list[Change] = []
        for table_index, key_index, operation, other_index in wishes:
            table = TABLES[table_index % len(TABLES)]
            key = table.value_range[key_index % len(table.value_range)]
            other = table.value_range[other_index % len(table.value_range)]
            held = {table.unique(k): k for t, k in rows if t == table.id}
            if {(table.id, table.unique(key)), (table.id, table.unique(other))} & locked:
                continue
            for change_key, is_delete in _row_changes(table, key, operation, other, held):
                change = Change(table, change_key, (number, len(changes)), is_delete)
                changes.append(change)
                _apply(rows, change)
        if changes:
            begin = self.position_now(number - 1)
            self.file_sizes[-1] += size_bytes
            self._append(number, tuple(changes), begin, self.position_now(number))

    def _append(self, number: int, changes: tuple[Change, ...], begin: Position, end: Position) -> None:
        self.log.append(Transaction(number, changes, end, end.version))
        self.places.append(end.order)

    def position_now(self, number: int) -> Position:
        last = self.files()[-1]
        return BinlogPosition(last.name, last.size_bytes, f"{SERVER_UUID}:1-{number}" if number else "")

    # --- reading

    def files(self) -> tuple[LogFile, ...]:
        first = self.file_number
        return tuple(LogFile(f"binlog.{first + i:06}", size) for i, size in enumerate(self.file_sizes))

    def extent(self) -> LogExtent:
        return BinlogExtent(self.files())

    def committed(self, position: Position) -> None:
        """Notes that everything before the position is in the sink and in the checkpoint."""

    def log_end(self) -> Position:
        return self.position_now(len(self.log))

    def transactions(self, log_range: LogRange) -> tuple[list[Transaction], Position]:
        """The transactions of the range, and the position where the range ends."""
        end = next(place for place in self.boundaries() if place.order >= log_range.stop.order)
        return self.log[self.prefix(log_range.start) : self.prefix(end)], end

    def boundaries(self) -> list[BinlogPosition]:
        """The ends of file headers and of transactions, in order. A range may end at each of them."""
        headers = [BinlogPosition(f.name, HEADER_END_POS) for f in self.files()]
        ends = [binlog_position(t.end) for t in self.log]
        places = sorted([*headers, *ends], key=lambda place: place.order)
        return [self.with_gtids(place) for place in places]

    def with_gtids(self, place: BinlogPosition) -> BinlogPosition:
        number = self.prefix(place)
        return BinlogPosition(place.file, place.pos, f"{SERVER_UUID}:1-{number}" if number else "")

    def prefix(self, place: Position) -> int:
        """The number of transactions before `place`."""
        return bisect_right(self.places, place.order)

    def rows_at(self, numbers: Iterable[int]) -> Rows:
        """All rows as these transactions left them."""
        rows: Rows = {(table.id, key): (0, 0) for table, key in self.initial}
        for number in sorted(numbers):
            for change in self.log[number - 1].changes:
                _apply(rows, change)
        return rows

    # --- KeySource: sees what is visible

    def describe(self, table: TableId, columns: tuple[str, ...]) -> KeyStatistics:
        keys = self._sorted_keys(table, columns)
        if not keys:
            return KeyStatistics(None, None, row_estimate=0, average_row_bytes=None)
        integers = None
        if _model_table(table).is_integer:
            integers = IntegerKey(int(keys[0][0]), int(keys[-1][0]), unsigned=False)
        greatest = self._bound(table, keys[-1])
        return KeyStatistics(greatest, integers, row_estimate=len(keys) * 1000, average_row_bytes=1)

    def next_bounds(
        self,
        table: TableId,
        columns: tuple[str, ...],
        *,
        after: Bound | None,
        until: Bound | None,
        rows: int,
        count: int,
    ) -> Sequence[Bound]:
        keys = self._sorted_keys(table, columns)
        encoded_keys = [rank_hex(_model_table(table), key) for key in keys]
        at = 0 if after is None else bisect_left(encoded_keys, after.encoded_key)
        limit = len(keys) if until is None else bisect_left(encoded_keys, until.encoded_key)
        bounds: list[Bound] = []
        while len(bounds) < count:
            at += rows
            if at < limit:
                at = bisect_right(encoded_keys, encoded_keys[at - 1])
            if at >= limit:
                break
            bounds.append(self._bound(table, keys[at]))
        return bounds

    def size(self, table: TableId) -> TableSize:
        return TableSize(None, None)

    def sees(self, position: Position, unseen: Sequence[int]) -> bool:
        return not self.is_exact or self.prefix(position) <= len(self.visible)

    def _sorted_keys(self, table: TableId, columns: tuple[str, ...]) -> list[Key]:
        model = _model_table(table)
        assert columns == model.split_columns
        return sorted((key for t, key in self.rows_at(self.visible) if t == table), key=model.encoded_key)

    def _bound(self, table: TableId, key: Key) -> Bound:
        model = _model_table(table)
        return Bound(tuple(str(part) for part in key[: len(model.split_columns)]), rank_hex(model, key))


@dataclass
class WalDatabase(ModelDatabase):
    """PostgreSQL: a transaction's position is that of its commit record, and a range may end at any position."""

    has_pages: bool = True
    kept_from_lsn: int = 0
    exported: dict[TableId, tuple[SharedSnapshot, frozenset[int]]] = field(default_factory=dict)
    """The snapshots that the driver's sessions hold: each with the transactions that it contains."""

    def _append(self, number: int, changes: tuple[Change, ...], begin: Position, end: Position) -> None:
        self.log.append(Transaction(number, changes, end, begin.version))
        self.places.append(begin.order)

    def position_now(self, number: int) -> Position:
        return WalPosition(sum(self.file_sizes))

    def extent(self) -> LogExtent:
        return WalExtent(WalPosition(self.kept_from_lsn), WalPosition(sum(self.file_sizes)))

    def committed(self, position: Position) -> None:
        self.kept_from_lsn = position.version

    def transactions(self, log_range: LogRange) -> tuple[list[Transaction], Position]:
        assert log_range.start.version >= self.kept_from_lsn, "the slot no longer has it"
        return self.log[self.prefix(log_range.start) : self.prefix(log_range.stop)], log_range.stop

    def prefix(self, place: Position) -> int:
        return bisect_left(self.places, place.order)

    def sees(self, position: Position, unseen: Sequence[int]) -> bool:
        numbers = {xid_of(transaction.number) % 2**32: transaction.number for transaction in self.log}
        return {numbers[xid] for xid in unseen} <= self.visible

    def pages(self, table: TableId) -> PageStatistics | None:
        if not self.has_pages:
            return None
        rows = sum(t == table for t, _ in self.rows_at(self.visible))
        return PageStatistics(PAGE_COUNT, 1, rows or None)

    def share_snapshot(self, table: TableId) -> SharedSnapshot:
        high = WalPosition(self.log_end().version, self.snapshot())
        shared = SharedSnapshot("the same name each time", high, 0, filenode=1)
        self.exported[table] = shared, frozenset(self.visible)
        return shared

    def is_shared(self, table: TableId, snapshot: SharedSnapshot) -> bool:
        return table in self.exported and self.exported[table][0] == snapshot

    def release_snapshot(self, table: TableId) -> None:
        self.exported.pop(table, None)

    def snapshot(self) -> str:
        """The value of pg_current_snapshot() for what is visible now."""
        visible = {xid_of(number) for number in self.visible}
        xmax = max(visible, default=FIRST_XID) + 1
        given = [xid for xid in range(FIRST_XID, xmax) if xid % 2**32 > 2]
        running = [xid for xid in given if xid not in visible]
        return f"{min([*running, xmax])}:{xmax}:{','.join(map(str, running))}"


@cache
def rank_hex(table: ModelTable, key: Key) -> str:
    return table.encoded_key(key).hex()


def in_range(table: ModelTable, key: Key, key_range: KeyRange) -> bool:
    encoded_key = rank_hex(table, key)
    return (key_range.start is None or key_range.start.encoded_key <= encoded_key) and (
        key_range.end is None or encoded_key < key_range.end.encoded_key
    )


def on_pages(page: int, key_range: KeyRange) -> bool:
    """Whether the page is in a range of pages."""
    encoded_key = encode_integer(page, unsigned=True).hex()
    start, end = key_range.start, key_range.end
    return (start is None or start.encoded_key <= encoded_key) and (end is None or encoded_key < end.encoded_key)


def _model_table(table: TableId) -> ModelTable:
    return next(t for t in TABLES if t.id == table)


def _row_changes(
    table: ModelTable, key: Key, operation: int, other: Key, held: dict[bytes, Key]
) -> list[tuple[Key, bool]]:
    """(key, is it a delete?) as the log reader gives them: a changed key is a delete and an insert."""
    found = held.get(table.unique(key))
    if found is None:
        return [(key, False)]
    match operation % 4:
        case 0:
            return [(found, True)]
        case 1 if held.get(table.unique(other)) in (None, found) and other != found:
            return [(found, True), (other, False)]
        case 2:
            return [(found, True), (found, False)]  # deleted and inserted again
        case _:
            return [(found, False)]


def _apply(rows: Rows, change: Change) -> None:
    if change.is_delete:
        rows.pop((change.table.id, change.key))
    else:
        rows[(change.table.id, change.key)] = change.state
