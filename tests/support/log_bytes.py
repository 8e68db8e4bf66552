"""Binlog events made by hand, and a log server in a thread that sends them as a real one would.

The table of these tests is `shop.t (id INT PRIMARY KEY, v VARCHAR(200))` (TABLE), or others of the same columns.
"""

import socket
import struct
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import zstandard

from tidemark.readers.mysql.binlog.events import EventType
from tidemark.readers.mysql.connect import Flavour
from tidemark.state.table import Column, TableId, TableSchema

SERVER = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
TABLE = TableId("shop", "t")
SECONDS = 1_700_000_000
MICROS = SECONDS * 1_000_000 + 123_456

Row = tuple[int, str | None]


def schema(table: TableId = TABLE, version: int = 1) -> TableSchema:
    columns = (
        Column("id", "int", "int32", False),
        Column("v", "varchar(200)", "string", True, charset="utf8mb4", collation="utf8mb4_0900_ai_ci"),
    )
    return TableSchema(table, version, columns, ("id",))


# Bodies


def packed(number: int) -> bytes:
    if number < 251:
        return bytes([number])
    if number < 1 << 16:
        return b"\xfc" + number.to_bytes(2, "little")
    if number < 1 << 24:
        return b"\xfd" + number.to_bytes(3, "little")
    return b"\xfe" + number.to_bytes(8, "little")


def gtid(number: int, source: uuid.UUID = SERVER, micros: int | None = MICROS) -> tuple[int, bytes]:
    body = b"\0" + source.bytes + struct.pack("<qBqq", number, 2, number - 1, number)
    if micros is not None:
        body += micros.to_bytes(7, "little") + packed(200) + struct.pack("<I", 80400)
    return EventType.GTID, body


def anonymous() -> tuple[int, bytes]:
    _, body = gtid(1)
    return EventType.ANONYMOUS_GTID, body[:1] + bytes(24) + body[25:]


def mariadb_gtid(number: int, flags: int = 0, domain: int = 0) -> tuple[int, bytes]:
    return EventType.MARIADB_GTID, struct.pack("<qIB", number, domain, flags) + bytes(6)


def query(text: str | bytes, database: str = "shop", *, status: bytes = b"") -> tuple[int, bytes]:
    content = text if isinstance(text, bytes) else text.encode()
    name = database.encode()
    return EventType.QUERY, struct.pack("<IIBHH", 7, 0, len(name), 0, len(status)) + status + name + b"\0" + content


def xid(number: int = 1) -> tuple[int, bytes]:
    return EventType.XID, struct.pack("<q", number)


def table_map(table_id: int, table: TableId = TABLE, *, names: Sequence[str] | None = ("id", "v")) -> tuple[int, bytes]:
    body = table_id.to_bytes(6, "little") + b"\1\0"
    for name in (table.database, table.name):
        body += bytes([len(name.encode())]) + name.encode() + b"\0"
    body += b"\2" + bytes([3, 15]) + b"\2" + struct.pack("<H", 800) + b"\2"
    optional = [(1, b"\0"), (2, packed(255)), (8, b"\0")]
    if names is not None:
        optional.append((4, b"".join(bytes([len(n.encode())]) + n.encode() for n in names)))
    return EventType.TABLE_MAP, body + b"".join(bytes([kind]) + packed(len(value)) + value for kind, value in optional)


def image(row: Row) -> bytes:
    number, text = row
    nulls = 2 if text is None else 0
    value = b"" if text is None else struct.pack("<H", len(text.encode())) + text.encode()
    return bytes([nulls]) + struct.pack("<i", number) + value


def rows(kind: int, table_id: int, images: Iterable[bytes], *, present: int = 3) -> tuple[int, bytes]:
    """A row event. `images` of updates: both, one after the other."""
    v1 = kind <= EventType.DELETE_ROWS_V1
    body = table_id.to_bytes(6, "little") + b"\1\0" + (b"" if v1 else b"\2\0") + b"\2" + bytes([present])
    if kind in {EventType.UPDATE_ROWS, EventType.UPDATE_ROWS_V1}:
        body += bytes([present])
    return kind, body + b"".join(images)


def write(table_id: int, *new: Row) -> tuple[int, bytes]:
    return rows(EventType.WRITE_ROWS, table_id, map(image, new))


def delete(table_id: int, *old: Row) -> tuple[int, bytes]:
    return rows(EventType.DELETE_ROWS, table_id, map(image, old))


def update(table_id: int, *pairs: tuple[Row, Row]) -> tuple[int, bytes]:
    return rows(EventType.UPDATE_ROWS, table_id, (image(row) for pair in pairs for row in pair))


def xa_prepare(name: bytes, *, one_phase: bool = False) -> tuple[int, bytes]:
    return EventType.XA_PREPARE, struct.pack("<BIII", one_phase, 1, len(name), 0) + name


def rotate(file: str, pos: int = 4) -> tuple[int, bytes]:
    return EventType.ROTATE, struct.pack("<q", pos) + file.encode()


def previous_gtids(last: int, source: uuid.UUID = SERVER) -> tuple[int, bytes]:
    if last == 0:
        return EventType.PREVIOUS_GTIDS, struct.pack("<q", 0)
    return EventType.PREVIOUS_GTIDS, struct.pack("<q", 1) + source.bytes + struct.pack("<qqq", 1, 1, last + 1)


def format_description(*, created: int = 0, checksum: bool = True) -> tuple[int, bytes]:
    lengths = bytearray(171)
    for kind, size in {2: 13, 4: 8, 15: 95, 19: 8, 23: 8, 24: 8, 25: 8, 30: 10, 31: 10, 32: 10, 162: 19}.items():
        lengths[kind - 1] = size
    version = b"9.0.0-test".ljust(50, b"\0")
    return EventType.FORMAT_DESCRIPTION, (
        struct.pack("<H", 4) + version + struct.pack("<IB", created, 19) + bytes(lengths) + bytes([checksum])
    )


def event(
    kind: int, body: bytes, *, end_pos: int = 0, flags: int = 0, checksum: bool = True, seconds: int = SECONDS
) -> bytes:
    size = 19 + len(body) + (4 if checksum else 0)
    content = struct.pack("<IBIIIH", seconds, kind, 1, size, end_pos & 0xFFFFFFFF, flags) + body
    return content + (checksum_of(content) if checksum else b"")


def checksum_of(content: bytes) -> bytes:
    return struct.pack("<I", zlib.crc32(content))


def bare_events(parts: Iterable[tuple[int, bytes]]) -> bytes:
    """Events as they are inside a payload."""
    return b"".join(event(kind, body, checksum=False) for kind, body in parts)


def payload(parts: Iterable[tuple[int, bytes]], *, compressed: bool = True) -> tuple[int, bytes]:
    """A whole transaction, except its GTID."""
    plain = bare_events(parts)
    data = zstandard.ZstdCompressor().compress(plain) if compressed else plain
    fields = [(2, 0 if compressed else 255), (3, len(plain)), (1, len(data))]
    head = b"".join(bytes([kind, len(packed(value))]) + packed(value) for kind, value in fields)
    return EventType.TRANSACTION_PAYLOAD, head + b"\0" + data


# A server


@dataclass
class LogFile:
    """Events with their positions; `add` returns the position after the last one. `encrypted`: as MariaDB sends a file that
    it wrote with encrypt_binlog."""

    name: str
    created: int = 0
    checksum: bool = True
    encrypted: bool = False
    events: list[tuple[int, bytes]] = field(default_factory=list)
    end: int = 4

    def __post_init__(self) -> None:
        kind, body = format_description(created=self.created, checksum=self.checksum)
        content = event(kind, body, end_pos=4 + 19 + len(body) + 4)
        self.events.append((4, content))
        self.end += len(content)
        if self.encrypted:
            self.add(START_ENCRYPTION)

    def add(self, *parts: tuple[int, bytes]) -> int:
        for kind, body in parts:
            size = 19 + len(body) + (4 if self.checksum else 0)
            self.events.append((self.end, event(kind, body, end_pos=self.end + size, checksum=self.checksum)))
            self.end += size
        return self.end

    def add_raw(self, content: bytes) -> int:
        self.events.append((self.end, content))
        self.end += len(content)
        return self.end


def framed(content: bytes) -> bytes:
    """The content as packets: one, or several where it is too long."""
    content = b"\0" + content
    packets = b""
    while True:
        part, content = content[:0xFFFFFF], content[0xFFFFFF:]
        packets += len(part).to_bytes(3, "little") + b"\0" + part
        if len(part) < 0xFFFFFF:
            return packets


START_ENCRYPTION = EventType.MARIADB_START_ENCRYPTION, bytes.fromhex("01010000007b8787dce5627b4a672bc101")
"""As MariaDB 10.11 sends it: in its position, and a second time, with end position 0, to a dump that starts further on."""

END = b"\5\0\0\0\xfe\0\0\2\0"


def error_packet(code: int, text: str) -> bytes:
    payload = b"\xff" + struct.pack("<H", code) + b"#HY000" + text.encode()
    return len(payload).to_bytes(3, "little") + b"\0" + payload


class FakeCursor:
    def __enter__(self) -> "FakeCursor":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def execute(self, statement: str, arguments: object = None) -> None:
        self.statement = statement

    def fetchall(self) -> list[tuple[Any, ...]]:
        return [(255, "utf8mb4"), (8, "latin1")] if "COLLATION" in self.statement else []


class FakeConnection:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def cursor(self) -> FakeCursor:
        return FakeCursor()

    def get_host_info(self) -> str:
        return "nowhere"

    def get_server_info(self) -> str:
        return "8.0.0"

    def close(self) -> None:
        self._sock.close()

    def _force_close(self) -> None:
        self._sock.close()


@dataclass
class LogServer:
    """A LogSource. `cut`: how many bytes of the next dumps go through before the connection breaks, one entry a dump.
    `chunk`: bytes a send. `damage`: changes what a dump sends. `isolated`: tables whose writes change no other table.
    `primary_keys`: of the tables that have one."""

    files: list[LogFile]
    flavour: Flavour = "mysql"
    lower_case_names: bool = False
    server_ids: tuple[int, ...] = (71, 72)
    logs_cascades: bool = True
    lacks_generated: bool = False
    isolated: frozenset[TableId] = frozenset()
    primary_keys: dict[TableId, tuple[str, ...]] = field(default_factory=dict)
    cut: list[int | None] = field(default_factory=list)
    chunk: int = 1 << 16
    damage: Callable[[bytes], bytes] | None = None
    dumps: list[tuple[str, int, int]] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def open(self) -> Any:
        ours, theirs = socket.socketpair()
        cut = self.cut.pop(0) if self.cut else None
        thread = threading.Thread(target=self._serve, args=(theirs, cut), daemon=True)
        self._threads.append(thread)
        thread.start()
        return FakeConnection(ours)

    def default_charset(self, table: TableId) -> str:
        return "utf8mb4"

    def is_isolated(self, table: TableId) -> bool:
        return table in self.isolated

    def primary_key(self, table: TableId) -> tuple[str, ...]:
        return self.primary_keys.get(table, ())

    def file_names(self) -> list[str]:
        return [file.name for file in self.files]

    def join(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _serve(self, sock: socket.socket, cut: int | None) -> None:
        with sock, suppress(OSError):
            head = sock.recv(4, socket.MSG_WAITALL)
            if len(head) < 4:
                return
            command = sock.recv(int.from_bytes(head[:3], "little"), socket.MSG_WAITALL)
            pos, _, server_id = struct.unpack_from("<IHI", command, 1)
            file = command[11:].decode()
            self.dumps.append((file, pos, server_id))
            data = self.stream(file, pos)
            if self.damage is not None:
                data = self.damage(data)
            for at in range(0, len(data[:cut]), self.chunk):
                sock.sendall(data[at : min(at + self.chunk, cut if cut is not None else len(data))])

    def stream(self, name: str, pos: int) -> bytes:
        numbers = [file.name for file in self.files]
        if name not in numbers:
            return error_packet(1236, "Could not find first log file name in binary log index file")
        data = []
        for file in self.files[numbers.index(name) :]:
            start = pos if file.name == name else 4
            if start > file.end:
                return error_packet(1236, "Client requested source to start replication from position > file size")
            data.append(framed(event(*rotate(file.name, start), flags=0x20)))
            if start > 4:
                kind, body = format_description(checksum=file.checksum)
                data.append(framed(event(kind, body, flags=0x20)))
                if file.encrypted:
                    kind, body = START_ENCRYPTION
                    data.append(framed(event(kind, body, flags=0x80, checksum=file.checksum)))
            data += [framed(content) for place, content in file.events if place >= start]
        return b"".join(data) + END


@contextmanager
def serving(server: LogServer):  # type: ignore[no-untyped-def]
    """Runs the server, and waits for its threads at the end."""
    yield server
    server.join()
