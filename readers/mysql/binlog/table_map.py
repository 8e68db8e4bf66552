"""TABLE_MAP events: the table of the row events that follow, and the check that it still has the job's schema.

Format: https://dev.mysql.com/doc/dev/mysql-server/latest/classmysql_1_1binlog_1_1event_1_1Table__map__event.html
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from tidemark.readers.mysql.binlog.events import Reader, damaged
from tidemark.readers.mysql.decoding.columns import ColumnPlan
from tidemark.readers.mysql.decoding.field_types import FieldType, image_type, split_metadata
from tidemark.readers.mysql.schema.types import parse_source_type
from tidemark.state.errors import IncompleteRowsError, SchemaChangedError, UnknownLogEventError, concerning
from tidemark.state.remedies import LEAVE_OUT, START_OVER
from tidemark.state.table import Column, TableId, TableSchema


class _Field(IntEnum):
    """Fields of the optional metadata."""

    SIGNEDNESS = 1
    DEFAULT_CHARSET = 2
    COLUMN_CHARSET = 3
    COLUMN_NAME = 4
    SET_LABELS = 5
    ENUM_LABELS = 6
    GEOMETRY_TYPE = 7
    SIMPLE_PRIMARY_KEY = 8
    PRIMARY_KEY_WITH_PREFIX = 9
    ENUM_AND_SET_DEFAULT_CHARSET = 10
    ENUM_AND_SET_COLUMN_CHARSET = 11
    COLUMN_VISIBILITY = 12
    VECTOR_DIMENSIONALITY = 13


_NUMERIC = frozenset(
    {
        FieldType.TINY,
        FieldType.SHORT,
        FieldType.INT24,
        FieldType.LONG,
        FieldType.LONGLONG,
        FieldType.NEWDECIMAL,
        FieldType.FLOAT,
        FieldType.DOUBLE,
        FieldType.YEAR,
    }
)
"""The types that have a bit in SIGNEDNESS (seen on MySQL 9.7, MariaDB 10.11 and 11.4)."""

_CHARACTER = frozenset({FieldType.STRING, FieldType.VAR_STRING, FieldType.VARCHAR, FieldType.BLOB})
_COMPRESSED = frozenset({FieldType.BLOB_COMPRESSED, FieldType.VARCHAR_COMPRESSED})


@dataclass(frozen=True, slots=True)
class TableMap:
    """`numbers`: see `field_types.split_metadata`. `names` None: the log does not have them. `unsigned`, `collations` (ids)
    and `labels` are by column index."""

    id: int
    table: TableId
    type_codes: bytes
    numbers: tuple[int, ...]
    names: tuple[str, ...] | None
    unsigned: Mapping[int, bool] = field(default_factory=dict)
    collations: Mapping[int, int] = field(default_factory=dict)
    labels: Mapping[int, tuple[bytes, ...]] = field(default_factory=dict)


def table_of(body: bytes) -> tuple[int, TableId]:
    """Reads only the id and the name: enough for a table that is not wanted."""
    reader = Reader(body, "a TABLE_MAP event")
    return _table(reader)


def _table(reader: Reader) -> tuple[int, TableId]:
    table_id = reader.number(6)
    reader.take(2)
    names = []
    for _ in range(2):
        names.append(reader.text(reader.number(1)))
        reader.take(1)
    return table_id, TableId(*names)


def table_map(body: bytes, *, mariadb: bool) -> TableMap:
    """`mariadb`: the flavour of the log. Besides text, MariaDB gives geometries a collation, MySQL gives vectors one."""
    reader = Reader(body, "a TABLE_MAP event")
    table_id, table = _table(reader)
    types = reader.take(reader.packed())
    block = reader.take(reader.packed())
    reader.take((len(types) + 7) // 8)
    try:
        numbers = split_metadata(types, block)
        kinds = [image_type(code, number)[0] for code, number in zip(types, numbers, strict=True)]
    except ValueError as exc:
        raise UnknownLogEventError(
            f"{table} has a column of an unknown type in the log: {exc}.",
            "Use a newer version of Tidemark, or leave the table out: source.exclude_tables.",
            table,
        ) from exc
    values: dict[int, bytes] = {}
    while reader.left:
        kind = reader.number(1)
        values[kind] = reader.take(reader.packed())
    return _with_optional(TableMap(table_id, table, types, tuple(numbers), None), kinds, values, mariadb)


def _with_optional(plain: TableMap, kinds: list[FieldType], values: dict[int, bytes], mariadb: bool) -> TableMap:
    collated = _CHARACTER | _COMPRESSED | {FieldType.GEOMETRY if mariadb else FieldType.VECTOR}
    bits = values.get(_Field.SIGNEDNESS)
    unsigned: dict[int, bool] = {}
    if bits is not None:
        numeric = [i for i, kind in enumerate(kinds) if kind in _NUMERIC]
        if len(bits) != (len(numeric) + 7) // 8:
            raise damaged(f"the TABLE_MAP of {plain.table} has {len(bits)} bytes of signs for {len(numeric)} numbers")
        unsigned = {
            column: bool(bits[i >> 3] & 0x80 >> (i & 7))
            for i, column in enumerate(numeric)
            if kinds[column] is not FieldType.YEAR  # never signed, but not flagged as unsigned
        }
    names = None
    if _Field.COLUMN_NAME in values:
        names = _names(values[_Field.COLUMN_NAME], len(kinds))
    enums = [i for i, kind in enumerate(kinds) if kind is FieldType.ENUM]
    sets = [i for i, kind in enumerate(kinds) if kind is FieldType.SET]
    collations = _collations(values, [i for i, kind in enumerate(kinds) if kind in collated])
    collations |= _enum_collations(values, sorted(enums + sets))
    return TableMap(
        plain.id,
        plain.table,
        plain.type_codes,
        plain.numbers,
        names,
        unsigned,
        collations,
        _labels(values.get(_Field.ENUM_LABELS), enums) | _labels(values.get(_Field.SET_LABELS), sets),
    )


def _names(block: bytes, count: int) -> tuple[str, ...]:
    reader = Reader(block, "a TABLE_MAP event's list of names")
    names = tuple(reader.text(reader.packed()) for _ in range(count))
    if reader.left:
        raise damaged("a TABLE_MAP event has more names than columns")
    return names


def _numbers(block: bytes) -> list[int]:
    reader = Reader(block, "a TABLE_MAP event's list of numbers")
    numbers = []
    while reader.left:
        numbers.append(reader.packed())
    return numbers


def _collations(values: dict[int, bytes], columns: list[int]) -> dict[int, int]:
    return _with_default(values.get(_Field.DEFAULT_CHARSET), values.get(_Field.COLUMN_CHARSET), columns)


def _enum_collations(values: dict[int, bytes], columns: list[int]) -> dict[int, int]:
    default = values.get(_Field.ENUM_AND_SET_DEFAULT_CHARSET)
    return _with_default(default, values.get(_Field.ENUM_AND_SET_COLUMN_CHARSET), columns)


def _with_default(default: bytes | None, each: bytes | None, columns: list[int]) -> dict[int, int]:
    """The collation id of each column: either listed one by one, or a default and a list of (index, id) exceptions."""
    if each is not None:
        numbers = _numbers(each)
        if len(numbers) != len(columns):
            raise damaged(f"a TABLE_MAP event has {len(numbers)} collations for {len(columns)} columns")
        return dict(zip(columns, numbers, strict=True))
    if default is None:
        return {}
    first, *others = _numbers(default)
    found = dict.fromkeys(columns, first)
    for which, collation in zip(others[::2], others[1::2], strict=True):
        if which >= len(columns):
            raise damaged("a TABLE_MAP event has a collation for a column that does not exist")
        found[columns[which]] = collation
    return found


def _labels(block: bytes | None, columns: list[int]) -> dict[int, tuple[bytes, ...]]:
    if block is None:
        return {}
    reader = Reader(block, "a TABLE_MAP event's labels")
    return {column: tuple(reader.take(reader.packed()) for _ in range(reader.packed())) for column in columns}


def plan_for(found: TableMap, whole: TableSchema, charsets: Mapping[int, str]) -> tuple[TableSchema, ColumnPlan]:
    """The plan for decoding the rows that follow `found`, and the part of the schema that they have: all of it but columns
    that were added later. `charsets`: collation id → name of the character set.

    Raises SchemaChangedError if the table in the log is not the one of `whole`, IncompleteRowsError or UnknownLogEventError if
    the log does not tell.
    """
    if found.names is None:
        raise IncompleteRowsError(
            f"The log does not name the columns of {whole.table}: binlog_row_metadata was not FULL.",
            f"SET GLOBAL binlog_row_metadata=FULL on the source, let applications reconnect, then {START_OVER}.",
            whole.table,
        )
    schema = whole.logged_with(found.names)
    known = [column.name for column in schema.columns]
    with concerning(schema.table):
        if list(found.names) != known:
            raise SchemaChangedError(
                f"{schema.table} has the columns {known}, in the log it has {list(found.names)}.", LEAVE_OUT
            )
        for i, column in enumerate(schema.columns):
            _check_column(found, i, column, charsets)
        return schema, ColumnPlan.for_log(schema, found.type_codes, found.numbers, labels=found.labels)


def _check_column(found: TableMap, index: int, column: Column, charsets: Mapping[int, str]) -> None:
    """Compares sign and character set. If they differ, the same bytes mean different values."""
    if not column.captured:
        return
    where = f"{found.table}.{column.name}"
    if index in found.unsigned and found.unsigned[index] != parse_source_type(column.source_type).unsigned:
        raise SchemaChangedError(f"{where} is {column.source_type}, in the log it has the other sign.", LEAVE_OUT)
    collation = found.collations.get(index)
    if collation is None or column.charset is None:
        return
    charset = charsets.get(collation)
    if charset is None:
        raise UnknownLogEventError(
            f"{where} has collation {collation} in the log, which the server does not list.",
            "Leave the column out (source.columns: exclude), or leave the table out: source.exclude_tables.",
        )
    if same_charset(charset) != same_charset(column.charset):
        raise SchemaChangedError(f"{where} is {column.charset}, in the log it is {charset}.", LEAVE_OUT)


def same_charset(name: str) -> str:
    """Returns the same text for names of one character set."""
    return "utf8mb3" if name == "utf8" else name
