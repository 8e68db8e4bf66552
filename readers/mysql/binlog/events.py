"""Binlog events: type codes, and parsers for the events that are rare enough to be read in Python.

Every function takes an event's body (after the header of 19 bytes, without the checksum) and raises DamagedLogError
if the body does not have its documented format.
Formats: https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_replication_binlog_event.html (MySQL) and
https://mariadb.com/docs/server/reference/clientserver-protocol/replication-protocol (MariaDB).
"""

import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from tidemark.readers.mysql.decoding.charsets import MAX_CHARACTER_BYTES, UTF8, decode_text
from tidemark.state.errors import DamagedLogError
from tidemark.state.gtid import GtidSet
from tidemark.state.remedies import DAMAGED_SOURCE

HEADER_BYTES = 19
CHECKSUM_BYTES = 4
FILE_START = 4
"""The position of a binlog file's first event, after the magic number."""

FLAGS = 17
"""Their offset in the header."""
SESSION_FLAG = 0x04
"""The statement depends on its session, for example on temporary tables."""
ARTIFICIAL_FLAG = 0x20
"""The server made the event for this connection. It is not in the file."""


class EventType(IntEnum):
    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    APPEND_BLOCK = 9
    DELETE_FILE = 11
    RAND = 13
    USER_VAR = 14
    FORMAT_DESCRIPTION = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    MARIADB_ANNOTATE_ROWS = 160
    MARIADB_BINLOG_CHECKPOINT = 161
    MARIADB_GTID = 162
    MARIADB_GTID_LIST = 163
    MARIADB_START_ENCRYPTION = 164
    MARIADB_QUERY_COMPRESSED = 165
    MARIADB_WRITE_ROWS_COMPRESSED_V1 = 166
    MARIADB_UPDATE_ROWS_COMPRESSED_V1 = 167
    MARIADB_DELETE_ROWS_COMPRESSED_V1 = 168
    MARIADB_WRITE_ROWS_COMPRESSED = 169
    MARIADB_UPDATE_ROWS_COMPRESSED = 170
    MARIADB_DELETE_ROWS_COMPRESSED = 171


class WrongChecksumError(DamagedLogError):
    """An event has not the bytes that the server wrote."""


def wrong_checksum(what: str) -> DamagedLogError:
    return WrongChecksumError(f"The binary log is damaged: {what}.", DAMAGED_SOURCE)


def damaged(what: str) -> DamagedLogError:
    return DamagedLogError(f"The binary log is damaged: {what}.", DAMAGED_SOURCE)


class Reader:
    """Reads a body from front to back, never beyond its end."""

    __slots__ = ("body", "name", "pos")

    def __init__(self, body: bytes, name: str) -> None:
        self.body = body
        self.name = name
        self.pos = 0

    @property
    def left(self) -> int:
        return len(self.body) - self.pos

    def take(self, size: int) -> bytes:
        if size < 0 or size > self.left:
            raise damaged(f"{self.name} ends before its content does")
        self.pos += size
        return self.body[self.pos - size : self.pos]

    def text(self, size: int) -> str:
        """Reads a name. The servers always write names in UTF-8."""
        try:
            return self.take(size).decode("utf-8")
        except UnicodeDecodeError as exc:
            raise damaged(f"{self.name} has a name that is not UTF-8") from exc

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def text_until_zero(self) -> str:
        end = self.body.find(0, self.pos)
        if end < 0:
            raise damaged(f"{self.name} ends before its content does")
        found = self.text(end - self.pos)
        self.pos += 1
        return found

    def packed(self) -> int:
        """A length-encoded integer."""
        first = self.number(1)
        if first < 251:
            return first
        if first == 251 or first == 255:
            raise damaged(f"{self.name} has an invalid length")
        return self.number({252: 2, 253: 3, 254: 8}[first])

    def varying(self) -> int:
        """An integer of mysql::serialization: the count of low bits set in the first byte is the count of further bytes."""
        first = self.number(1)
        extra = (~first & (first + 1)).bit_length() - 1
        if extra >= 8:
            return self.number(8)
        return (first | self.number(extra) << 8) >> (extra + 1)

    def varying_signed(self) -> int:
        value = self.varying()
        return -(value >> 1) - 1 if value & 1 else value >> 1


@dataclass(frozen=True, slots=True)
class FormatDescription:
    server_version: str
    created_seconds: int
    """Not 0 if a server start created the file: an unfinished transaction of the previous file is rolled back."""
    checksum_bytes: int


def format_description(body_and_checksum: bytes) -> FormatDescription:
    """Takes the body with its checksum: this event has one even if the log has none."""
    reader = Reader(body_and_checksum, "a FORMAT_DESCRIPTION event")
    if reader.number(2) != 4:
        raise damaged("its format is not version 4")
    version = reader.take(50).rstrip(b"\0").decode("ascii", "replace")
    created = reader.number(4)
    header = reader.number(1)
    lengths = reader.take(reader.left - 1 - CHECKSUM_BYTES)
    algorithm = reader.number(1)
    if header != HEADER_BYTES or algorithm > 1:
        raise damaged(f"server {version} writes headers of {header} bytes and checksums of type {algorithm}")
    for kind, wanted in _POST_HEADERS.items():
        if kind <= len(lengths) and lengths[kind - 1] not in {wanted, 0}:
            raise damaged(f"server {version} writes {kind.name} with a fixed part of {lengths[kind - 1]} bytes")
    return FormatDescription(version, created, CHECKSUM_BYTES if algorithm else 0)


_POST_HEADERS = {
    EventType.QUERY: 13,
    EventType.ROTATE: 8,
    EventType.TABLE_MAP: 8,
    EventType.WRITE_ROWS_V1: 8,
    EventType.UPDATE_ROWS_V1: 8,
    EventType.DELETE_ROWS_V1: 8,
    EventType.WRITE_ROWS: 10,
    EventType.UPDATE_ROWS: 10,
    EventType.DELETE_ROWS: 10,
    EventType.MARIADB_GTID: 19,
}
"""The sizes of the fixed parts that the compiled loop assumes."""


def rotate(body: bytes) -> tuple[str, int]:
    """The next file and the position in it."""
    reader = Reader(body, "a ROTATE event")
    pos = reader.number(8)
    return reader.text(reader.left), pos


def previous_gtids(body: bytes) -> GtidSet:
    """The GTIDs before a file. Servers since 8.3 use a second format once a GTID has a tag."""
    reader = Reader(body, "a PREVIOUS_GTIDS event")
    first = reader.number(8)
    tagged = first >> 56 == 1
    if not tagged and first >> 56:
        raise damaged(f"a PREVIOUS_GTIDS event has the unknown format {first >> 56}")
    count = (first >> 8) & 0xFFFFFFFFFFFF if tagged else first
    parts = []
    for _ in range(count):
        source = str(uuid.UUID(bytes=reader.take(16)))
        tag = reader.text(reader.varying()) if tagged else ""
        for _ in range(reader.number(8)):
            start, after = reader.number(8), reader.number(8)
            parts.append(f"{source}:{tag}:{start}-{after - 1}" if tag else f"{source}:{start}-{after - 1}")
    if reader.left:
        raise damaged("a PREVIOUS_GTIDS event has more bytes than sets")
    return GtidSet.parse(",".join(parts))


@dataclass(frozen=True, slots=True)
class TaggedGtid:
    source: bytes
    tag: str
    number: int
    commit_timestamp_us: int | None
    original_commit_timestamp_us: int | None
    """None: it began on this server."""


def tagged_gtid(body: bytes) -> TaggedGtid:
    """A message of mysql::serialization: version, size, the last field that a reader must know, then (field, value) pairs.

    https://dev.mysql.com/doc/dev/mysql-server/latest/PageLibsMysqlSerialization.html
    """
    reader = Reader(body, "a GTID_TAGGED event")
    version, size, must_know = reader.varying(), reader.varying(), reader.varying()
    if version != 1 or size != len(body) or must_know > _LAST_GTID_FIELD:
        raise damaged(f"a GTID_TAGGED event of {size} bytes has the unknown format {version}")
    source, tag, number = b"", "", 0
    timestamp = original = None
    while reader.left:
        match reader.varying():
            case 1:
                source = bytes(reader.varying() & 0xFF for _ in range(16))
            case 2:
                number = reader.varying_signed()
            case 3:
                tag = reader.text(reader.varying())
            case 6:
                timestamp = reader.varying()
            case 7:
                original = reader.varying()
            case field if field <= _LAST_GTID_FIELD:
                reader.varying()
            case _:  # the format's rule: a reader stops at an ignorable field that it does not know
                break
    if len(source) != 16 or number < 1:
        raise damaged("a GTID_TAGGED event has no GTID")
    return TaggedGtid(source, tag, number, timestamp, original)


_LAST_GTID_FIELD = 11


@dataclass(frozen=True, slots=True)
class MariaDbGtid:
    domain: int
    number: int
    flags: int


MARIADB_STANDALONE, MARIADB_PREPARED_XA, MARIADB_COMPLETED_XA = 1, 64, 128
"""Flags of a MariaDB GTID: the group is a single statement; an XA transaction up to XA PREPARE; its COMMIT or ROLLBACK."""


def mariadb_gtid(body: bytes) -> MariaDbGtid:
    reader = Reader(body, "a GTID event")
    number, domain, flags = reader.number(8), reader.number(4), reader.number(1)
    return MariaDbGtid(domain, number, flags)


@dataclass(frozen=True, slots=True)
class XaPrepare:
    xid: str
    one_phase: bool


def xa_prepare(body: bytes) -> XaPrepare:
    reader = Reader(body, "an XA_PREPARE event")
    one_phase = reader.number(1) != 0
    form, global_size, branch_size = reader.number(4), reader.number(4), reader.number(4)
    return XaPrepare(xid_text(reader.take(global_size), reader.take(branch_size), form), one_phase)


def xid_text(global_part: bytes, branch: bytes, form: int) -> str:
    """An XID as both servers write it in XA COMMIT."""
    return f"X'{global_part.hex()}',X'{branch.hex()}',{form}"


@dataclass(frozen=True, slots=True)
class Query:
    """`text`: bytes that are not valid in its character set are surrogates. `updated_databases` None: the server does not
    tell, or there are too many. `is_readable` False: `text` has such bytes and can't be split into tokens safely.
    """

    database: str
    text: str
    sql_mode: int
    updated_databases: frozenset[str] | None
    is_readable: bool = True


_STATUS_SIZES = {
    0: 4,
    1: 8,
    3: 4,
    4: 6,
    7: 2,
    8: 2,
    9: 8,
    10: 4,
    13: 3,
    16: 1,
    17: 8,
    18: 2,
    19: 1,
    20: 1,
    128: 3,
    129: 8,
}
_SQL_MODE, _CHARSET, _UPDATED_DATABASES, _TOO_MANY_DATABASES = 1, 4, 12, 254


def query(body: bytes, charsets: Mapping[int, str]) -> Query:
    """A statement. `charsets`: the name of the character set of every collation id."""
    reader = Reader(body, "a QUERY event")
    reader.take(8)
    database_size = reader.number(1)
    reader.take(2)
    status = Reader(reader.take(reader.number(2)), "a QUERY event's status")
    database = reader.text(database_size)
    reader.take(1)
    sql_mode, collation, updated = _query_status(status)
    charset = "utf8mb4" if collation is None else charsets.get(collation, "utf8mb4")
    text = reader.take(reader.left)
    if charset == "binary":  # SET NAMES binary: the server takes names as UTF-8
        charset = "utf8mb4"
    try:
        return Query(database, decode_text(charset, text), sql_mode, updated)
    except (UnicodeDecodeError, LookupError):
        pass
    # Literals may have any bytes. In a multi-byte character set other than UTF-8 such bytes may hide a quote.
    readable = charset in UTF8 or MAX_CHARACTER_BYTES.get(charset) == 1
    return Query(
        database, text.decode("utf-8" if charset in UTF8 else "ascii", "surrogateescape"), sql_mode, updated, readable
    )


def _query_status(reader: Reader) -> tuple[int, int | None, frozenset[str] | None]:
    """(SQL mode, collation id of the client, updated databases). Stops at the first unknown variable."""
    sql_mode, collation, updated = 0, None, None
    while reader.left:
        match reader.number(1):
            case code if code == _SQL_MODE:
                sql_mode = reader.number(8)
            case code if code == _CHARSET:
                collation = reader.number(2)
                reader.take(4)
            case 2:
                reader.take(reader.number(1) + 1)
            case 5 | 6:
                reader.take(reader.number(1))
            case 11:
                reader.take(reader.number(1))
                reader.take(reader.number(1))
            case code if code == _UPDATED_DATABASES:
                count = reader.number(1)
                if count != _TOO_MANY_DATABASES:
                    updated = frozenset(reader.text_until_zero() for _ in range(count))
            case code if code in _STATUS_SIZES:
                reader.take(_STATUS_SIZES[code])
            case _:
                break
    return sql_mode, collation, updated


@dataclass(frozen=True, slots=True)
class Payload:
    """A compressed transaction; its bytes are body[start:start + size]."""

    start: int
    size: int
    uncompressed_size: int
    compressed: bool


def transaction_payload(head: bytes) -> Payload:
    """`head`: the body or its first bytes. It has fields of (type, length, value), up to a 0."""
    reader = Reader(head, "a TRANSACTION_PAYLOAD event")
    fields: dict[int, int] = {}
    while (field := reader.packed()) != 0:
        value = Reader(reader.take(reader.packed()), reader.name)
        fields[field] = value.packed()
    size, compression = fields.get(1), fields.get(2)
    if size is None or compression not in {0, 255} or not fields.keys() <= {1, 2, 3}:
        raise damaged(
            f"a TRANSACTION_PAYLOAD event of an unknown form: fields {sorted(fields)}, compression {compression}"
        )
    return Payload(reader.pos, size, fields.get(3, size), compression == 0)


@dataclass(frozen=True, slots=True)
class CompressedPart:
    """MariaDB: zlib data at body[start:]."""

    start: int
    uncompressed_size: int


def compressed_part(body: bytes, start: int) -> CompressedPart:
    """The record before compressed bytes: algorithm and size of the length, then the length (big-endian).

    Source: binlog_buf_compress in MariaDB's sql/log_event.cc.
    """
    reader = Reader(body, "a compressed event")
    reader.take(start)
    first = reader.number(1)
    if first & 0xF0 != 0x80 or not 1 <= first & 0x07 <= 4:
        raise damaged(f"an event has the unknown compression {first:#x}")
    return CompressedPart(start + 1 + (first & 0x07), int.from_bytes(reader.take(first & 0x07), "big"))


def header(event: bytes) -> tuple[int, int, int, int, int, int]:
    """(seconds, type, server id, size, end position modulo 2^32, flags)."""
    return struct.unpack_from("<IBIIIH", event)
