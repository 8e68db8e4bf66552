"""Parsers for the rare messages of pgoutput (protocol version 1).

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

import struct
from dataclasses import dataclass
from typing import Literal

from tidemark.state.errors import DamagedLogError
from tidemark.state.table import TableId

Identity = Literal["d", "n", "f", "i"]
"""pg_class.relreplident: default (the primary key), nothing, full, index."""

IGNORED = b"OYM"
"""Origin (where a transaction came from), Type (names of types, which the catalog also has), Message."""


@dataclass(frozen=True, slots=True)
class LoggedColumn:
    """A column of a Relation message. `in_identity`: old rows have its value."""

    name: str
    type_oid: int
    type_modifier: int
    in_identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A description of a table's columns, valid for the rows that follow. `id`: the table's OID."""

    id: int
    table: TableId
    identity: Identity
    columns: tuple[LoggedColumn, ...]


def read_relation(message: bytes) -> Relation:
    """Parses a Relation message. Raises DamagedLogError."""
    try:
        (relation,) = struct.unpack_from(">I", message, 1)
        namespace, at = _string(message, 5)
        name, at = _string(message, at)
        identity, count = chr(message[at]), int.from_bytes(message[at + 1 : at + 3], "big")
        at += 3
        columns = []
        for _ in range(count):
            flags = message[at]
            column, at = _string(message, at + 1)
            type_oid, type_modifier = struct.unpack_from(">Ii", message, at)
            at += 8
            columns.append(LoggedColumn(column, type_oid, type_modifier, flags & 1 == 1))
    except (struct.error, IndexError, ValueError) as exc:
        raise damaged("a relation message is truncated") from exc
    if identity not in ("d", "n", "f", "i") or at != len(message):
        raise damaged("a relation message does not have the form of its protocol version")
    return Relation(relation, TableId(namespace or "pg_catalog", name), identity, tuple(columns))  # type: ignore[arg-type]


def read_truncate(message: bytes) -> tuple[int, ...]:
    """Returns the ids of the truncated relations. Raises DamagedLogError."""
    try:
        (count,) = struct.unpack_from(">I", message, 1)
        relations: tuple[int, ...] = struct.unpack(f">{count}I", message[6:])
    except struct.error as exc:
        raise damaged("a truncate message is truncated") from exc
    return relations


def damaged(what: str) -> DamagedLogError:
    return DamagedLogError(
        f"The log's messages can't be read: {what}.",
        "Run the job again. If it stops at the same position, check the source's disk and its server log.",
    )


def _string(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(b"\0", at)
    return message[at:end].decode(), end + 1
