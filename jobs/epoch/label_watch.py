"""Tells the sink which labels the source's enums have got: before the rows with them are written, and with their places."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Protocol, TypeAlias

from tidemark.jobs.epoch.write_parts import Writing
from tidemark.sinks.sink import TakesLabels
from tidemark.state.table import Column, TableSchema

Labels: TypeAlias = Mapping[tuple[str, str], tuple[str, ...]]
"""The labels of enums, by schema and name."""


class Source(Protocol):
    def labels(self, types: Collection[tuple[str, str]]) -> Labels: ...


class LabelWatch:
    """One per run."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self._known = {
            (named.schema, named.name): named.labels
            for schema in writing.schemas.values()
            for named in (column.named_type for column in schema.captured)
            if named is not None and named.labels is not None
        }

    def look(self, source: Source) -> None:
        """Called when an epoch is planned, before it runs. Raises SinkError."""
        sink = self._writing.sink
        if not self._known or not isinstance(sink, TakesLabels):
            return
        now = self._known | dict(source.labels(self._known))
        if now != self._known:
            sink.add_labels(self._writing.job, [_with_labels(schema, now) for schema in self._writing.schemas.values()])
            self._known = now


def _with_labels(schema: TableSchema, labels: Labels) -> TableSchema:
    return replace(schema, columns=tuple(_labelled(column, labels) for column in schema.columns))


def _labelled(column: Column, labels: Labels) -> Column:
    named = column.named_type
    if named is None or named.labels is None:
        return column
    return replace(column, named_type=replace(named, labels=labels[named.schema, named.name]))
