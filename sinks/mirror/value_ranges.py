"""Value ranges: the values that a column can hold, so that columns of source and target can be compared exactly.

`holds(target, source)` is true only if the target's column can store every value of the source's column unchanged.
"""

import re
import string
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
from typing_extensions import assert_never

from tidemark.conf.endpoint import DatabaseKind
from tidemark.state.source_types import SPATIAL_TYPES
from tidemark.state.table import Column, arrow_type_of


@dataclass(frozen=True, slots=True)
class Booleans:
    """True and false."""


@dataclass(frozen=True, slots=True)
class Integers:
    """From `low` to `high`, both included."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Bits:
    """Bit strings of `width` bits."""

    width: int


@dataclass(frozen=True, slots=True)
class Year:
    """0 and 1901 to 2155."""


@dataclass(frozen=True, slots=True)
class Decimals:
    """`precision` digits, `scale` of them after the point. None: any number."""

    precision: int | None
    scale: int | None


@dataclass(frozen=True, slots=True)
class Floats:
    """IEEE 754 numbers of `bits` bits. `rounded`: MySQL's (M, D) in FLOAT(M,D), which rounds values without a warning."""

    bits: int
    rounded: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """At most `characters` characters in at most `byte_count` bytes (None: any number). `padded`: trailing spaces are lost."""

    characters: int | None = None
    byte_count: int | None = None
    padded: bool = False


_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


@dataclass(frozen=True, slots=True)
class Labels:
    """An ENUM, or a SET if `several`."""

    labels: tuple[str, ...]
    several: bool

    def meet(self, collation: str | None) -> bool:
        """True if the collation takes labels for one that differ in the case of a to z. A server without strict mode allows
        them, and stores the first one for both. Labels that differ otherwise, as in accents, are not found."""
        folded = {label.translate(_LOWER) for label in self.labels}
        return collation is not None and collation.endswith("_ci") and len(folded) < len(set(self.labels))


@dataclass(frozen=True, slots=True)
class FormattedText:
    """Text in a form that the server checks: `json`, `jsonb`, `uuid`, `inet4`, `inet6`."""

    form: str


@dataclass(frozen=True, slots=True)
class PostgresType:
    """The values of a type of PostgreSQL's own, as its text form: format_type()'s name, such as `inet` or `bit(3)[]`."""

    name: str


@dataclass(frozen=True, slots=True)
class EnumOfPostgres:
    """An enum, or arrays of it. Of an existing column, `full_name`: the type as SQL, and `can_grow`: it can get labels."""

    labels: tuple[str, ...]
    in_array: bool
    full_name: str = ""
    can_grow: bool = False


def longest_label(labels: tuple[str, ...]) -> int:
    """Returns how many characters a label of an enum of PostgreSQL has at most, also one that it gets later."""
    return max(_MAX_LABEL, *map(len, labels))


_MAX_LABEL = 63
"""NAMEDATALEN - 1 bytes: https://www.postgresql.org/docs/current/datatype-enum.html. A server may be built with more."""


@dataclass(frozen=True, slots=True)
class Citext:
    """Text of any length whose comparisons ignore case, or arrays of it."""

    in_array: bool


@dataclass(frozen=True, slots=True)
class Duration:
    """MySQL's TIME with `digits` fractional digits of the second."""

    digits: int


@dataclass(frozen=True, slots=True)
class Binary:
    """At most `byte_count` bytes (None: any number). `fixed`: always exactly that many, padded with zeros."""

    byte_count: int | None = None
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Dates:
    """Days."""


@dataclass(frozen=True, slots=True)
class Timestamps:
    """Timestamps with `digits` fractional digits of the second. `zoned`: in UTC; else without a zone."""

    digits: int
    zoned: bool


@dataclass(frozen=True, slots=True)
class Vectors:
    """Lists of float32. None: of any length."""

    dimensions: int | None


@dataclass(frozen=True, slots=True)
class Shapes:
    """Spatial values of a type, or of any with `geometry`."""

    kind: str


ValueRange: TypeAlias = (
    Booleans
    | Integers
    | Bits
    | Year
    | Decimals
    | Floats
    | Text
    | Labels
    | FormattedText
    | PostgresType
    | EnumOfPostgres
    | Citext
    | Duration
    | Binary
    | Dates
    | Timestamps
    | Vectors
    | Shapes
)

_MAX_FORMATTED_LENGTH = {"uuid": 36, "inet4": 15, "inet6": 45}
_MAX_DURATION = 17
_MAX_FRACTION = 6
_BYTES_PER_CHARACTER = 4
_BOUNDED_TEXT = re.compile(r"character(?: varying)?\((\d+)\)")
MAX_POSTGRES_VALUE = 1 << 30


def holds(target: ValueRange, source: ValueRange) -> bool:
    match target, source:
        case Integers(low, high), Integers(source_low, source_high):
            return low <= source_low and source_high <= high
        case Integers() | Bits(), Booleans():
            return True
        case Integers() | Decimals(), Bits(width):
            return holds(target, Integers(0, (1 << width) - 1))
        case Integers() | Decimals(), Year():
            return holds(target, Integers(0, 2155))
        case Bits(width), Bits(source_width):
            return source_width <= width
        case Decimals(None, _), Integers() | Decimals():
            return True
        case Decimals(), Decimals(None, _):
            return False
        case Decimals(int(precision), scale), Integers(low, high):
            return max(len(str(abs(low))), len(str(high))) <= precision - (scale or 0)
        case Decimals(int(precision), scale), Decimals(int(source_precision), source_scale):
            return (source_scale or 0) <= (scale or 0) and (
                source_precision - (source_scale or 0) <= precision - (scale or 0)
            )
        case Floats(bits, ()), Floats(source_bits):
            return source_bits <= bits
        case Text(), _:
            return _text_holds(target, source)
        case FormattedText("jsonb"), FormattedText("json"):
            return True
        case FormattedText(form), PostgresType(name):
            return form == name or (form, name) == ("json", "jsonb")
        case Decimals(), PostgresType(name):
            return (declared := declared_numeric(name)) is not None and holds(target, declared)
        case Duration(digits), PostgresType(name):
            return name in {f"interval({digits})", "interval" if digits == _MAX_FRACTION else ""}
        case EnumOfPostgres(labels, in_array, _, can_grow), EnumOfPostgres(source_labels, source_in_array):
            return in_array == source_in_array and (can_grow or set(source_labels) <= set(labels))
        case Labels(labels, several), Labels(source_labels, source_several):
            kept = tuple(label for label in labels if label in source_labels)
            # A SET's text lists its labels in the column's order.
            return several == source_several and (
                kept == source_labels if several else set(source_labels) <= set(labels)
            )
        case Duration(digits), Duration(source_digits):
            return source_digits <= digits
        case Binary(byte_count, fixed), Binary(source_count, source_fixed):
            if fixed:
                return source_fixed and source_count == byte_count
            return byte_count is None or (source_count is not None and source_count <= byte_count)
        case Binary(byte_count, False), Shapes():
            return byte_count is None or byte_count >= 2**32 - 1
        case Binary(byte_count, False), Vectors(dimensions):
            return byte_count is None or (dimensions is not None and 4 * dimensions <= byte_count)
        case Timestamps(digits, zoned), Timestamps(source_digits, source_zoned):
            return zoned == source_zoned and source_digits <= digits
        case Vectors(None), PostgresType(name):
            return name == "real[]"
        case Vectors(dimensions), Vectors(source_dimensions):
            return dimensions is None or dimensions == source_dimensions
        case Vectors(None), PostgresType(name):
            return name == "real[]"
        case Shapes(kind), Shapes(source_kind):
            return kind in {"geometry", source_kind}
        case _:
            return target == source


def _text_holds(target: Text, source: ValueRange) -> bool:
    match source:
        case Text(characters, byte_count, padded):
            if target.padded and not padded:
                return False
        case Labels(labels, several):
            lengths = [len(label) for label in labels]
            characters, byte_count = (sum(lengths) + len(lengths) if several else max(lengths, default=0)), None
        case FormattedText("json"):
            characters, byte_count = None, 2**32 - 1
        case FormattedText(form):
            characters, byte_count = _MAX_FORMATTED_LENGTH[form], None
        case Duration():
            characters, byte_count = _MAX_DURATION, None
        case EnumOfPostgres(labels, in_array=False):
            characters, byte_count = longest_label(labels), None
        case PostgresType() | EnumOfPostgres() | Citext():
            characters, byte_count = None, MAX_POSTGRES_VALUE
        case _:
            return False
    if target.padded and not isinstance(source, Text):
        return False
    return _fits(target, characters, byte_count)


def _fits(target: Text, characters: int | None, byte_count: int | None) -> bool:
    """True if `target` can store a text of at most `characters` characters and `byte_count` bytes. None: not known; if both
    are None, the text may have any length."""
    max_characters = characters if characters is not None else byte_count
    max_bytes = (
        byte_count if byte_count is not None else None if characters is None else characters * _BYTES_PER_CHARACTER
    )
    return (target.characters is None or (max_characters is not None and max_characters <= target.characters)) and (
        target.byte_count is None or (max_bytes is not None and max_bytes <= target.byte_count)
    )


def canonical_value_range(column: Column) -> ValueRange:
    """Returns the value range of a PostgreSQL source's column: that of its Arrow type, with the length of its text type."""
    kind = arrow_type_of(column.arrow_type)
    if pa.types.is_boolean(kind):
        return Booleans()
    if pa.types.is_integer(kind):
        return Integers(-(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1)
    if pa.types.is_decimal(kind):
        return Decimals(kind.precision, kind.scale)
    if pa.types.is_floating(kind):
        return Floats(kind.bit_width)
    if pa.types.is_string(kind):
        if column.named_type is not None:
            labels, in_array = column.named_type.labels, column.named_type.in_array
            return Citext(in_array) if labels is None else EnumOfPostgres(labels, in_array)
        if column.source_type == "uuid":
            return FormattedText("uuid")
        if is_kept_type(column.source_type):
            return PostgresType(column.source_type)
        bounded = _BOUNDED_TEXT.fullmatch(column.source_type)
        return Text(int(bounded[1])) if bounded else Text(None, MAX_POSTGRES_VALUE)
    if pa.types.is_binary(kind):
        return Binary(MAX_POSTGRES_VALUE)
    if pa.types.is_date(kind):
        return Dates()
    if pa.types.is_timestamp(kind):
        return Timestamps(6, kind.tz is not None)
    return Vectors(None)


# PostgreSQL's types that a copy in PostgreSQL keeps

_MODIFIER = re.compile(r"\((\d+(?:,-?\d+)?)\)")
_KEPT = re.compile(
    "numeric|jsonb|inet|cidr|macaddr|macaddr8|bit|bit varying|money|interval|time without time zone|time with time zone|"
    "tsvector|tsquery|point|line|lseg|box|path|polygon|circle|pg_lsn|"
    "(?:int4|int8|num|ts|tstz|date)(?:range|multirange)"
)
_KEPT_IN_ARRAYS = re.compile(
    "boolean|smallint|integer|bigint|real|double precision|text|character varying|character|bytea|date|"
    "timestamp without time zone|timestamp with time zone|uuid|json"
)


def is_kept_type(name: str) -> bool:
    """True if values of a type, as format_type() names it, are read as text and written by their text form."""
    element = _MODIFIER.sub("", name.removesuffix("[]"))
    if name == "json" or _KEPT.fullmatch(element) is not None:
        return True
    return name.endswith("[]") and _KEPT_IN_ARRAYS.fullmatch(element) is not None


def declared_numeric(name: str) -> Decimals | None:
    """Returns the value range of `numeric` or `numeric(p,s)`, None for another type. A scale that is negative or greater than
    the precision needs a numeric without both."""
    modifier = _MODIFIER.search(name)
    if name != "numeric" and (modifier is None or name != f"numeric{modifier[0]}"):
        return None
    if modifier is None:
        return Decimals(None, None)
    precision, scale = map(int, modifier[1].split(","))
    return Decimals(precision, scale) if 0 <= scale <= precision else Decimals(None, None)


# MySQL's and MariaDB's types

_MYSQL_TYPE = re.compile(r"(?P<base>[a-z0-9]+)\s*(?:\((?P<arguments>.*)\))?(?P<rest>[^()]*)", re.DOTALL | re.IGNORECASE)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_LABEL = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_INTEGER_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "integer": 32, "bigint": 64}
_TEXT_BYTES = {"tiny": 2**8 - 1, "": 2**16 - 1, "medium": 2**24 - 1, "long": 2**32 - 1}


@dataclass(frozen=True, slots=True)
class MySqlType:
    """The parts of a type: `decimal(12,2) unsigned` has the base `decimal` and the arguments `12,2`."""

    base: str
    arguments: str
    unsigned: bool

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(int(number) for number in self.arguments.split(",")) if self.arguments else ()


def parse_mysql_type(text: str) -> MySqlType:
    """Parses a COLUMN_TYPE of information_schema. Raises ValueError for another form."""
    match = _MYSQL_TYPE.fullmatch(_COMMENT.sub("", text).strip())
    if match is None:
        raise ValueError(f"not a column type: {text!r}")
    rest = match["rest"].lower().split()
    return MySqlType(match["base"].lower(), match["arguments"] or "", "unsigned" in rest or "zerofill" in rest)


def has_mysql_type(column: Column, kind: DatabaseKind) -> bool:
    """True if `source_type` names a type of MySQL or MariaDB: not in a column that a transform made. `kind`: of the source."""
    match kind:
        case "mysql" | "mariadb":
            return not column.made
        case "postgresql":
            return False
        case _:
            assert_never(kind)


def mysql_value_range(text: str) -> ValueRange:
    """Returns the value range of a COLUMN_TYPE. Raises ValueError for an unknown type."""
    kind = parse_mysql_type(text)
    base, numbers = kind.base, () if kind.base in {"enum", "set"} else kind.numbers
    first = numbers[0] if numbers else None
    if base in _INTEGER_BITS:
        bits = _INTEGER_BITS[base]
        return Integers(0, (1 << bits) - 1) if kind.unsigned else Integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    for prefix, byte_count in _TEXT_BYTES.items():
        if base == f"{prefix}text":
            return Text(None, byte_count)
        if base == f"{prefix}blob":
            return Binary(byte_count)
    match base:
        case "decimal" | "numeric":
            return Decimals(10 if first is None else first, numbers[1] if len(numbers) > 1 else 0)
        case "float":
            if len(numbers) > 1:
                return Floats(32, numbers)
            return Floats(64 if first is not None and first > 24 else 32)
        case "double" | "real":
            return Floats(64, numbers)
        case "bit":
            return Bits(1 if first is None else first)
        case "year":
            return Year()
        case "char":
            return Text(1 if first is None else first, padded=True)
        case "varchar":
            return Text(first)
        case "binary":
            return Binary(1 if first is None else first, fixed=True)
        case "varbinary":
            return Binary(first)
        case "enum" | "set":
            labels = tuple(label.replace("''", "'") for label in _LABEL.findall(kind.arguments))
            return Labels(labels, several=base == "set")
        case "json" | "uuid" | "inet4" | "inet6":
            return FormattedText(base)
        case "time":
            return Duration(first or 0)
        case "date":
            return Dates()
        case "datetime" | "timestamp":
            return Timestamps(first or 0, zoned=base == "timestamp")
        case "vector":
            return Vectors(2048 if first is None else first)
        case _ if base in SPATIAL_TYPES:
            return Shapes("geomcollection" if base == "geometrycollection" else base)
        case _:
            raise ValueError(f"not a known column type: {text!r}")
