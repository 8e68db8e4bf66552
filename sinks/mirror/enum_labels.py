"""The labels of enums in a PostgreSQL target, whose source is PostgreSQL, too. Pure (docs/adr/0065)."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.sinks.mirror.planning import find_column
from tidemark.sinks.mirror.target import Dialect, TargetTable
from tidemark.sinks.mirror.value_ranges import EnumOfPostgres
from tidemark.state.table import TableSchema

_DIMENSIONS = re.compile(r"\[[-\d:\[\]]*\]=")
_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^{},"]+)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def enums_of(schema: TableSchema, existing: TargetTable, dialect: Dialect) -> dict[str, EnumOfPostgres]:
    """Returns the enums among the columns of a copy, by the source's column."""
    found = {column.name: find_column(existing, column, dialect) for column in schema.captured}
    ranges = {name: column.value_range for name, column in found.items() if column is not None}
    return {name: enum for name, enum in ranges.items() if isinstance(enum, EnumOfPostgres)}


def labels_of_source(schema: TableSchema, enums: Mapping[str, EnumOfPostgres]) -> dict[str, tuple[str, ...]]:
    """Returns those of the enums, by full name, that can get labels and lack some that the source has, each with all of the
    source's, in its order."""
    wanted: dict[str, tuple[str, ...]] = {}
    for column in schema.captured:
        enum = enums.get(column.name)
        if enum is None or column.named_type is None or not enum.can_grow:
            continue
        labels = column.named_type.labels or ()
        if not set(labels) <= set(enum.labels):
            wanted[enum.full_name] = labels
    return wanted


def new_labels(enums: Mapping[str, EnumOfPostgres], batches: Iterable[pa.RecordBatch]) -> dict[str, list[str]]:
    """Returns the labels that changes have and the enums, by column, lack: by the enum's full name, sorted. Values that are
    marked as no text of UTF-8 are left out."""
    found: dict[str, set[str]] = {}
    for batch in batches:
        for name, enum in enums.items():
            if name not in batch.schema.names:
                continue
            texts = pc.unique(batch.column(name)).to_pylist()
            values = _elements(texts) if enum.in_array else (text for text in texts if text is not None)
            missing = {value for value in values if "\0" not in value}.difference(enum.labels)
            if missing:
                found.setdefault(enum.full_name, set()).update(missing)
    return {name: sorted(labels) for name, labels in found.items()}


def _elements(arrays: Iterable[str | None]) -> Iterator[str]:
    """Yields the elements of arrays, which are as the server writes them."""
    for text in arrays:
        if text is None:
            continue
        dimensions = _DIMENSIONS.match(text)
        for element in _ELEMENT.finditer(text, dimensions.end() if dimensions else 0):
            if element[1] is not None:
                yield _ESCAPED.sub(r"\1", element[1])
            elif element[2].upper() != "NULL":
                yield element[2]


def places(existing: Sequence[str], wanted: Collection[str]) -> list[tuple[str, str | None, str | None]]:
    """Returns the labels of `wanted` that `existing` lacks, each with the label that it comes before, or else the one that it
    comes after, so that those of `wanted` have their order, as far as `existing` has it."""
    known, order = set(existing), list(wanted)
    found: list[tuple[str, str | None, str | None]] = []
    for i, label in enumerate(order):
        if label in known:
            continue
        if i > 0:
            found.append((label, None, order[i - 1]))
        else:
            found.append((label, next((later for later in order if later in known), None), None))
        known.add(label)
    return found
