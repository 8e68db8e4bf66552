"""What a target database offers to the mirror, whichever kind it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import pyarrow as pa

from sinks.mirror.domains import Domain
from sinks.mirror.net_effect import PartialRows
from sinks.sink import JobIdentity
from state.table import Column, TableSchema

SourceKind: TypeAlias = Literal["mysql", "mariadb", "postgresql"]

LEDGER_TABLE = "tidemark_ledger"
REGISTRY_TABLE = "tidemark_tables"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A table in the target: PostgreSQL's schema or MySQL's database, and its name."""

    schema: str
    table: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column that exists. `domain` is None for a type that Tidemark does not write; `type_name` the target's own text.

    `may_be_left_out`: it fills itself. `collation` is PostgreSQL's only where it is nondeterministic.
    """

    name: str
    type_name: str
    domain: Domain | None
    nullable: bool
    may_be_left_out: bool
    generated: bool
    collation: str | None


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table that exists. `engine_problem` says why it can't be written transactionally, if so."""

    columns: tuple[TargetColumn, ...]
    key: tuple[str, ...]
    unique_indexes: tuple[str, ...]
    foreign_keys: tuple[str, ...]
    engine_problem: str | None = None

    def column(self, name: str) -> TargetColumn | None:
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True, slots=True)
class Owner:
    """Which job a table of the target belongs to. `created`: the table was seen to exist after the job took it."""

    job: JobIdentity
    source_table: str
    created: bool


class Dialect(Protocol):
    """How tables are made in a target; pure, with what a session found out about its server."""

    @property
    def name_limit(self) -> str:
        """For messages: `64 characters`."""

    def name_fits(self, name: str) -> bool: ...

    def same_name(self, name: str) -> str:
        """Table names that the target takes for one another have the same result."""

    def same_column(self, name: str) -> str:
        """Likewise for the names of a table's columns."""

    def column_type(self, column: Column, *, key: bool) -> str:
        """The SQL type that holds the source's column. Raises ValueError saying why there is none."""

    def create_table(self, place: Place, schema: TableSchema) -> str: ...

    def key_problem(self, column: Column, existing: TargetColumn) -> str | None:
        """Why the existing key column takes values for equal that the source keeps apart."""

    def domain(self, column: Column) -> Domain:
        """Of the source's column. Raises ValueError for an unknown type."""


class TableRows(Protocol):
    """Writes one table inside a session's transaction."""

    def insert(self, rows: pa.RecordBatch) -> None:
        """Rows of the table's captured columns, whose keys the target does not hold."""

    def delete(self, keys: pa.RecordBatch) -> None:
        """Removes the rows with these keys (the key's columns in the key's order), as far as they exist."""

    def empty(self) -> None:
        """Removes all rows."""

    def complete(self, partial: PartialRows) -> None:
        """Fills in what is missing from the rows that the target has now, and keeps the rows for `insert_completed`.

        Raises SinkError where the target lacks such a row.
        """

    def insert_completed(self) -> None:
        """As `insert`."""


class Session(Protocol):
    """One connection to the target, with a transaction at a time. Raises SinkError, SinkBusyError where it may pass."""

    @property
    def home(self) -> str:
        """The schema where the ledger stands, and tables whose route names none."""

    @property
    def dialect(self) -> Dialect: ...

    def schema_exists(self, schema: str) -> bool: ...
    def inspect(self, place: Place) -> TargetTable | None: ...
    def is_empty(self, place: Place) -> bool: ...
    def owner(self, place: Place) -> Owner | None: ...
    def server_problem(self, schemas: Sequence[str]) -> tuple[str, str] | None:
        """Why nothing can be written there (a standby, missing rights), and the remedy."""

    def create_bookkeeping(self) -> None: ...
    def create_schema(self, schema: str) -> None: ...
    def take(self, place: Place, job: JobIdentity, source_table: str) -> Owner:
        """Enters the table for the job unless it has an owner; gives the owner."""

    def create_table(self, sql: str) -> None: ...
    def mark_created(self, place: Place) -> None: ...
    def forget_parts(self, job_uuid: str, before_epoch: int) -> None: ...

    def begin(self, job_uuid: str, epoch: int, part: str) -> int | None:
        """Begins a transaction with the part's ledger entry: a second attempt waits here until the first has ended.

        The part's row count if the ledger holds it already, and then there is no transaction.
        """

    def rows(self, place: Place, schema: TableSchema, existing: TargetTable) -> TableRows: ...
    def commit(self, row_count: int) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...
