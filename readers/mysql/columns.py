"""The plan by which a table's rows are decoded: from the log's row images, and from SELECT results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from readers.kernel import Int32s
from readers.mysql.charsets import decode_text
from readers.mysql.column_codes import ColumnCode
from readers.mysql.field_types import FieldType, image_code, image_type
from readers.mysql.layouts import Conversion, Layout, column_layout
from state.errors import SchemaChangedError, UnknownLogEventError
from state.table import Column, TableId, TableSchema

_CHANGED = "The table was altered: start the job anew, or from a position after the change."


@dataclass(frozen=True, slots=True)
class Output:
    """A captured column: the plane of its values, and what becomes of them. `wire` is what a result must announce."""

    name: str
    plane: int
    type: pa.DataType
    conversion: Conversion
    number: int = 0
    charset: str | None = None
    labels: tuple[str, ...] = ()
    wire: FieldType | None = None
    unsigned: bool = False


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """Drives the compiled decoders. `code` and `meta` have one number a plane; `outputs` are the captured columns.

    In a plan for the log there is a plane for every column of the table; in one for results for every captured one.
    """

    table: TableId
    code: Int32s
    meta: Int32s
    outputs: tuple[Output, ...]

    @property
    def column_count(self) -> int:
        return int(self.code.shape[0])

    def column_name(self, plane: int) -> str:
        """For messages."""
        return next((output.name for output in self.outputs if output.plane == plane), f"column {plane + 1}")

    @classmethod
    def for_log(
        cls, schema: TableSchema, type_codes: bytes, metadata: Sequence[int], *, labels: Mapping[int, Sequence[bytes]]
    ) -> "ColumnPlan":
        """Of a TABLE_MAP event: its type bytes, `metadata` from `field_types.split_metadata`, and by a column's index
        the `labels` of ENUMs and SETs, as the event's optional metadata has them, in the column's own character set.

        Raises SchemaChangedError where the event describes another table than `schema`, UnknownLogEventError where the
        log lacks metadata.
        """
        if len(type_codes) != len(schema.columns):
            raise SchemaChangedError(
                f"{schema.table} has {len(schema.columns)} columns, in the log {len(type_codes)}.", _CHANGED
            )
        code = np.empty(len(type_codes), np.int32)
        meta = np.empty(len(type_codes), np.int32)
        outputs = []
        for i, column in enumerate(schema.columns):
            kind, number = image_type(type_codes[i], metadata[i])
            known = image_code(kind, number)
            if known is None:
                raise UnknownLogEventError(
                    f"{schema.table}.{column.name}: the log has it as {kind.name} ({number}), which is not supported.",
                    "Rebuild a table with temporal columns from before MySQL 5.6 (ALTER TABLE … FORCE; MariaDB: with "
                    "mysql56_temporal_format=ON), use columns that are not COMPRESSED, or leave the table out.",
                )
            code[i], meta[i] = known
            if not column.captured:
                continue
            layout = column_layout(schema.table, column)
            if (kind, number) != layout.image:
                raise SchemaChangedError(
                    f"{schema.table}.{column.name} is {column.source_type}, in the log it is {kind.name} ({number}).",
                    _CHANGED,
                )
            if layout.source.unsigned:
                code[i] = _UNSIGNED.get(known[0], known[0])
            texts = _labels(schema.table, column, layout, labels.get(i)) if layout.source.labels else ()
            outputs.append(
                Output(
                    column.name,
                    i,
                    layout.type,
                    layout.from_image,
                    number=layout.number,
                    charset=layout.charset,
                    labels=texts,
                )
            )
        return cls(schema.table, code, meta, tuple(outputs))

    @classmethod
    def for_result(cls, schema: TableSchema) -> "ColumnPlan":
        """Of a SELECT of the captured columns, in order, in their own character sets."""
        layouts = [column_layout(schema.table, column) for column in schema.captured]
        return cls(
            schema.table,
            np.array([layout.result_code for layout in layouts], np.int32),
            np.array([layout.result_meta for layout in layouts], np.int32),
            tuple(
                Output(
                    column.name,
                    i,
                    layout.type,
                    layout.from_result,
                    number=layout.number,
                    charset=layout.charset,
                    wire=layout.wire,
                    unsigned=layout.source.unsigned,
                )
                for i, (column, layout) in enumerate(zip(schema.captured, layouts, strict=True))
            ),
        )


_UNSIGNED = {
    ColumnCode.INT8: ColumnCode.UINT8,
    ColumnCode.INT16: ColumnCode.UINT16,
    ColumnCode.INT24: ColumnCode.UINT24,
    ColumnCode.INT32: ColumnCode.UINT32,
    ColumnCode.INT64: ColumnCode.UINT64,
}


def _labels(table: TableId, column: Column, layout: Layout, logged: Sequence[bytes] | None) -> tuple[str, ...]:
    """The log's labels: the catalog shows `?` for characters beyond the BMP."""
    if logged is None:
        raise UnknownLogEventError(
            f"{table}.{column.name}: the log does not have the labels of {column.source_type}.",
            "SET GLOBAL binlog_row_metadata=FULL on the source, and start after it.",
        )
    try:
        texts = tuple(decode_text(column.charset or "binary", label) for label in logged)
    except (UnicodeDecodeError, LookupError) as exc:
        raise UnknownLogEventError(
            f"{table}.{column.name}: a label is no text of {column.charset}: {exc}.", "Leave the column out."
        ) from exc
    same = len(texts) == len(layout.source.labels) and all(
        text == known or "?" in known for text, known in zip(texts, layout.source.labels, strict=False)
    )
    if not same:
        raise SchemaChangedError(
            f"{table}.{column.name} is {column.source_type}, in the log it has the labels {', '.join(texts)}.", _CHANGED
        )
    return texts
