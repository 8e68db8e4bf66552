"""TABLE_MAP events: which table the row events after them belong to, and whether it still is the table that we know.

Format: https://dev.mysql.com/doc/dev/mysql-server/latest/classmysql_1_1binlog_1_1event_1_1Table__map__event.html
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from readers.mysql.columns import ColumnPlan
from readers.mysql.field_types import FieldType, image_type, split_metadata
from readers.mysql.log_events import Reader, damaged
from readers.mysql.types import parse_source_type
from state.errors import SchemaChangedError, UnknownLogEventError
from state.table import Column, TableId, TableSchema

_CHANGED = "Start the job anew with another checkpoint directory, or from a position after the change."


class _Field(IntEnum):
    """Of the optional metadata."""

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
"""Those that have a bit in SIGNEDNESS (seen on MySQL 9.7, MariaDB 10.11 and 11.4)."""

_CHARACTER = frozenset({FieldType.STRING, FieldType.VAR_STRING, FieldType.VARCHAR, FieldType.BLOB})
_COMPRESSED = frozenset({FieldType.BLOB_COMPRESSED, FieldType.VARCHAR_COMPRESSED})


@dataclass(frozen=True, slots=True)
class TableMap:
    """`numbers` as `field_types.split_metadata` gives them. By a column's index: `names` (None: not in the log),
    `unsigned`, `collations` (ids), `labels`. `primary_key` None: not in the log, or there is none."""

    id: int
    table: TableId
    type_codes: bytes
    numbers: tuple[int, ...]
    names: tuple[str, ...] | None
    unsigned: Mapping[int, bool] = field(default_factory=dict)
    collations: Mapping[int, int] = field(default_factory=dict)
    labels: Mapping[int, tuple[bytes, ...]] = field(default_factory=dict)
    primary_key: tuple[int, ...] | None = None


def table_of(body: bytes) -> tuple[int, TableId]:
    """Id and name alone: enough for a table that nobody wants."""
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
    """`mariadb`: whose log it is. Beside text, MariaDB gives a collation to geometries, MySQL to vectors."""
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
            f"{table} has a column in the log whose type is not known: {exc}.", "Use a newer version of Tidemark."
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
            if kinds[column] is not FieldType.YEAR  # never signed, and never called unsigned
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
        _primary_key(values),
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
    """Either one id a column, or a default and (which one among them, id) for those that have another."""
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
            raise damaged("a TABLE_MAP event has a collation for a column that is not there")
        found[columns[which]] = collation
    return found


def _labels(block: bytes | None, columns: list[int]) -> dict[int, tuple[bytes, ...]]:
    if block is None:
        return {}
    reader = Reader(block, "a TABLE_MAP event's labels")
    return {column: tuple(reader.take(reader.packed()) for _ in range(reader.packed())) for column in columns}


def _primary_key(values: dict[int, bytes]) -> tuple[int, ...] | None:
    if _Field.SIMPLE_PRIMARY_KEY in values:
        return tuple(_numbers(values[_Field.SIMPLE_PRIMARY_KEY]))
    if _Field.PRIMARY_KEY_WITH_PREFIX in values:
        return tuple(_numbers(values[_Field.PRIMARY_KEY_WITH_PREFIX])[::2])
    return None


def plan_for(found: TableMap, schema: TableSchema, charsets: Mapping[int, str]) -> ColumnPlan:
    """The plan by which the rows after `found` are decoded. `charsets`: the name of every collation id's charset.

    Raises SchemaChangedError where the log's table is not the one of `schema`, UnknownLogEventError where the log does
    not say enough to know.
    """
    if found.names is None:
        raise UnknownLogEventError(
            f"The log does not name the columns of {schema.table}: binlog_row_metadata was not FULL.",
            "SET GLOBAL binlog_row_metadata=FULL on the source, let applications connect anew, and start after it.",
        )
    known = [column.name for column in schema.columns]
    if list(found.names) != known:
        raise SchemaChangedError(
            f"{schema.table} has the columns {known}, in the log it has {list(found.names)}.", _CHANGED
        )
    for i, column in enumerate(schema.columns):
        _check_column(found, i, column, charsets)
    return ColumnPlan.for_log(schema, found.type_codes, found.numbers, labels=found.labels)


def _check_column(found: TableMap, index: int, column: Column, charsets: Mapping[int, str]) -> None:
    """Sign and character set: without them the same bytes mean other values."""
    if not column.captured:
        return
    where = f"{found.table}.{column.name}"
    if index in found.unsigned and found.unsigned[index] != parse_source_type(column.source_type).unsigned:
        raise SchemaChangedError(f"{where} is {column.source_type}, in the log its sign is another.", _CHANGED)
    collation = found.collations.get(index)
    if collation is None or column.charset is None:
        return
    charset = charsets.get(collation)
    if charset is None:
        raise UnknownLogEventError(
            f"{where} has collation {collation} in the log, which the server does not list.",
            "Leave the column out: source.columns exclude.",
        )
    if _same_charset(charset) != _same_charset(column.charset):
        raise SchemaChangedError(f"{where} is {column.charset}, in the log it is {charset}.", _CHANGED)


def _same_charset(name: str) -> str:
    return "utf8mb3" if name == "utf8" else name


def key_is_primary(found: TableMap, schema: TableSchema) -> bool:
    """Are the columns by which the job knows a row the log's primary key (in any order)?"""
    if found.primary_key is None:
        return False
    if any(i >= len(schema.columns) for i in found.primary_key):
        raise damaged(f"the TABLE_MAP of {found.table} has a key column that is not there")
    return {schema.columns[i].name for i in found.primary_key} == set(schema.key)
