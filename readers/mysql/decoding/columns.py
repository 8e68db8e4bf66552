"""Column plans: how to decode a table's rows from the log's row images and from SELECT results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from tidemark.readers.mysql.decoding.charsets import decode_text
from tidemark.readers.mysql.decoding.column_codes import ColumnCode
from tidemark.readers.mysql.decoding.decode import GENERATED, UNWANTED, WANTED
from tidemark.readers.mysql.decoding.field_types import FieldType, image_code, image_type
from tidemark.readers.mysql.decoding.type_layouts import Conversion, TypeLayout, column_layout, vector_of_mariadb
from tidemark.readers.mysql.schema.types import canonical_type
from tidemark.state.errors import IncompleteRowsError, SchemaChangedError, UnknownLogEventError
from tidemark.state.kernel import Bytes, Int32s
from tidemark.state.remedies import START_OVER, START_OVER_NOW
from tidemark.state.table import Column, TableId, TableSchema, arrow_type_of


@dataclass(frozen=True, slots=True)
class Output:
    """A captured column: the index of its column buffer, and the conversion to Arrow. `wire`: the type that a result must
    announce. `wider`: the type that the values are cast to after that: the column was narrower when they were logged."""

    name: str
    index: int
    type: pa.DataType
    conversion: Conversion
    number: int = 0
    charset: str | None = None
    labels: tuple[str, ...] = ()
    wire: FieldType | None = None
    unsigned: bool = False
    is_key: bool = False
    wider: pa.DataType | None = None


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """Drives the compiled decoders. `code` and `meta` have one entry per column buffer; `outputs` are the captured columns.
    `wanted`: which columns an image must have, see `decode_image`; empty for results.

    A plan for the log has a buffer for every column of the table, a plan for results one for every captured column.
    """

    table: TableId
    code: Int32s
    meta: Int32s
    outputs: tuple[Output, ...]
    wanted: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))

    @property
    def column_count(self) -> int:
        return int(self.code.shape[0])

    def column_name(self, index: int) -> str:
        """The name of the column at a buffer's index, for messages."""
        return next((output.name for output in self.outputs if output.index == index), f"column {index + 1}")

    def is_generated(self, index: int) -> bool:
        """True for a captured column that the server generates, in a plan for the log."""
        return int(self.wanted[index]) == GENERATED

    def generated_names(self) -> list[str]:
        """The captured columns that the server generates, in a plan for the log."""
        return [output.name for output in self.outputs if self.is_generated(output.index)]

    @classmethod
    def for_log(
        cls, schema: TableSchema, type_codes: bytes, metadata: Sequence[int], *, labels: Mapping[int, Sequence[bytes]]
    ) -> "ColumnPlan":
        """The plan for a TABLE_MAP event. `metadata`: see `field_types.split_metadata`. `labels`: those of ENUMs and SETs by
        column index, in the column's own character set.

        Raises SchemaChangedError if the event does not fit `schema`, UnknownLogEventError if the log lacks metadata.
        """
        if len(type_codes) != len(schema.columns):
            raise SchemaChangedError(
                f"{schema.table} has {len(schema.columns)} columns, in the log {len(type_codes)}.", START_OVER_NOW
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
            layouts = [layout for layout in _forms(schema.table, column) if layout.image == (kind, number)]
            if not layouts:
                raise SchemaChangedError(
                    f"{schema.table}.{column.name} is {column.source_type}, in the log it is {kind.name} ({number}).",
                    START_OVER_NOW,
                )
            layout = layouts[0]
            texts: tuple[str, ...] = ()
            if layout.source.labels:
                layout, texts = _labelled(schema.table, column, layouts, labels.get(i))
            if layout.source.unsigned:
                code[i] = _UNSIGNED.get(known[0], known[0])
            now = arrow_type_of(column.arrow_type)
            outputs.append(
                Output(
                    column.name,
                    i,
                    layout.type,
                    layout.from_image,
                    number=layout.number,
                    charset=layout.charset,
                    labels=texts,
                    is_key=column.name in schema.key,
                    wider=None if layout.type == now else now,
                )
            )
        wanted = [
            (GENERATED if column.generated else WANTED) if column.captured else UNWANTED for column in schema.columns
        ]
        return cls(schema.table, code, meta, tuple(outputs), np.array(wanted, np.uint8))

    @classmethod
    def for_result(cls, schema: TableSchema) -> "ColumnPlan":
        """The plan for a SELECT of the captured columns, in order, in their own character sets."""
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
                    is_key=column.name in schema.key,
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


def _forms(table: TableId, column: Column) -> list[TypeLayout]:
    """Returns the layouts that the column may have in the log: that of its type, then those of the types that it had before."""
    earlier = [
        replace(column, source_type=text, arrow_type=canonical_type(table, column.name, text, column.charset))
        for text in reversed(column.narrower)
    ]
    layouts = [column_layout(table, form) for form in (column, *earlier)]
    vectors = [layout for layout in layouts if layout.from_image is Conversion.VECTOR and layout.source.numbers]
    return layouts + [vector_of_mariadb(layout) for layout in vectors]


def _labelled(
    table: TableId, column: Column, layouts: Sequence[TypeLayout], logged: Sequence[bytes] | None
) -> tuple[TypeLayout, tuple[str, ...]]:
    """Returns the layout with the labels that the log has, and these. Raises SchemaChangedError unless they fit one of the
    catalog's, which has `?` for characters beyond the BMP."""
    if logged is None:
        raise IncompleteRowsError(
            f"{table}.{column.name}: the log does not have the labels of {column.source_type}: binlog_row_metadata was not "
            "FULL.",
            f"SET GLOBAL binlog_row_metadata=FULL on the source, let applications reconnect, then {START_OVER}.",
            table,
        )
    try:
        texts = tuple(decode_text(column.charset or "binary", label) for label in logged)
    except (UnicodeDecodeError, LookupError) as exc:
        raise UnknownLogEventError(
            f"{table}.{column.name}: a label is not valid {column.charset}: {exc}.",
            "Leave the column out (source.columns: exclude).",
        ) from exc
    for layout in layouts:
        labels = layout.source.labels
        if len(texts) == len(labels) and all(
            text == known or "?" in known for text, known in zip(texts, labels, strict=True)
        ):
            return layout, texts
    raise SchemaChangedError(
        f"{table}.{column.name} is {column.source_type}, in the log it has the labels {', '.join(texts)}.",
        START_OVER_NOW,
    )
