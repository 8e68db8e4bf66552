"""The column definitions of a result, and the check that they are what the plan expects."""

from dataclasses import dataclass

from tidemark.readers.mysql.decoding.columns import ColumnPlan, Output
from tidemark.readers.mysql.decoding.field_types import FieldType
from tidemark.readers.mysql.decoding.type_layouts import Conversion
from tidemark.state.errors import DamagedLogError, SchemaChangedError
from tidemark.state.remedies import START_OVER_NOW

_UNSIGNED_FLAG = 0x20
_BINARY = "binary"
_BLOBS = frozenset({FieldType.TINY_BLOB, FieldType.MEDIUM_BLOB, FieldType.LONG_BLOB})
_NUMBERS = frozenset({FieldType.TINY, FieldType.SHORT, FieldType.INT24, FieldType.LONG, FieldType.LONGLONG})


@dataclass(frozen=True, slots=True)
class ResultColumn:
    name: str
    kind: FieldType
    unsigned: bool
    collation: int


def parse_result_column(payload: bytes) -> ResultColumn:
    """Parses a column definition packet. Raises DamagedLogError.

    https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_query_response_text_resultset_column_definition.html
    """
    try:
        texts = []
        at = 0
        for _ in range(6):  # catalog, schema, table, original table, name, original name
            start = at + 1 if payload[at] < 251 else at + 3
            at = start + (payload[at] if payload[at] < 251 else int.from_bytes(payload[at + 1 : at + 3], "little"))
            texts.append(payload[start:at])
        fixed = payload[at + 1 : at + 1 + payload[at]]
        collation = int.from_bytes(fixed[0:2], "little")
        kind = FieldType(fixed[6])
        flags = int.from_bytes(fixed[7:9], "little")
        return ResultColumn(texts[4].decode("utf-8"), kind, bool(flags & _UNSIGNED_FLAG), collation)
    except (IndexError, ValueError) as exc:
        raise DamagedLogError(
            f"A column definition of a result can't be read: {exc}.",
            "Connect to the server itself, not through a proxy.",
        ) from exc


def check_result_columns(plan: ColumnPlan, columns: list[ResultColumn], charsets: dict[int, str]) -> None:
    """`charsets`: see `charsets_by_collation`. Raises SchemaChangedError, which names the column."""
    if len(columns) != len(plan.outputs):
        raise SchemaChangedError(
            f"The SELECT of {plan.table} returns {len(columns)} columns, expected were {len(plan.outputs)}.",
            START_OVER_NOW,
        )
    for output, column in zip(plan.outputs, columns, strict=True):
        difference = _difference(plan, output, column, charsets.get(column.collation))
        if difference is not None:
            raise SchemaChangedError(
                f"{plan.table}.{output.name} was altered: {difference}.",
                START_OVER_NOW,
            )


def _difference(plan: ColumnPlan, output: Output, column: ResultColumn, charset: str | None) -> str | None:
    if column.name != output.name:
        return f"the result has {column.name} instead"
    kind = FieldType.BLOB if column.kind in _BLOBS else column.kind
    is_vector_of_mariadb = output.conversion is Conversion.VECTOR and kind is FieldType.VAR_STRING
    if kind is not output.wire and not is_vector_of_mariadb:
        return f"its type is {kind.name}"
    if kind in _NUMBERS and column.unsigned != output.unsigned:
        return "it has the other sign"
    match output.conversion:
        case Conversion.TEXT if kind is not FieldType.JSON:  # it is utf8mb4, but announced as binary
            expected = output.charset
        case Conversion.BYTES | Conversion.VECTOR:
            expected = _BINARY
        case _:
            return None
    if _plain(charset) != _plain(expected):
        return f"its character set is {charset}, not {expected}"
    return None


def _plain(charset: str | None) -> str | None:
    """Replaces utf8, the old name of utf8mb3."""
    return "utf8mb3" if charset == "utf8" else charset
