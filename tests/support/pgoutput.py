"""pgoutput's messages (protocol version 1) in COPY's binary form, written and read in plain Python: slow, obvious, and
independent of the compiled loop.

`read_log` gives the changes as the reader has to: dicts of a row's columns, "table" and the meta columns.
"""

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, TypeAlias

from tidemark.readers.postgres.slot.log_source import ConnectionLostError
from tidemark.state.position import WalPosition
from tidemark.state.table import TableId, TableSchema

UNCHANGED = "unchanged"
Values: TypeAlias = Sequence[bytes | str | None]
"""Texts, None for null, the str UNCHANGED for what was TOASTed and is not repeated."""
Change: TypeAlias = dict[str, Any]

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
EPOCH = datetime(2000, 1, 1, tzinfo=timezone.utc)
TYPE_OIDS = {"bigint": 20, "text": 25, "boolean": 16, "bytea": 17, "numeric(10,2)": 1700}
TYPE_NAMES = {(oid, -1): name for name, oid in TYPE_OIDS.items()}


class RefusedError(Exception):
    """The bytes are no log."""


def copy_rows(messages: Sequence[bytes]) -> bytes:
    return HEADER + b"".join(struct.pack(">HI", 1, len(m)) + m for m in messages) + TRAILER


def begin(lsn: int, microseconds: int, xid: int) -> bytes:
    return b"B" + struct.pack(">QqI", lsn, microseconds, xid)


def commit(lsn: int, microseconds: int) -> bytes:
    return b"C" + struct.pack(">BQQq", 0, lsn, lsn + 48, microseconds)


def relation(number: int, schema: TableSchema, identity: str) -> bytes:
    """A relation message. `identity`: d, n or f."""
    columns = b""
    for column in schema.columns:
        flag = identity == "f" or (identity == "d" and column.name in schema.key)
        oid = TYPE_OIDS[column.source_type]
        columns += bytes([flag]) + column.name.encode() + b"\0" + struct.pack(">Ii", oid, -1)
    name = schema.table.database.encode() + b"\0" + schema.table.name.encode() + b"\0"
    return (
        b"R" + struct.pack(">I", number) + name + identity.encode() + struct.pack(">H", len(schema.columns)) + columns
    )


def insert(number: int, new: Values) -> bytes:
    return b"I" + struct.pack(">I", number) + b"N" + _tuple(new)


def update(number: int, new: Values, old: Values | None = None, form: bytes = b"O") -> bytes:
    """An update message. `form`: K for the key alone, O for the whole old row."""
    return b"U" + struct.pack(">I", number) + (b"" if old is None else form + _tuple(old)) + b"N" + _tuple(new)


def delete(number: int, old: Values, form: bytes) -> bytes:
    return b"D" + struct.pack(">I", number) + form + _tuple(old)


def truncate(*numbers: int) -> bytes:
    return b"T" + struct.pack(f">IB{len(numbers)}I", len(numbers), 0, *numbers)


def _tuple(values: Values) -> bytes:
    parts = [struct.pack(">H", len(values))]
    for value in values:
        match value:
            case None:
                parts.append(b"n")
            case str():
                parts.append(b"u")
            case _:
                parts.append(b"t" + struct.pack(">I", len(value)) + value)
    return b"".join(parts)


# Reading


@dataclass
class _Cursor:
    data: bytes
    at: int = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise RefusedError(f"{size} bytes at {self.at} of {len(self.data)}")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def name(self) -> str:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise RefusedError("a name without end")
        name = self.take(end - self.at)
        self.at += 1
        try:
            return name.decode()
        except UnicodeDecodeError as exc:
            raise RefusedError("a name that is no text") from exc

    def end(self) -> None:
        if self.at != len(self.data):
            raise RefusedError("bytes behind the end")


@dataclass(frozen=True)
class _Table:
    schema: TableSchema | None
    names: tuple[str, ...] = ()
    identity: str = "d"
    flagged: frozenset[str] = frozenset()
    fits: bool = True

    @property
    def identified(self) -> bool:
        assert self.schema is not None
        return self.identity == "f" or (bool(self.schema.key) and self.flagged >= set(self.schema.key))


@dataclass
class _Reader:
    """A reader of one log. `changes` are those in [start, stop)."""

    schemas: Mapping[TableId, TableSchema]
    start: int
    stop: int
    changes: list[Change] = field(default_factory=list)
    tables: dict[int, _Table] = field(default_factory=dict)
    open: bool = False
    last: int = -1
    lsn: int = 0
    time: int = 0
    xid: int = 0
    seq: int = 0

    @property
    def wanted(self) -> bool:
        return self.start <= self.lsn < self.stop

    def message(self, data: bytes) -> None:
        cursor = _Cursor(data)
        match cursor.take(1):
            case b"B":
                self.begin(cursor)
                cursor.end()
            case b"C":
                cursor.take(1)
                if not self.open or cursor.number(8) != self.lsn:
                    raise RefusedError("a commit of something else")
                cursor.take(16)
                self.open = False
                cursor.end()
            case b"R":
                self.relation(cursor)
                cursor.end()
            case b"I" | b"U" | b"D":
                if not self.open:
                    raise RefusedError("a change outside of a transaction")
                if self.wanted:
                    self.change(data[:1], cursor)
            case b"T":
                count = cursor.number(4)
                cursor.take(1)
                numbers = [cursor.number(4) for _ in range(count)]
                cursor.end()
                if not self.open:
                    raise RefusedError("a truncate outside of a transaction")
                schemas = [self.tables[n].schema for n in numbers if n in self.tables]
                for schema in filter(None, schemas if self.wanted else ()):
                    self.add_change(schema, 4, dict.fromkeys(column.name for column in schema.captured))
            case b"O" | b"Y" | b"M":
                pass
            case _:
                raise RefusedError("an unknown message")

    def begin(self, cursor: _Cursor) -> None:
        if self.open:
            raise RefusedError("a transaction in a transaction")
        self.lsn = int.from_bytes(cursor.take(8), "big", signed=True)
        if self.lsn <= self.last:
            raise RefusedError("out of order")
        self.open, self.last, self.seq = True, self.lsn, 0
        self.time, self.xid = int.from_bytes(cursor.take(8), "big", signed=True), cursor.number(4)

    def relation(self, cursor: _Cursor) -> None:
        number = cursor.number(4)
        cursor.name(), cursor.name()  # a table is known by its number: it may have been renamed
        identity = cursor.take(1).decode("latin1")
        if identity not in "dnfi":
            raise RefusedError("an unknown identity")
        columns = []
        for _ in range(cursor.number(2)):
            flags, name = cursor.number(1), cursor.name()
            oid, modifier = cursor.number(4), int.from_bytes(cursor.take(4), "big", signed=True)
            columns.append((name, flags & 1, TYPE_NAMES.get((oid, modifier), "???")))
        schema = next((schema for schema in self.schemas.values() if schema.oid == number), None)
        if schema is None:
            self.tables[number] = _Table(None)
            return
        types = {name: kind for name, _, kind in columns}
        fits = set(types) <= {c.name for c in schema.columns}
        fits = fits and all(types.get(c.name) == c.source_type for c in schema.captured)
        flagged = frozenset(name for name, flag, _ in columns if flag)
        self.tables[number] = _Table(schema, tuple(name for name, _, _ in columns), identity, flagged, fits)

    def change(self, kind: bytes, cursor: _Cursor) -> None:
        table = self.tables.get(cursor.number(4))
        form = cursor.take(1)
        cursor.at -= 1
        if len(cursor.data) < 8:
            raise RefusedError("too short")
        if table is None:
            raise RefusedError("not described")
        schema = table.schema
        if schema is None:
            return
        if not table.fits:
            raise RefusedError("another schema")
        if kind != b"I" and not table.identified:
            raise RefusedError("no identity")
        old = None
        if kind != b"I" and form in b"KO":
            old = self.values(table, cursor)
        if kind == b"D":
            cursor.end()
            if old is None:
                raise RefusedError("a delete of nothing")
            self.add(schema, 3, self.without_marks(old))
            return
        if cursor.take(1) != b"N":
            raise RefusedError("no new row")
        cursor.at -= 1
        new = self.values(table, cursor)
        cursor.end()
        if kind == b"I":
            if UNCHANGED in new.values():
                raise RefusedError("a new row without all values")
            self.add(schema, 0, new)
            return
        if old is None:
            if not schema.key:
                raise RefusedError("no old row")
            self.add(schema, 2, new)
            return
        for name, value in new.items():
            if value == UNCHANGED and (isinstance(old[name], bytes) or (old[name] is None and form == b"O")):
                new[name] = old[name]
        if schema.key and all(new[name] == old[name] for name in schema.key):
            self.add(schema, 2, new)
        else:
            self.add(schema, 3, self.without_marks(old))
            self.add(schema, 0, new)

    def values(self, table: _Table, cursor: _Cursor) -> dict[str, bytes | str | None]:
        cursor.take(1)
        if cursor.number(2) != len(table.names):
            raise RefusedError("another number of columns")
        values: dict[str, bytes | str | None] = {}
        for name in table.names:
            match cursor.take(1):
                case b"n":
                    values[name] = None
                case b"u":
                    values[name] = UNCHANGED
                case b"t":
                    values[name] = cursor.take(cursor.number(4))
                case _:
                    raise RefusedError("no text")
        return values

    @staticmethod
    def without_marks(values: dict[str, bytes | str | None]) -> dict[str, bytes | str | None]:
        return {name: None if value == UNCHANGED else value for name, value in values.items()}

    def add(self, schema: TableSchema, kind: int, values: dict[str, bytes | str | None]) -> None:
        if any(not isinstance(values[name], bytes) for name in schema.key):
            raise RefusedError("no key")
        self.add_change(schema, kind, values)

    def add_change(self, schema: TableSchema, kind: int, values: Mapping[str, bytes | str | None]) -> None:
        change: Change = {"table": schema.table}
        for column in schema.captured:
            value = values[column.name]
            change[column.name] = read_value(column.source_type, value) if isinstance(value, bytes) else None
        unchanged = [column.name for column in schema.captured if values[column.name] == UNCHANGED]
        change |= {
            "_change_type": kind,
            "_commit_version": self.lsn,
            "_commit_timestamp": EPOCH + timedelta(microseconds=self.time),
            "_seq": self.seq,
            "_txn_id": str(self.xid),
            "_is_snapshot": False,
        }
        if schema.toastable:
            change["_unchanged"] = unchanged or None
        if not set(unchanged) <= set(schema.toastable):
            raise RefusedError("a short value was left out")
        self.changes.append(change)
        self.seq += 1


def read_log(data: bytes, schemas: Collection[TableSchema], start: int, stop: int) -> list[Change]:
    """The changes of the tables in [start, stop). Raises RefusedError."""
    cursor = _Cursor(data)
    if cursor.take(len(HEADER)) != HEADER:
        raise RefusedError("no COPY")
    reader = _Reader({schema.table: schema for schema in schemas}, start, stop)
    while (fields := cursor.number(2)) != 0xFFFF:
        size = cursor.number(4)
        if fields != 1 or not 0 < size < 1 << 31:
            raise RefusedError("no column")
        reader.message(cursor.take(size))
    cursor.end()
    if reader.open:
        raise RefusedError("no commit")
    return reader.changes


def read_value(source_type: str, text: bytes) -> Any:
    try:
        match source_type, text:
            case "bigint", _:
                return int(text)
            case "boolean", b"t" | b"f":
                return text == b"t"
            case "bytea", _ if text[:2] == b"\\x":
                return bytes.fromhex(text[2:].decode())
            case "numeric(10,2)", _:
                return Decimal(text.decode()).quantize(Decimal("0.01"))
            case "text", _:
                return text.decode()
    except (ValueError, ArithmeticError) as exc:
        raise RefusedError("no value") from exc
    raise RefusedError("no value")


# A log for the reader


@dataclass
class BytesLog:
    """`log_source.LogSource`, without a server: `data` in pieces of `piece_bytes`. The connection breaks after each of
    `breaks` bytes, one after the other."""

    data: bytes
    piece_bytes: int = 1 << 20
    breaks: list[int] = field(default_factory=list)
    opened: int = 0

    def open(self, start: WalPosition, stop: WalPosition) -> "BytesStream":
        self.opened += 1
        return BytesStream(self.pieces(self.breaks.pop(0) if self.breaks else None))

    def type_names(self, types: Collection[tuple[int, int]], stop: WalPosition) -> Mapping[tuple[int, int], str]:
        return {pair: TYPE_NAMES.get(pair, "???") for pair in types}

    def pieces(self, limit: int | None) -> Iterator[bytes]:
        data = self.data[:limit]
        for at in range(0, len(data), self.piece_bytes):
            yield data[at : at + self.piece_bytes]
        if limit is not None:
            raise ConnectionLostError("broken")


@dataclass
class BytesStream:
    pieces: Iterator[bytes]
    rest: bytes = b""

    def receive(self, into: memoryview) -> int:
        if not self.rest:
            self.rest = next(self.pieces, b"")
        size = min(len(self.rest), len(into))
        into[:size] = self.rest[:size]
        self.rest = self.rest[size:]
        return size

    def close(self) -> None:
        self.rest = b""
