"""The interface of a mirror's target database, the same for all kinds of server."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.sinks.mirror.bad_values import BadValueMask
from tidemark.sinks.mirror.net_effect import PartialRows
from tidemark.sinks.mirror.value_ranges import ValueRange
from tidemark.sinks.sink import JobIdentity, Written
from tidemark.state.copied_range import CopiedRange
from tidemark.state.reached import Reached
from tidemark.state.table import Column, TableSchema

OWN_COLUMNS = (
    "Correct what the copy has besides the source's columns, such as generated columns, domains and triggers, so that it takes "
    "the source's rows. Or drop that table, and let the job create it."
)
GONE = (
    "Start the job again: it says which table it lacks. If the same error comes, a trigger or rule of the copy uses that "
    "table: correct it."
)
ACCEPTS_WRITES = "Name a server in sink.url that accepts writes, not a standby or replica."
"""Remedies for what a server refuses although the copy was checked before."""


@dataclass(frozen=True, slots=True, order=True)
class TargetName:
    """A table's name in the target. `schema` is PostgreSQL's schema or MySQL's database."""

    schema: str
    table: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """An existing column.

    `type_name` is the target's own text. `value_range` is None for a type that Tidemark does not write. `may_be_left_out`:
    an INSERT needs no value for it. `collation`: in PostgreSQL only a nondeterministic one. `sql_type`: in PostgreSQL,
    the type with its modifier.
    """

    name: str
    type_name: str
    value_range: ValueRange | None
    nullable: bool
    may_be_left_out: bool
    generated: bool
    collation: str | None
    sql_type: str = ""


@dataclass(frozen=True, slots=True)
class TargetTable:
    """An existing table. `engine_problem` says why it can't be written in transactions, None if it can. `triggers`: the
    triggers that our writes fire, and PostgreSQL's rules. `updatable`: INSERT can update the row that has its key.
    `incarnation`: another text after the table was truncated, rewritten, or dropped and created again. None if the server does
    not say. `key_name`: in PostgreSQL, the name of the constraint that is the key. `indexed`: in MySQL and MariaDB, the columns
    of the unique indexes, each with the index's name."""

    columns: tuple[TargetColumn, ...]
    key: tuple[str, ...]
    unique_indexes: tuple[str, ...]
    foreign_keys: tuple[str, ...]
    engine_problem: str | None = None
    triggers: tuple[str, ...] = ()
    updatable: bool = True
    incarnation: str | None = None
    key_name: str | None = None
    indexed: tuple[tuple[str, str], ...] = ()

    @property
    def updated_in_place(self) -> bool:
        """True if changed rows are updated, and so keep other columns' values. With another unique index they are deleted and
        inserted: no order of updates is right for every chain and swap of unique values."""
        return self.updatable and not self.unique_indexes

    def column(self, name: str) -> TargetColumn | None:
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True, slots=True)
class Owner:
    """The job that a table of the target belongs to. `created`: the table existed after the job had claimed it. `incarnation`:
    that of the table when the job saw it last with rows."""

    job: JobIdentity
    source_table: str
    created: bool
    incarnation: str | None = None


class Dialect(Protocol):
    """How tables are created in a target. Pure: it holds what a session has found out about its server."""

    @property
    def name_limit(self) -> str:
        """The longest name, for messages: `64 characters`."""

    @property
    def max_key_columns(self) -> int:
        """The most columns of a key by which rows are found."""

    def name_fits(self, name: str) -> bool: ...

    def is_reserved_schema(self, name: str) -> bool:
        """True if nobody can create a schema of this name."""

    def same_name(self, name: str) -> str:
        """Returns the same text for table names that the target treats as one name."""

    def same_column(self, name: str) -> str:
        """Returns the same text for column names that the target treats as one name."""

    def column_type(self, column: Column, *, key: bool) -> str:
        """Returns the SQL type that holds the source's column. Raises ValueError with the reason if there is none."""

    def create_table(self, target: TargetName, schema: TableSchema) -> str: ...

    def column_definition(self, column: Column, *, key: bool) -> str:
        """Returns name and type as `create_table` has them. Raises ValueError as `column_type`."""

    def constant(self, column: Column) -> str:
        """Returns the source column's constant as a literal, for a DEFAULT. Raises ValueError if the target has none for it."""

    def differs(self, column: Column, existing: TargetColumn) -> str:
        """Returns a condition: the existing column's value is not the source column's constant."""

    def drop_default(self, column: Column) -> str:
        """Returns the clause of ALTER TABLE that lets the column be NULL in rows that are written without it."""

    def widen_column(self, column: Column, *, key: bool) -> str:
        """Returns the clause of ALTER TABLE that gives a column the type of `column_type`. Raises ValueError as that."""

    def retype_empty(self, column: Column, existing: TargetColumn, *, key: bool, fits: bool) -> list[str]:
        """Returns the clauses of ALTER TABLE that let a column of an empty table without a key take the source's values, also
        as a column of the new key. `fits`: its type does already. Raises ValueError as `column_definition`."""

    def drop_column(self, name: str) -> str:
        """Returns the clause of ALTER TABLE."""

    def drop_key(self, existing: TargetTable) -> list[str]:
        """Returns the clauses of ALTER TABLE, none for a table without a key."""

    def drop_indexes(self, existing: TargetTable, columns: Collection[str]) -> list[str]:
        """Returns the clauses of ALTER TABLE that drop the unique indexes with one of these columns, which are dropped, too.
        None where the server does so itself."""

    def add_key(self, columns: Sequence[str]) -> str:
        """Returns the clause of ALTER TABLE."""

    def alter_table(self, target: TargetName, clauses: Sequence[str]) -> str: ...

    def key_problem(self, column: Column, existing: TargetColumn) -> str | None:
        """Returns why the existing key column compares values as equal that differ in the source, None if it does not."""

    def charset_problem(self, column: Column, existing: TargetColumn) -> str | None:
        """Returns why the existing column lacks characters that the source's column can have, None if it has all."""

    def value_range(self, column: Column) -> ValueRange:
        """Returns the source column's value range. Raises ValueError for an unknown type."""


class TableRows(Protocol):
    """Writes one table inside a session's transaction. If it was made with `removed`, it marks rows as deleted instead of
    deleting them."""

    def insert(self, rows: pa.RecordBatch) -> None:
        """Inserts rows of the table's captured columns. The target must not have their keys."""

    @property
    def updates_in_place(self) -> bool:
        """True if `upsert` updates present rows. If not, their keys must be deleted first."""

    def upsert(self, rows: pa.RecordBatch, new: npt.NDArray[np.bool_] | None = None) -> None:
        """Inserts rows of the table's captured columns, or updates those that the target has. `new`: which rows it probably
        lacks, None if that is not known. It only makes writing faster: the result is right whatever it says."""

    def delete(self, keys: pa.RecordBatch) -> None:
        """Deletes the rows with these keys, if they exist. `keys` has the key's columns in the key's order."""

    def empty(self) -> None:
        """Deletes all rows."""

    def delete_range(self, keys: CopiedRange) -> None:
        """Deletes the rows with keys of the range. The target orders its columns as the source does."""

    def count_range(self, keys: CopiedRange) -> int:
        """Returns how many rows have keys of the range, without those that are marked as deleted."""

    def bad_values(self, column: str, values: pa.Array) -> BadValueMask | None:
        """Finds the values that the target's column can't hold, None if it can hold all of them."""

    def as_text(self, column: str, values: pa.Array) -> pa.Array | None:
        """Returns texts that the column can hold, None if it is not text."""

    def present(self, keys: pa.RecordBatch, columns: Sequence[str]) -> list[dict[str, Any] | None]:
        """Returns these columns of the target's present row with each key; None if it has no such row. Only text, bytes and
        decimals."""

    def complete(self, partial: PartialRows) -> None:
        """Takes the missing values from the target's present rows, and keeps the completed rows for `upsert_completed`.

        Raises SinkError if the target does not have such a row.
        """

    def upsert_completed(self) -> None:
        """Writes the rows that `complete` has kept, as `upsert` does."""


class ComparingRows(TableRows, Protocol):
    """A target's table rows, which can also load temporary tables."""

    def load(self, table: str, rows: pa.RecordBatch) -> None: ...


class ComparingSql(Protocol):
    """The statements of a comparison that differ between kinds of target. `lookup`: a join that reads its left table, a small
    one, and looks rows of the right one up."""

    lookup: str

    def quoted(self, name: str) -> str: ...
    def full_name(self, target: TargetName) -> str: ...

    def prepare(self) -> None:
        """Prepares the session, so that texts of values are exact."""

    def create(self, columns: Sequence[str]) -> str:
        """Creates an empty temporary table with these columns of the copy, which stays after a COMMIT. Returns its name."""

    def indexed(self, table: str, key: Sequence[str]) -> None:
        """Makes lookups by key in a filled temporary table fast."""

    def add_index(self, table: str, key: Sequence[str]) -> None:
        """Makes lookups by key in an empty temporary table fast."""

    def drop(self, table: str) -> None: ...

    def within(self, alias: str, keys: CopiedRange) -> str:
        """Returns a condition: the row's key is in the range. The server reads no more of the primary key."""

    def same_value(self, staged: str, copied: str, column: str) -> str:
        """Returns a condition: a staged row and one of the copy, by their aliases, have equal values in a column of the key."""

    def differs(self, columns: Sequence[str]) -> str:
        """Returns a condition: the rows `s` and `c` differ in one of the columns, by a single bit."""

    def digest(self, alias: str, columns: Sequence[str]) -> str:
        """Returns an expression: a hash of the row."""

    def text(self, alias: str, column: str) -> str:
        """Returns an expression: the column's value as text or bytes."""

    def text_read(self, alias: str, column: str) -> str:
        """Returns an expression: the text that a value has if the table is read as a source's is."""


class Session(Protocol):
    """One connection to the target, with one transaction at a time.

    Raises SinkError; SinkBusyError if the same work may succeed later.
    """

    @property
    def home(self) -> str:
        """The schema of the ledger, and of tables whose `sink.table` names no schema."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def locks_only_rows(self) -> bool:
        """True if a transaction that writes rows never makes one wait that writes other rows of the table."""

    @property
    def rolls_back_ddl(self) -> bool:
        """False if an ALTER TABLE commits the transaction before it."""

    def schema_exists(self, schema: str) -> bool: ...
    def inspect(self, target: TargetName) -> TargetTable | None: ...
    def inspect_all(self, targets: Iterable[TargetName]) -> dict[TargetName, TargetTable]:
        """Returns those of the tables that exist. Asks the catalog once for all."""

    def key_orders(
        self, target: TargetName, existing: TargetTable, columns: Sequence[str]
    ) -> tuple[frozenset[str], ...]:
        """Returns how each of these columns of the table is ordered (`tidemark.state.key_order`), as it is now."""

    def is_empty(self, target: TargetName) -> bool: ...
    def has_row(self, target: TargetName, condition: str) -> bool:
        """Returns True if the condition holds for a row."""

    def owners(self, targets: Iterable[TargetName]) -> dict[TargetName, Owner]: ...
    def server_problem(self, schemas: Sequence[str]) -> tuple[str, str] | None:
        """Returns why nothing can be written there (a standby, missing privileges) and the remedy, None if it can."""

    def require_writable(self) -> None:
        """Raises ReadOnlyError if the server accepts no writes."""

    def create_bookkeeping(self) -> None: ...
    def create_schema(self, schema: str) -> None: ...
    def claim(self, tables: Mapping[TargetName, str], job: JobIdentity) -> dict[TargetName, Owner]:
        """Records the job as the owner of each table without one. `tables`: with their source tables. Returns the owners."""

    def create_table(self, sql: str) -> None: ...
    def make_types(self, target: TargetName, columns: Sequence[Column], taken: Collection[str] = ()) -> Dialect:
        """Creates types for columns that a table is about to get, as far as it can. Returns a dialect that knows them.
        `taken`: names that tables of the job have in the table's schema. May be repeated, also after a death."""

    def add_labels(self, enum: str, labels: Sequence[str]) -> None:
        """Lets an enum, by its full name, have all of these labels, if possible in their order. Commits. Not in a transaction
        that is to use them. May be repeated. Raises SinkError."""

    def replace_key(self, target: TargetName, existing: TargetTable, clauses: Sequence[str]) -> None:
        """Removes all rows of a table and alters it, if it is still `existing`: another driver may have replaced the key and
        written rows since. May be repeated. Raises SinkBusyError if others keep the table locked for some seconds; SinkError if
        the server refuses the change: then the table keeps its rows."""

    def dependents(self, target: TargetName, columns: Sequence[str]) -> list[str]:
        """Returns what needs these columns of a table, each with its kind and name, as far as the server tells: indexes, views,
        triggers. The server would change or drop it with the columns, or let it fail from then on."""

    def mark_created(self, targets: Iterable[TargetName]) -> None: ...
    def incarnations(self, targets: Iterable[TargetName]) -> dict[TargetName, str]:
        """Returns what the job saw last of each table when it had rows, as far as it is known."""

    def note_incarnations(self, tables: Mapping[TargetName, TargetTable]) -> None:
        """Records what the tables are now, in the transaction that is open."""

    def take_over(self, job: JobIdentity) -> None:
        """Makes the job's driver the owner. Ends the writers of earlier drivers that do not end soon, where the server tells
        which they are; else waits for them. Raises JobHeldError if a later driver is the owner."""

    def hold_fence(self, job: JobIdentity) -> None:
        """Begins a transaction that keeps other drivers from taking the job over. Takes it over before, unless its driver has.
        Raises JobHeldError if a later driver is the owner."""

    def written(self, job: JobIdentity) -> Written:
        """Raises ReadOnlyError if the server accepts no writes: it may be a replica that lags behind."""

    def begin(self, job: JobIdentity, epoch: int, part: str) -> int | None:
        """Begins a transaction with the part's ledger entry. A second attempt waits here until the first one has ended.

        Returns None, or the part's row count if the ledger has the part already. Then no transaction is open.
        Raises JobHeldError if another driver has taken over.
        """

    def begin_share(self, job: JobIdentity, epoch: int) -> None:
        """Begins a transaction that writes some tables of an epoch of the log. Raises JobHeldError if another driver has taken
        over."""

    def claim_entries(self, parts: Collection[str]) -> None:
        """Makes ledger entries of tables of the epoch in work, or of buckets of them, where there are none. Waits for other
        transactions that have made some, and not ended."""

    def entries_written(self) -> dict[str, int]:
        """Returns the row counts of those entries that other transactions have completed and committed."""

    def note_entries(self, row_counts: Mapping[str, int]) -> None:
        """Completes entries of `claim_entries`."""

    def commit_share(self, after: Reached | None) -> None:
        """Commits what `begin_share` began. Raises SinkError if the epoch is not the next one."""

    def keep_whole(self, job: JobIdentity, epoch: int) -> None:
        """Records that this epoch of the log is to be written by one connection."""

    def is_whole(self, job: JobIdentity, epoch: int) -> bool:
        """True after `keep_whole`."""

    def wait_for_locks(self, seconds: int) -> None:
        """Sets how long later statements wait for locks of other sessions. Then they raise SinkBusyError."""

    @property
    def rejects(self) -> str:
        """The full name of the table of rejects, with percent signs doubled."""

    def create_rejects(self) -> None:
        """Creates the table of rejects unless it exists."""

    def execute(self, sql: str, arguments: tuple[Any, ...] = (), *, doing: str = "being asked") -> int:
        """Runs a statement with `%s` for each argument. Returns the number of affected rows."""

    def query(self, sql: str, arguments: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]: ...
    def now(self) -> str:
        """Returns the server's time in UTC, as `Column.constant` has it."""

    def rows(
        self,
        target: TargetName,
        schema: TableSchema,
        existing: TargetTable,
        removed: Sequence[Column] = (),
        *,
        repeats: bool = False,
    ) -> TableRows:
        """`schema`: of the copy. `removed`: what a deleted row gets if it is kept: the first one says that it is deleted.
        `repeats`: rows may have keys that are equal for the target; the last one of them is written."""

    def comparing(
        self, target: TargetName, schema: TableSchema, existing: TargetTable
    ) -> tuple[ComparingSql, ComparingRows]:
        """Returns what compares the table with expected rows."""

    def commit(self, row_count: int, after: Reached | None) -> None:
        """`after`: as in PartEnd. Raises SinkError if a log part is not the next one."""

    def end_transaction(self, doing: str) -> None:
        """Commits what was written without `begin`."""

    def rollback(self) -> None: ...
    def close(self) -> None: ...
