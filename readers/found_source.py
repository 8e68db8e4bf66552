"""The part of a source adapter that is the same for every kind of database."""

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.conf.model import JobFile
from tidemark.readers.findings import Finding
from tidemark.state.table import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class FoundTables:
    """The tables of `tidemark.readers.source.FoundSource`, and what the checks said about them."""

    job: JobFile
    schemas: tuple[TableSchema, ...]
    split_columns: Mapping[TableId, tuple[str, ...]]
    findings: tuple[Finding, ...]
