"""Type layouts: the Arrow type of a column's declared type, and the form of its values in the log and in results."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto

import pyarrow as pa

from tidemark.conf.tables import setting_of
from tidemark.readers.mysql.decoding.charsets import MAX_CHARACTER_BYTES
from tidemark.readers.mysql.decoding.column_codes import ColumnCode
from tidemark.readers.mysql.decoding.field_types import FieldType
from tidemark.readers.mysql.schema.types import SourceType, parse_source_type
from tidemark.state.errors import UnsupportedTypeError
from tidemark.state.remedies import START_OVER_NOW
from tidemark.state.source_types import SPATIAL_TYPES
from tidemark.state.table import Column, TableId, arrow_type_of


class Conversion(Enum):
    """How a column buffer is converted to an Arrow array."""

    INTEGER = auto()
    UNSIGNED = auto()  # 64 bits to decimal(20,0)
    DECIMAL = auto()
    FLOAT = auto()
    DOUBLE = auto()
    DATE = auto()
    DATETIME = auto()
    TIME = auto()  # to text; number = fractional digits
    BYTES = auto()
    PADDED_BYTES = auto()  # padded with zero bytes to number
    TEXT = auto()  # in charset
    PACKED_DECIMAL = auto()  # to text; number = precision << 8 | scale
    ASCII = auto()  # text of numbers and addresses; the charset that the server announces is ignored
    ENUM = auto()  # ordinal to label
    SET = auto()  # bits to labels
    BINARY_JSON = auto()  # MySQL's binary JSON to text
    VECTOR = auto()
    UUID = auto()
    INET6 = auto()
    INET4 = auto()


@dataclass(frozen=True, slots=True)
class TypeLayout:
    """The form of a column's values in the log (`image`) and in results (`wire`).

    `image`: the (type, number) that a TABLE_MAP must have, see `field_types.image_type`. `wire`: the type that a result
    must announce. `number`: a parameter of the conversions.
    """

    source: SourceType
    type: pa.DataType
    image: tuple[FieldType, int]
    from_image: Conversion
    wire: FieldType
    result_code: ColumnCode
    from_result: Conversion
    result_meta: int = 0
    number: int = 0
    charset: str | None = None


def column_layout(table: TableId, column: Column) -> TypeLayout:
    """The layout of a column's type. Raises UnsupportedTypeError if the type is not supported, or the column's Arrow type is
    not the canonical one."""
    try:
        source = parse_source_type(column.source_type)
    except ValueError as exc:
        raise _unsupported(table, column) from exc
    make = _LAYOUTS.get(source.base)
    if make is None or "compressed" in source.attributes:
        raise _unsupported(table, column)
    layout = make(source, column)
    if layout.type != arrow_type_of(column.arrow_type):
        raise UnsupportedTypeError(
            f"{table}.{column.name} is {column.source_type} with Arrow type {layout.type}, not {column.arrow_type}.",
            START_OVER_NOW,
        )
    return layout


def _unsupported(table: TableId, column: Column) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"{table}.{column.name} has type {column.source_type}, which is not supported.",
        f"Leave it out: {setting_of('source.columns', table, {'exclude': [column.name]})}.",
    )


_INTEGERS = {
    "tinyint": (FieldType.TINY, pa.int8(), pa.int16(), ColumnCode.INT8, ColumnCode.UINT8),
    "smallint": (FieldType.SHORT, pa.int16(), pa.int32(), ColumnCode.INT16, ColumnCode.UINT16),
    "mediumint": (FieldType.INT24, pa.int32(), pa.int32(), ColumnCode.INT32, ColumnCode.UINT32),
    "int": (FieldType.LONG, pa.int32(), pa.int64(), ColumnCode.INT32, ColumnCode.UINT32),
    "bigint": (FieldType.LONGLONG, pa.int64(), pa.decimal128(20, 0), ColumnCode.INT64, ColumnCode.UINT64),
}


def _integer(source: SourceType, column: Column) -> TypeLayout:
    kind, signed, unsigned, signed_code, unsigned_code = _INTEGERS[source.base]
    conversion = Conversion.UNSIGNED if source.unsigned and source.base == "bigint" else Conversion.INTEGER
    return TypeLayout(
        source,
        unsigned if source.unsigned else signed,
        (kind, 0),
        conversion,
        kind,
        unsigned_code if source.unsigned else signed_code,
        conversion,
    )


def _decimal(source: SourceType, column: Column) -> TypeLayout:
    precision, scale = (*source.numbers, 0)[:2] if source.numbers else (10, 0)
    number = precision << 8 | scale
    image = (FieldType.NEWDECIMAL, number)
    if precision > 38:
        wide, text = Conversion.PACKED_DECIMAL, Conversion.ASCII
        return TypeLayout(source, pa.string(), image, wide, FieldType.NEWDECIMAL, ColumnCode.TEXT, text, 0, number)
    return TypeLayout(
        source,
        pa.decimal128(precision, scale),
        image,
        Conversion.DECIMAL,
        FieldType.NEWDECIMAL,
        ColumnCode.DECIMAL_TEXT,
        Conversion.DECIMAL,
        number,
    )


def _float(source: SourceType, column: Column) -> TypeLayout:
    kind, code = FieldType.FLOAT, ColumnCode.FLOAT
    return TypeLayout(source, pa.float32(), (kind, 4), Conversion.FLOAT, kind, code, Conversion.FLOAT)


def _double(source: SourceType, column: Column) -> TypeLayout:
    kind, code = FieldType.DOUBLE, ColumnCode.DOUBLE
    return TypeLayout(source, pa.float64(), (kind, 8), Conversion.DOUBLE, kind, code, Conversion.DOUBLE)


def _bit(source: SourceType, column: Column) -> TypeLayout:
    bits = source.numbers[0] if source.numbers else 1
    conversion = Conversion.UNSIGNED if bits == 64 else Conversion.INTEGER
    arrow = pa.decimal128(20, 0) if bits == 64 else pa.int64()
    kind = FieldType.BIT
    return TypeLayout(source, arrow, (kind, bits), conversion, kind, ColumnCode.BIT_TEXT, conversion, bits)


def _year(source: SourceType, column: Column) -> TypeLayout:
    kind, year = FieldType.YEAR, Conversion.INTEGER
    return TypeLayout(source, pa.int16(), (kind, 0), year, kind, ColumnCode.UINT16, year)


def _date(source: SourceType, column: Column) -> TypeLayout:
    kind, date = FieldType.DATE, Conversion.DATE
    return TypeLayout(source, pa.date32(), (kind, 0), date, kind, ColumnCode.DATE_FIELDS, date)


def _datetime(source: SourceType, column: Column) -> TypeLayout:
    digits = source.numbers[0] if source.numbers else 0
    code, conversion = ColumnCode.DATETIME_FIELDS, Conversion.DATETIME
    arrow, image, wire = pa.timestamp("us"), FieldType.DATETIME2, FieldType.DATETIME
    if source.base == "timestamp":
        arrow, image, wire = pa.timestamp("us", tz="UTC"), FieldType.TIMESTAMP2, FieldType.TIMESTAMP
    return TypeLayout(source, arrow, (image, digits), conversion, wire, code, conversion)


def _time(source: SourceType, column: Column) -> TypeLayout:
    digits = source.numbers[0] if source.numbers else 0
    time = Conversion.TIME
    image = (FieldType.TIME2, digits)
    return TypeLayout(source, pa.string(), image, time, FieldType.TIME, ColumnCode.TIME_FIELDS, time, number=digits)


def _text(source: SourceType, column: Column, *, image: tuple[FieldType, int], wire: FieldType) -> TypeLayout:
    """The layout of a character column, or of a byte column if the charset is `binary`."""
    charset = None if column.charset in {None, "binary"} else column.charset
    conversion = Conversion.BYTES if charset is None else Conversion.TEXT
    arrow = pa.binary() if charset is None else pa.string()
    return TypeLayout(source, arrow, image, conversion, wire, ColumnCode.TEXT, conversion, charset=charset)


def _string(source: SourceType, column: Column) -> TypeLayout:
    length = source.numbers[0] if source.numbers else 1
    character = 1 if column.charset in {None, "binary"} else MAX_CHARACTER_BYTES[str(column.charset)]
    image = FieldType.VARCHAR if source.base.startswith("var") else FieldType.STRING
    wire = FieldType.VAR_STRING if source.base.startswith("var") else FieldType.STRING
    layout = _text(source, column, image=(image, length * character), wire=wire)
    if source.base == "binary":
        return replace(layout, from_image=Conversion.PADDED_BYTES, number=length)
    return layout


_BLOB_BYTES = {"tiny": 1, "": 2, "medium": 3, "long": 4}


def _blob(source: SourceType, column: Column) -> TypeLayout:
    prefix = source.base.removesuffix("blob").removesuffix("text")
    return _text(source, column, image=(FieldType.BLOB, _BLOB_BYTES[prefix]), wire=FieldType.BLOB)


def _enum(source: SourceType, column: Column) -> TypeLayout:
    layout = _text(source, column, image=(FieldType.ENUM, 1 if len(source.labels) < 256 else 2), wire=FieldType.STRING)
    return replace(layout, type=pa.string(), from_image=Conversion.ENUM)


def _set(source: SourceType, column: Column) -> TypeLayout:
    needed = (len(source.labels) + 7) // 8
    layout = _text(source, column, image=(FieldType.SET, needed if needed < 5 else 8), wire=FieldType.STRING)
    return replace(layout, type=pa.string(), from_image=Conversion.SET)


def _json(source: SourceType, column: Column) -> TypeLayout:
    kind = FieldType.JSON
    text = Conversion.TEXT
    return TypeLayout(
        source, pa.string(), (kind, 4), Conversion.BINARY_JSON, kind, ColumnCode.TEXT, text, charset="utf8mb4"
    )


def _geometry(source: SourceType, column: Column) -> TypeLayout:
    kind, as_is = FieldType.GEOMETRY, Conversion.BYTES
    return TypeLayout(source, pa.binary(), (kind, 4), as_is, kind, ColumnCode.TEXT, as_is)


def _vector(source: SourceType, column: Column) -> TypeLayout:
    kind, vector = FieldType.VECTOR, Conversion.VECTOR
    return TypeLayout(source, pa.list_(pa.float32()), (kind, 4), vector, kind, ColumnCode.TEXT, vector)


def vector_of_mariadb(layout: TypeLayout) -> TypeLayout:
    """The layout of a VECTOR in the log of MariaDB, which has it as VARBINARY, and so in results. `layout`: MySQL's."""
    return replace(layout, image=(FieldType.VARCHAR, 4 * layout.source.numbers[0]), wire=FieldType.VAR_STRING)


_ADDRESSES = {"uuid": (Conversion.UUID, 16), "inet6": (Conversion.INET6, 16), "inet4": (Conversion.INET4, 4)}


def _address(source: SourceType, column: Column) -> TypeLayout:
    conversion, size = _ADDRESSES[source.base]
    image = (FieldType.STRING, size)
    return TypeLayout(source, pa.string(), image, conversion, FieldType.STRING, ColumnCode.TEXT, Conversion.ASCII)


_LAYOUTS: dict[str, Callable[[SourceType, Column], TypeLayout]] = {
    **dict.fromkeys(_INTEGERS, _integer),
    "decimal": _decimal,
    "float": _float,
    "double": _double,
    "bit": _bit,
    "year": _year,
    "date": _date,
    "datetime": _datetime,
    "timestamp": _datetime,
    "time": _time,
    **dict.fromkeys(("char", "varchar", "binary", "varbinary"), _string),
    **dict.fromkeys((f"{size}{kind}" for size in _BLOB_BYTES for kind in ("blob", "text")), _blob),
    "enum": _enum,
    "set": _set,
    "json": _json,
    **dict.fromkeys(SPATIAL_TYPES, _geometry),
    "vector": _vector,
    **dict.fromkeys(_ADDRESSES, _address),
}
