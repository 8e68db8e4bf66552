"""The effects of a logged statement on tables."""

from dataclasses import dataclass

from tidemark.readers.mysql.schema.constants import Literal, implicit_constant, literal_constant
from tidemark.readers.mysql.schema.types import SourceType
from tidemark.state.table import Column, TableId


@dataclass(frozen=True, slots=True)
class AddedColumn:
    """A column of ADD COLUMN. `is_null`: it is NULL in all rows that the table had, unless the server makes it NOT NULL by
    itself (TIMESTAMP). `if_absent`: IF NOT EXISTS (MariaDB). `default`: the literal that it is in these rows. `is_implicit`: it
    is NOT NULL without a default, so its type decides what it is in them."""

    name: str
    is_null: bool
    if_absent: bool = False
    default: Literal | None = None
    is_implicit: bool = False

    def constant(self, column: Column) -> str | None:
        """Returns `Column.constant` of the job's column of that name. None if that is not certain."""
        if self.default is not None:
            return literal_constant(column, self.default)
        return implicit_constant(column) if self.is_implicit else None


@dataclass(frozen=True, slots=True)
class DroppedColumn:
    """A column of DROP COLUMN. `if_present`: IF EXISTS (MariaDB)."""

    name: str
    if_present: bool = False


@dataclass(frozen=True, slots=True)
class ModifiedColumn:
    """A column of MODIFY, or of CHANGE that keeps its name. `kind`: its type. `charset`: its character set; None if the
    statement names none."""

    name: str
    kind: SourceType
    nullable: bool
    charset: str | None


@dataclass(frozen=True, slots=True)
class Statement:
    """`what` describes the statement without values, for messages: `ALTER TABLE … DROP COLUMN`.

    `changed`: tables whose columns, keys, names or rows change. `truncated`: the one of them that only lost all its rows.
    `lost_index`: tables that may have lost a unique key. `dropped_databases`: all their tables are changed. `writes`: the
    statement changes rows, possibly of tables that it does not name (triggers, functions). `target`: the only table whose
    rows it changes, apart from triggers and foreign keys; None if this is unknown. `written`: the only table that it names to
    be written, also if stored functions that it calls may write others. `calls`: it can only change rows by stored functions
    that it calls while it creates a table, which MySQL refuses. `cascades`: tables that get a foreign key
    with CASCADE, SET NULL or SET DEFAULT. `unknown`: the effect is unknown. `is_named`: then it can only change tables of
    `changed` and `dropped_databases`; otherwise any. `altered`: the table that gets the columns `added`, loses `dropped`, and
    whose columns `modified` are of these types after it. `charsets`: the character sets, or collations, that the statement
    makes the default of `altered`'s new columns. `drops`: the tables of `changed` are dropped, though the statement may create
    one of them again.
    """

    what: str
    changed: frozenset[TableId] = frozenset()
    lost_index: frozenset[TableId] = frozenset()
    dropped_databases: frozenset[str] = frozenset()
    writes: bool = False
    calls: bool = False
    target: TableId | None = None
    written: TableId | None = None
    unknown: bool = False
    is_named: bool = False
    truncated: TableId | None = None
    cascades: frozenset[TableId] = frozenset()
    altered: TableId | None = None
    added: tuple[AddedColumn, ...] = ()
    dropped: tuple[DroppedColumn, ...] = ()
    modified: tuple[ModifiedColumn, ...] = ()
    charsets: tuple[str, ...] = ()
    drops: bool = False
