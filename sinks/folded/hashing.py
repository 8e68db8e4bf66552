"""Keys, places and hashes of changes, as the state's tables have them.

The rows that are expected and those of a copy are hashed by the same code with one seed, so equal values have equal hashes.
Keys are made by DuckDB's expressions.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.sinks.folded.row_hashes import Texts, hashes_of, hashes_of_texts
from tidemark.state.change_batch import CHANGE_TYPE_NAMES, ChangeType
from tidemark.state.errors import SinkError
from tidemark.state.table import TableId, TableSchema, arrow_type_of

PLACES = pa.decimal128(38, 0)
"""The Arrow type of a change's place: `_commit_version` * 2**32 + `_seq`."""
PLACE_KIND = "DECIMAL(38, 0)"
_OTHER = np.uint64(0x9E3779B97F4A7C15)
_Flags: TypeAlias = npt.NDArray[np.bool_]
_Numbers: TypeAlias = npt.NDArray[np.int64]
_PROBE = (
    pa.array([None, "", "eight by"]),
    pa.array([None, 0, -1], pa.int64()),
    pa.array([None, -0.0, float("nan")]),
    pa.array([None, [], [True]], pa.list_(pa.bool_())),
)


def key_names(schema: TableSchema) -> list[str]:
    """Returns the names of the key's columns in the state's tables."""
    return [f"k{i}" for i in range(len(schema.key))]


def key_kinds(schema: TableSchema) -> list[str]:
    return [_key_kind(schema.column(name).arrow_type) for name in schema.key]


def hash_names(schema: TableSchema) -> list[str]:
    """Returns the names of the columns with hashes: `d` of all values that no change leaves out, and one for each other
    column."""
    return ["d", *toast_names(schema)]


def toast_names(schema: TableSchema) -> list[str]:
    return [f"t{i}" for i in range(len(schema.toastable))]


def change_kinds(schema: TableSchema) -> dict[str, str]:
    """Returns the columns of changes with DuckDB's types: the key (`k0` …), `o` (the place), `is_logged`, `kind` (ChangeType),
    hashes as in `hash_names`, and for each column that may be left out whether it is (`u0` …)."""
    kinds = dict(zip(key_names(schema), key_kinds(schema), strict=True))
    kinds |= {"o": PLACE_KIND, "is_logged": "BOOLEAN", "kind": "TINYINT"}
    kinds |= dict.fromkeys(hash_names(schema), "UBIGINT")
    return kinds | {f"u{i}": "BOOLEAN" for i in range(len(schema.toastable))}


def selected(schema: TableSchema, kinds: Sequence[str]) -> str:
    """Returns the expressions that give `change_kinds` from a table of `RowHashing.changes`, or from what they gave before.
    `kinds`: DuckDB's types of its columns `k0` …, as they are there."""
    expressions = {name: name for name in change_kinds(schema)}
    for name, kind, wanted in zip(key_names(schema), kinds, key_kinds(schema), strict=True):
        expressions[name] = f"TRY_CAST({key_text(name, kind)} AS {wanted})"
    return ", ".join(f"{expression} AS {name}" for name, expression in expressions.items())


def with_key(changes: pa.Table, schema: TableSchema) -> pa.Table:
    """Returns the changes that have a key."""
    keys = [changes.column(name) for name in key_names(schema)]
    if any(key.null_count for key in keys):
        return changes.filter(functools.reduce(pc.and_, [pc.is_valid(key) for key in keys]))
    return changes


def require_alike(seed: int, expected: int, table: TableId) -> None:
    """Raises SinkError if this process hashes differently from the command. `expected`: its `probe`."""
    if probe(seed) != expected:
        raise SinkError(
            f"Rows of {table} can't be compared: Spark's executors hash differently from the command.",
            "Install one version of Tidemark where the driver runs and in the executors' Python.",
        )


def probe(seed: int) -> int:
    """Returns a number that tells whether two processes hash alike."""
    return int(np.bitwise_xor.reduce(hashes_of(list(_PROBE), 3, seed)))


@dataclass(frozen=True, slots=True)
class RowHashing:
    """Hashes rows of a table. Pickled with Spark's tasks."""

    schema: TableSchema
    seed: int
    _kinds: pa.Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_kinds", self.schema.arrow_schema())

    def changes(
        self, columns: Mapping[str, pa.Array], row_count: int, *, is_logged: bool | pa.Array = False
    ) -> pa.Table:
        """Returns the rows as `selected` reads them. `columns`: by the names of the table's and the changelog's columns. Those
        that are lacking are NULL. Rows without changelog columns are those of a table that holds each key once."""
        toastable = self.schema.toastable
        kept, others = dict[str, pa.Array](), dict[str, _Flags]()
        for column in self.schema.captured:
            kept[column.name], others[column.name] = _canonical(
                columns.get(column.name), self._kinds.field(column.name).type, row_count
            )
        found = {k: kept[name] for k, name in zip(key_names(self.schema), self.schema.key, strict=True)}
        found |= _meta(columns, row_count, is_logged)
        whole = [name for name in kept if name not in toastable]
        found["d"] = self._hashes([kept[name] for name in whole], row_count, [others[name] for name in whole])
        for i, name in enumerate(toastable):
            found[f"t{i}"] = self._hashes([kept[name]], row_count, [others[name]])
        return self._table(found, columns.get("_unchanged"))

    def changes_of_texts(
        self, texts: Mapping[str, Texts | None], others: Mapping[str, pa.Array], row_count: int, *, is_logged: bool
    ) -> pa.Table:
        """Returns the same for rows whose values are texts. `others`: their key (`k0` …), and the columns of the changelog."""
        toastable = self.schema.toastable
        found = dict(others) | _meta(others, row_count, is_logged)
        whole = [texts[column.name] for column in self.schema.captured if column.name not in toastable]
        found["d"] = pa.array(hashes_of_texts(whole, row_count, self.seed))
        for i, name in enumerate(toastable):
            found[f"t{i}"] = pa.array(hashes_of_texts([texts[name]], row_count, self.seed))
        return self._table(found, others.get("_unchanged"))

    def _hashes(self, columns: list[pa.Array], row_count: int, others: Sequence[_Flags] = ()) -> pa.Array:
        """`others`: rows with a value that the column can't have now."""
        hashes = hashes_of(columns, row_count, self.seed)
        for rows in others:
            hashes[rows] ^= _OTHER
        return pa.array(hashes)

    def _table(self, found: dict[str, pa.Array], unchanged: pa.Array | None) -> pa.Table:
        for i, name in enumerate(self.schema.toastable):
            found[f"u{i}"] = pa.array(_lists(unchanged, name, len(found["o"])))
        names = list(change_kinds(self.schema))
        return pa.table([found[name] for name in names], names=names)


def _meta(columns: Mapping[str, pa.Array], row_count: int, is_logged: bool | pa.Array) -> dict[str, pa.Array]:
    if isinstance(is_logged, bool):
        is_logged = pa.array(np.full(row_count, is_logged))
    if "_change_type" not in columns:
        no_place = np.zeros(row_count, np.int64)
        insert = np.full(row_count, ChangeType.INSERT, np.int8)
        return {"o": _places(no_place, no_place), "is_logged": is_logged, "kind": pa.array(insert)}
    version, seq = (np.asarray(pc.fill_null(columns[n], 0)).astype(np.int64) for n in ("_commit_version", "_seq"))
    kind = columns["_change_type"]
    if not pa.types.is_integer(kind.type):
        kind = pc.index_in(kind, pa.array(CHANGE_TYPE_NAMES)).cast(pa.int8())
    return {"o": _places(version, seq), "is_logged": is_logged, "kind": kind}


def _places(version: _Numbers, seq: _Numbers) -> pa.Array:
    """Returns version * 2**32 + seq. Both are at least 0."""
    halves = np.empty((len(version), 2), np.int64)
    halves[:, 0], halves[:, 1] = (version << 32) | seq, version >> 32
    return pa.Array.from_buffers(PLACES, len(version), [None, pa.py_buffer(halves)], 0)


def _lists(lists: pa.Array | None, name: str, row_count: int) -> _Flags:
    """Returns for each row whether its list has the name."""
    found = np.zeros(row_count, np.bool_)
    if lists is not None and lists.null_count < row_count:
        rows = np.asarray(pc.list_parent_indices(lists))
        found[rows[np.asarray(pc.fill_null(pc.equal(pc.list_flatten(lists), name), False))]] = True
    return found


def _canonical(column: pa.Array | None, kind: pa.DataType, row_count: int) -> tuple[pa.Array, _Flags]:
    """Returns a column with its type of now, which may be another one in older files. Then the rows with a value that this type
    does not have: they are NULL."""
    others = np.zeros(row_count, np.bool_)
    if column is None:
        return pa.nulls(row_count, kind), others
    if column.type == kind:
        return column, others
    cast = cast_where_possible(column, kind)
    return cast, np.asarray(cast.is_null()) & np.asarray(column.is_valid())


def cast_where_possible(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns a column with another type, NULL for values that this type does not have."""
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if len(column) <= 1:
            return pa.nulls(len(column), kind)
    half = len(column) // 2
    return pa.concat_arrays(
        [cast_where_possible(column.slice(0, half), kind), cast_where_possible(column.slice(half), kind)]
    )


def _key_kind(arrow_type: str) -> str:
    """Returns DuckDB's type for a key's column. Integers are compared as such, all else as text."""
    kind = arrow_type_of(arrow_type)
    if pa.types.is_decimal(kind) and kind.scale == 0:
        return f"DECIMAL({kind.precision}, 0)"
    return "BIGINT" if pa.types.is_integer(kind) else "VARCHAR"


def key_text(expression: str, kind: str) -> str:
    """Returns the expression of a key's value as text."""
    return f"'0x' || lower(hex({expression}))" if kind == "BLOB" else _value_text(expression, kind)


def _value_text(expression: str, kind: str) -> str:
    """Returns an expression: a text that only this value of the column's type has; NULL for NULL."""
    if kind.endswith("[]"):
        element = _value_text("e", kind.removesuffix("[]"))
        sized = f"coalesce(strlen({element}) || ':' || {element}, 'N')"
        return f"'[' || array_to_string([{sized} for e in {expression}], ',')"
    match kind:
        case "BLOB":
            return f"hex({expression})"
        case "TIMESTAMP WITH TIME ZONE":
            return f"CAST(make_timestamp(epoch_us({expression})) AS VARCHAR) || 'Z'"
        case _:
            return f"CAST({expression} AS VARCHAR)"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
