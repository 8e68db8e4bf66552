"""The order of MariaDB's UUID: that of its index, and conditions for ranges of it.

Since 10.11.5 the index has some UUIDs with swapped fields (versions 1 to 5) and others as they are, and orders these bytes,
the *record*. SQL compares two swapped UUIDs by their records, two others by theirs, but a swapped one with another by the
bytes that are shown, which is no total order. So a condition compares each kind with a UUID of its own kind, the one whose
record is next to the bound's. Both have nearly the same record, so that the server reads a range of the index. See
`mem_need_swap`, `rec_need_swap` and `cmp` in https://github.com/MariaDB/server/blob/11.4/plugin/type_uuid/sql_type_uuid.h
and docs/adr/0066.

Before that, and in columns that were created then, all UUIDs are swapped. `orders_as_known` asks the server.
"""

import uuid
from collections.abc import Callable, Sequence

import pymysql

from tidemark.readers.mysql.connect import Connection, is_transient, quote_identifier, quote_table
from tidemark.state.table import TableId

_BYTES = 16
_SWAPPED_VERSIONS = range(1, 0x60)
_NO_BYTES = range(0)
_EVERY_BYTE = range(256)


def is_swapped(shown: bytes) -> bool:
    """True if the record of the UUID with these bytes has its fields in another sequence."""
    return shown[6] in _SWAPPED_VERSIONS and shown[8] >= 0x80


def record_of(shown: bytes) -> bytes:
    """The record of a UUID. Records order, as bytes, as the index does."""
    return _swapped(shown) if is_swapped(shown) else shown


def encoded(text: str) -> bytes:
    return record_of(uuid.UUID(text).bytes)


def condition(column: str, operator: str, literal: str) -> str:
    """The SQL condition for the UUIDs whose record is `operator` (>, >= or <) than that of the literal, a quoted UUID."""
    bound = encoded(literal.strip("'"))
    if operator == ">":
        following = int.from_bytes(bound, "big") + 1
        if following >> 8 * _BYTES:
            return "FALSE"
        bound = following.to_bytes(_BYTES, "big")
    name, compared = quote_identifier(column), "<" if operator == "<" else ">="
    swapped = _sql_is_swapped(name)
    parts = []
    for kind, least in ((swapped, least_swapped(bound)), (f"NOT {swapped}", least_plain(bound))):
        if least is not None:
            parts.append(f"({kind} AND {name} {compared} '{uuid.UUID(bytes=least)}')")
        elif compared == "<":  # all of this kind are less
            parts.append(kind)
    return f"({' OR '.join(parts)})" if parts else "FALSE"


def least_swapped(record: bytes) -> bytes | None:
    """The swapped UUID with the least record that is not less than `record`."""
    found = _least(record, lambda byte: _SWAPPED_VERSIONS if byte >= 0x80 else _NO_BYTES)
    return None if found is None else _unswapped(found)


def least_plain(record: bytes) -> bytes | None:
    """The UUID, not swapped, with the least record that is not less than `record`. The server refuses texts whose record it
    would take for a swapped one."""
    return _least(record, _ninth_bytes_of_plain)


def orders_as_known(connection: Connection, table: TableId, column: str) -> bool:
    """True if the server orders the column's values as this module does, by its answers for pairs of UUIDs. They become
    values of the column's own type in COALESCE, and no row is read. False, too, if the server refuses the query: the account
    may not read the table, which preflight tells, or another session keeps it locked, or it is gone. Raises pymysql's error
    if the connection is lost."""
    pairs = _telling_pairs()
    asked = ", ".join(f"COALESCE(d.k, '{a}') > COALESCE(d.k, '{b}')" for a, b in pairs)
    name = quote_identifier(column)
    sql = f"SELECT {asked} FROM (SELECT (SELECT {name} FROM {quote_table(table)} WHERE FALSE) AS k) AS d"
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            answers = cursor.fetchone()
    except pymysql.MySQLError as error:
        if is_transient(error) or not connection.open:
            raise
        return False
    return answers is not None and [bool(answer) for answer in answers] == [is_swapped(a.bytes) for a, _ in pairs]


def _telling_pairs() -> Sequence[tuple[uuid.UUID, uuid.UUID]]:
    """Pairs of one kind each, at the limits of both kinds: the first is greater if and only if they are swapped."""
    pairs = []
    for version in (0, 1, 0x0F, 0x10, 0x4F, 0x5F, 0x60, 0x6F, 0x70, 0x7F, 0x80, 0x8F, 0xFF):
        for variant in (0, 1, 0x7F, 0x80, 0x81, 0xBF, 0xFF):
            if version in _SWAPPED_VERSIONS or variant in _ninth_bytes_of_plain(version):
                middle = bytes((version, 0, variant))
                first, second = (
                    bytes((a, 0, 0, 0, 0, 0)) + middle + bytes((0,) * 6 + (b,)) for a, b in ((1, 2), (2, 1))
                )
                pairs.append((uuid.UUID(bytes=first), uuid.UUID(bytes=second)))
    return pairs


def _ninth_bytes_of_plain(seventh: int) -> Sequence[int]:
    if seventh in _SWAPPED_VERSIONS:
        return range(0x80)
    return _EVERY_BYTE if seventh < 0x80 else (0, *range(0x81, 0x100))


def _least(record: bytes, allowed: Callable[[int], Sequence[int]]) -> bytes | None:
    """The least 16 bytes from `record` on whose ninth byte is one of those that are `allowed` with the seventh."""
    seventh, ninths = record[6], allowed(record[6])
    if record[8] in ninths:
        return record
    greater = [byte for byte in ninths if byte > record[8]]
    if greater:
        return _filled(record[:8], greater[0])
    if ninths and record[7] < 0xFF:
        return _filled(record[:7] + bytes((record[7] + 1,)), ninths[0])
    begun = record[:6]
    later = [byte for byte in range(seventh + 1, 256) if allowed(byte)]
    if not later:
        following = int.from_bytes(begun, "big") + 1
        if following >> 48:
            return None
        begun = following.to_bytes(6, "big")
        later = [byte for byte in _EVERY_BYTE if allowed(byte)]
    return _filled(begun + bytes((later[0], 0)), allowed(later[0])[0])


def _filled(begun: bytes, ninth: int) -> bytes:
    return (begun + bytes((ninth,))).ljust(_BYTES, b"\0")


def _sql_is_swapped(name: str) -> str:
    shown = f"CAST({name} AS BINARY({_BYTES}))"
    return f"(SUBSTR({shown}, 7, 1) BETWEEN x'01' AND x'5F' AND SUBSTR({shown}, 9, 1) >= x'80')"


def _swapped(shown: bytes) -> bytes:
    return shown[10:] + shown[8:10] + shown[6:8] + shown[4:6] + shown[:4]


def _unswapped(record: bytes) -> bytes:
    return record[12:] + record[10:12] + record[8:10] + record[6:8] + record[:6]
