"""Tables and their columns, each with the one Arrow type of its values."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import pyarrow as pa


@dataclass(frozen=True, slots=True, order=True)
class TableId:
    """A table of the source; `database` is PostgreSQL's schema."""

    database: str
    name: str

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"


LEDGER_TABLE = "tidemark_ledger"
REGISTRY_TABLE = "tidemark_tables"
FENCE_TABLE = "tidemark_fence"
REJECTS_TABLE = "tidemark_rejects"
"""Tidemark's own tables in a mirror's target: the parts that it holds, whose each table is, who may write, and rows that it
can't hold."""
TRIAL_PREFIX = "tidemark_trial_"
"""The names of empty tables of a mirror's target that are there while a change of a copy is tried begin with it."""


def is_own_table(name: str) -> bool:
    """True for the names of Tidemark's own tables. No job copies such a table or writes a copy under such a name, in any
    schema: each write would cause another one."""
    own = {LEDGER_TABLE, REGISTRY_TABLE, FENCE_TABLE, REJECTS_TABLE}
    return name.lower() in own or name.lower().startswith(TRIAL_PREFIX)


@dataclass(frozen=True, slots=True)
class NamedType:
    """A type of PostgreSQL that another server may lack: an enum or citext. `labels`: those of the enum when the schema
    was read, in its order; None for citext. `in_array`: the column has arrays of it. Domains over the type are left out."""

    schema: str
    name: str
    labels: tuple[str, ...] | None
    in_array: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    `source_type`: the server's own text (`decimal(12,2)`, `enum('a','b')`, `int unsigned`).
    `arrow_type`: the canonical type's text, see `arrow_type_of`. "" for a column that is not captured and has none.
    `charset` and `collation`: the column's own (character types, ENUM, SET), else None.
    `captured`: whether it is copied. Other columns are listed here too, because the log's row images contain them.
    `toastable`: PostgreSQL's log may leave the value out of an update that did not change it.
    `made`: the column is computed by a mask or a transform. `source_type` is then PostgreSQL's name for its type.
    `number`: PostgreSQL's number of the column (attnum), which is never used again; None for other sources.
    `added`: the table got the column while the job followed it. Rows that were logged before lack it. All of them have the same
    value in it: `constant`, a text that Arrow casts to `arrow_type`, or NULL.
    `dropped`: the table lost the column while the job followed it. Rows that were logged before have it; it is not copied any
    more.
    `narrower`: the types that the column had before, as `source_type`, while the job followed the table. Rows that were logged
    then have them. `source_type` holds each of their values.
    `named_type`: the enum or citext that the values are of. A column with it is the same one: an enum may get labels.
    """

    name: str
    source_type: str
    arrow_type: str
    nullable: bool
    captured: bool = True
    charset: str | None = None
    collation: str | None = None
    generated: bool = False
    toastable: bool = False
    made: bool = False
    number: int | None = None
    added: bool = False
    constant: str | None = None
    dropped: bool = False
    narrower: tuple[str, ...] = ()
    named_type: NamedType | None = field(default=None, compare=False)

    def constants(self, count: int) -> pa.Array:
        """Returns `constant` as often as `count`."""
        kind = arrow_type_of(self.arrow_type)
        return pa.nulls(count, kind) if self.constant is None else pa.repeat(_scalar(self.constant, kind), count)


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The columns of a table in the server's order, and the key that identifies a row. Dropped columns are where they were.

    `key`: captured NOT NULL columns whose combination the server keeps unique; () for a table without one.
    `oid`: PostgreSQL's number of the table, which stays the same when the table is renamed; None for other sources.
    """

    table: TableId
    version: int
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    oid: int | None = None

    @property
    def captured(self) -> tuple[Column, ...]:
        return tuple(c for c in self.columns if c.captured)

    @property
    def present(self) -> tuple[Column, ...]:
        """The columns that the table has."""
        return tuple(c for c in self.columns if not c.dropped)

    @property
    def toastable(self) -> tuple[str, ...]:
        """The captured columns whose value the log may leave out. It never leaves out a key's."""
        return tuple(c.name for c in self.captured if c.toastable and c.name not in self.key)

    def logged_with(self, names: Collection[str]) -> "TableSchema":
        """Returns the schema as it was in the log when only columns of `names` were there: without added ones that were not yet
        there, and without dropped ones that were there no more."""
        columns = tuple(c for c in self.columns if c.name in names or not (c.added or c.dropped))
        return self if columns == self.columns else replace(self, columns=columns)

    def column(self, name: str) -> Column:
        return next(c for c in self.columns if c.name == name)

    def arrow_schema(self) -> pa.Schema:
        """The captured columns, all nullable: Arrow batches of a table always have this schema."""
        return pa.schema([pa.field(c.name, arrow_type_of(c.arrow_type)) for c in self.captured])


_ARROW_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date32": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}


def canonical_constant(text: str, arrow_type: str) -> str | None:
    """Returns the text in the form of `Column.constant`. None if a target could take the value for another one, or has none
    like it: bytes, lists, infinities, the negative zero, years of other than four digits, a NUL character."""
    kind = arrow_type_of(arrow_type)
    if pa.types.is_string(kind):
        return None if "\0" in text else text
    if pa.types.is_binary(kind) or pa.types.is_list(kind):
        return None
    try:
        constant = str(pa.array([text]).cast(kind).cast(pa.string())[0].as_py())
        is_same = _scalar(constant, kind).equals(_scalar(text, kind))
    except pa.ArrowInvalid:
        return None
    is_odd = re.search("[a-zA-Z]|^-0$", constant.removesuffix("Z")) and not pa.types.is_boolean(kind)
    has_year = not pa.types.is_temporal(kind) or re.match("[1-9][0-9]{3}-", constant)
    return constant if is_same and has_year and not is_odd else None


def _scalar(text: str, kind: pa.DataType) -> pa.Scalar:
    return pa.array([text]).cast(kind)[0]


def arrow_type_of(text: str) -> pa.DataType:
    """The Arrow type of a canonical name: one of `bool int8 int16 int32 int64 float32 float64 string binary
    date32 timestamp timestamptz`, `decimal(p,s)` with p up to 38, or a list of one of these, such as `list<float32>`. Raises
    ValueError for another text.

    Spark has no unsigned types: BIGINT UNSIGNED becomes decimal(20,0), smaller ones the next wider integer.
    """
    known = _ARROW_TYPES.get(text)
    if known is not None:
        return known
    if is_list(text):
        return pa.list_(arrow_type_of(element_of(text)))
    if text.startswith("decimal(") and text.endswith(")"):
        precision, _, scale = text[len("decimal(") : -1].partition(",")
        return pa.decimal128(int(precision), int(scale))
    raise ValueError(f"not a canonical type: {text!r}")


def is_list(arrow_type: str) -> bool:
    """True for the canonical name of a list."""
    return arrow_type.startswith("list<") and arrow_type.endswith(">")


def element_of(arrow_type: str) -> str:
    """Returns the canonical name of a list's elements."""
    return arrow_type.removeprefix("list<").removesuffix(">")
