"""Checks the statements in the log: one that may change captured tables in a way that can't be followed stops the reading."""

from collections.abc import Collection

from tidemark.readers.mysql.binlog import arrays as w
from tidemark.readers.mysql.binlog.events import FLAGS, HEADER_BYTES, SESSION_FLAG, Query
from tidemark.readers.mysql.binlog.reading_state import LogState
from tidemark.readers.mysql.binlog.table_map import same_charset
from tidemark.readers.mysql.schema.types import parse_source_type
from tidemark.readers.mysql.schema.widening import same_values
from tidemark.readers.mysql.statements.classify import classify, quoted
from tidemark.readers.mysql.statements.statement import AddedColumn, DroppedColumn, ModifiedColumn, Statement
from tidemark.state.errors import IncompleteRowsError, SchemaChangedError, TableDroppedError, UnknownLogEventError
from tidemark.state.remedies import LEAVE_OUT, START_OVER
from tidemark.state.table import Column, TableId

_UNREADABLE = Statement("a statement that is not valid in its character set", unknown=True)
_WITHOUT_TRIGGERS = "mysql"
"""The servers refuse triggers on the tables of this database."""


class StatementChecks:
    def __init__(self, log: LogState) -> None:
        self.log = log
        self._isolated: dict[TableId, bool] = {}
        """The other tables that were written by statements: True if such a write certainly changes no captured table."""

    def truncated_by(self, found: Query, *, alone: bool) -> list[TableId]:
        """Returns the wanted tables that the statement truncates. Raises TidemarkError if it can't be followed."""
        log = self.log
        if log.state[w.TX_SKIP] or not log.wanted:
            return []
        meaning = classify(found.text, found.database, found.sql_mode) if found.is_readable else _UNREADABLE
        if log.options.only_drops and not meaning.drops:
            return []
        if meaning.unknown:
            self._check_unknown(found, meaning)
            return []
        writes = meaning.writes or (meaning.calls and log.source.flavour == "mariadb")
        if writes and not self._is_ignored(meaning.written) and self._may_touch(found, meaning.target):
            if meaning.writes:
                raise self.not_rows(meaning, found.updated_databases)
            raise self._by_functions(found, meaning)
        if meaning.truncated is not None and alone and not log.options.replay and not self._depends_on_session():
            return self._named(meaning.truncated)
        changed = self._wanted(meaning) or self._lacking(meaning)
        if changed:
            raise (TableDroppedError if meaning.drops else SchemaChangedError)(
                f"{log.position}: {meaning.what} on {', '.join(map(str, changed))}, which can't be followed.",
                LEAVE_OUT,
                changed[0],
            )
        cascading = [wanted for table in meaning.cascades for wanted in self._named(table)]
        if cascading and not (log.source.logs_cascades or log.options.cascades_pass):
            raise SchemaChangedError(
                f"{log.position}: {meaning.what} adds a foreign key with CASCADE or SET NULL to {cascading[0]}, and the server "
                "does not log the rows that such a key changes.",
                f"Make it RESTRICT or NO ACTION, then {START_OVER}; or leave the table out: source.exclude_tables; or continue "
                "without these changes: source.cascades: warn.",
                cascading[0],
            )
        for table in meaning.lost_index:
            for wanted in self._named(table):
                self._check_key(wanted)
        return []

    def _check_unknown(self, found: Query, meaning: Statement) -> None:
        """Raises SchemaChangedError for the first wanted table that a statement may change which is not understood. Without
        that table, the next reading raises it for the next one."""
        touched = self._wanted(meaning) if meaning.is_named else self._in_databases(found.updated_databases)
        if touched:
            text = f": {quoted(found.text, found.sql_mode)}" if found.is_readable else ""
            raise SchemaChangedError(
                f"{self.log.position}: the log has {meaning.what}, and Tidemark can't tell whether it changes "
                f"{touched[0]}{text}.",
                LEAVE_OUT,
                touched[0],
            )

    def _in_databases(self, updated: Collection[str] | None) -> list[TableId]:
        """Returns the wanted tables of the databases that the server lists as changed; all if it lists none."""
        names = {self._fold(name) for name in updated or ()}
        return sorted(table for table in self.log.wanted if not names or self._fold(table.database) in names)

    def _lacking(self, meaning: Statement) -> list[TableId]:
        """Returns the wanted tables that get a column whose value in all earlier rows the job does not know, that lose a
        column which it still copies, or that have a column of another type than the job."""
        named = [] if meaning.altered is None else self._named(meaning.altered)
        changes = bool(meaning.added or meaning.dropped or meaning.modified)
        return [table for table in named if (self.log.options.replay and changes) or not self._knows(table, meaning)]

    def _knows(self, table: TableId, meaning: Statement) -> bool:
        columns = {column.name.lower(): column for column in self.log.wanted[table].columns}
        return (
            all(_is_followed(columns.get(new.name.lower()), new) for new in meaning.added)
            and all(_is_gone(columns.get(old.name.lower()), old) for old in meaning.dropped)
            and all(self._has_this_type(table, columns.get(new.name.lower()), new) for new in meaning.modified)
            and not any(_is_default(name, column) for name in meaning.charsets for column in columns.values())
        )

    def _has_this_type(self, table: TableId, known: Column | None, new: ModifiedColumn) -> bool:
        """True if the job's column is right before and after the statement: its type is the newest of all that the column had,
        and the statement sets no other. A statement that names no character set sets the table's."""
        if known is None or not known.captured or known.name in self.log.wanted[table].key:
            return False
        if known.name != new.name or known.nullable != new.nullable:
            return False
        if known.added and not known.narrower:
            return False  # it may have been added with another type, and its constant in another form
        try:
            if not same_values(parse_source_type(known.source_type), new.kind):
                return False
        except ValueError:
            return False
        charset = new.charset
        if known.charset is not None and charset is None and known.narrower:
            charset = self.log.source.default_charset(table)
        if known.charset is None or charset is None:
            return known.charset is charset
        return same_charset(charset) == same_charset(known.charset)

    def _check_key(self, table: TableId) -> None:
        """Raises SchemaChangedError unless the job's key of a table that lost an index is its primary key. The key may not be
        unique any more, and nothing later in the log tells. A later change of the primary key stops the job by itself."""
        key = self.log.wanted[table].key
        if key and set(key) != set(self.log.source.primary_key(table)):
            raise SchemaChangedError(
                f"{self.log.position}: an index of {table} was dropped, and its key ({', '.join(key)}) is not the primary "
                "key: it may no longer be unique.",
                f"Name a key that is unique (source.keys), then {START_OVER}.",
                table,
            )

    def _depends_on_session(self) -> bool:
        """True if the statement at EVENT depends on its session. A temporary table may have the name of a captured table."""
        at = int(self.log.state[w.EVENT])
        return bool(
            int.from_bytes(self.log.arena.buf[at + FLAGS : at + HEADER_BYTES].tobytes(), "little") & SESSION_FLAG
        )

    def _wanted(self, meaning: Statement) -> list[TableId]:
        found = {wanted for table in meaning.changed for wanted in self._named(table)}
        dropped = {self._fold(name) for name in meaning.dropped_databases}
        return sorted(found | {table for table in self.log.wanted if self._fold(table.database) in dropped})

    def _named(self, table: TableId) -> list[TableId]:
        """The wanted tables that a name in a statement may refer to."""
        name = (self._fold(table.database), self._fold(table.name))
        return [wanted for wanted in self.log.wanted if (self._fold(wanted.database), self._fold(wanted.name)) == name]

    def _fold(self, name: str) -> str:
        return name.lower() if self.log.source.lower_case_names else name

    def _is_ignored(self, written: TableId | None) -> bool:
        """True for a table that the job file lets statements write. Never for a captured one."""
        if written is None or self._named(written):
            return False
        name = (self._fold(written.database), self._fold(written.name))
        return any(name == (self._fold(t.database), self._fold(t.name)) for t in self.log.options.ignored_targets)

    def _may_touch(self, found: Query, target: TableId | None) -> bool:
        """True unless the statement certainly changes no captured table. MySQL lists the databases that it changes. `target`:
        the only table that it changes, apart from triggers and foreign keys."""
        updated = {self._fold(name) for name in found.updated_databases or ()}
        if not self._in_databases(found.updated_databases):
            return False
        if target is None or self._named(target) or updated - {self._fold(target.database)}:
            return True
        return self._fold(target.database) != _WITHOUT_TRIGGERS and not self._is_isolated(target)

    def _is_isolated(self, target: TableId) -> bool:
        if target not in self._isolated:
            self._isolated[target] = self.log.source.is_isolated(target)
        return self._isolated[target]

    def _by_functions(self, found: Query, meaning: Statement) -> IncompleteRowsError:
        """The error of the first wanted table for a statement that changes rows by stored functions, if at all. Without that
        table, the next reading raises it for the next one."""
        table = self._in_databases(found.updated_databases)[0]
        remedy = "To prevent it: let the session use binlog_format=ROW."
        if meaning.written is not None and not self._named(meaning.written):
            remedy = (
                f"If no function in it writes captured tables: log.ignore_statements_on: [{meaning.written}]. {remedy}"
            )
        return IncompleteRowsError(
            f"{self.log.position}: the log has {meaning.what} as a statement, and functions in it may change {table}.",
            remedy,
            table,
        )

    def not_rows(self, meaning: Statement, updated: Collection[str] | None = None) -> UnknownLogEventError:
        """The error for a write that was logged as a statement: that of the first wanted table that it may change. Without that
        table, the next reading raises it for the next one; for the table that the statement names, last.
        `updated`: the databases that MySQL lists for the statement.

        A write of a table that the job does not copy stops the job: the job file may vouch for it (log.ignore_statements_on).
        """
        written, at = meaning.written, f"{self.log.position}: the log has {meaning.what} as a statement, not as rows"
        remedy = f"SET GLOBAL binlog_format=ROW on the source, let applications reconnect, then {START_OVER}."
        if written is not None and not self._named(written):
            return _may_change_others(f"{at}, and it may change captured tables.", meaning, written, remedy)
        named = [] if meaning.target is None else self._named(meaning.target)
        if meaning.target is not None and len(named) == 1 and self._is_isolated(meaning.target):
            return IncompleteRowsError(f"{at}. It writes {named[0]}, and no other table.", remedy, named[0])
        touched, own = self._in_databases(updated), [] if written is None else self._named(written)
        table = next((table for table in touched if table not in own), touched[0])
        return IncompleteRowsError(f"{at}, and it may change {table}.", remedy, table)


def _is_gone(known: Column | None, old: DroppedColumn) -> bool:
    """True if the job does without the column."""
    return old.if_present if known is None else known.dropped


def _is_followed(known: Column | None, new: AddedColumn) -> bool:
    """True if the job's column is right in all rows after the statement. A column that the table had before is not changed by
    IF NOT EXISTS. A name that comes back after a column was dropped is another column's."""
    if known is not None and known.dropped:
        return False
    if known is None or not known.added:
        return known is not None and new.if_absent
    if not known.captured:
        return True
    return new.is_null if known.constant is None else known.constant == new.constant(known)


def _is_default(charset: str, known: Column) -> bool:
    """True if a statement that makes a character set or collation the table's default may be the reason why a column of a wider
    type has that one now. MODIFY without a character set had set another one, then, and values may be lost."""
    if not known.narrower or known.charset is None:
        return False
    return charset == "default" or charset.startswith(known.charset.removesuffix("mb3"))


def _may_change_others(message: str, meaning: Statement, written: TableId, remedy: str) -> UnknownLogEventError:
    """The error for a write of a table that the job does not copy."""
    remedy = (
        "If no trigger, foreign key or function lets it change captured tables: log.ignore_statements_on: "
        f"[{written}]. Else: {remedy}"
    )
    if meaning.target is not None:
        remedy = (
            f"GRANT TRIGGER ON {meaning.target} TO <account> and start the job again: it continues if the table has no "
            f"triggers and no foreign keys refer to it. {remedy}"
        )
    return UnknownLogEventError(message, remedy)
