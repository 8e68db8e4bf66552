"""Classifies a logged statement: no effect on tables, a change of columns or rows without row events, or unknown.

Row changes come as row events. Statements in the log are DDL, administration, transaction control, and the writes of
sessions with binlog_format=STATEMENT. Only statements on an allow-list are ignored; anything else counts as a change.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from tidemark.readers.mysql.binlog.sql_tokens import NotSqlError, Token, TokenKind, tokens
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
    be written, also if stored functions that it calls may write others. `cascades`: tables that get a foreign key
    with CASCADE, SET NULL or SET DEFAULT. `unknown`: the effect is unknown. `altered`: the table that gets the columns
    `added`, loses `dropped`, and whose columns `modified` are of these types after it. `charsets`: the character sets, or
    collations, that the statement makes the default of `altered`'s new columns.
    """

    what: str
    changed: frozenset[TableId] = frozenset()
    lost_index: frozenset[TableId] = frozenset()
    dropped_databases: frozenset[str] = frozenset()
    writes: bool = False
    target: TableId | None = None
    written: TableId | None = None
    unknown: bool = False
    truncated: TableId | None = None
    cascades: frozenset[TableId] = frozenset()
    altered: TableId | None = None
    added: tuple[AddedColumn, ...] = ()
    dropped: tuple[DroppedColumn, ...] = ()
    modified: tuple[ModifiedColumn, ...] = ()
    charsets: tuple[str, ...] = ()


def classify(statement: str, database: str, sql_mode: int = 0) -> Statement:
    """`database`: the session's default database, "" for none."""
    try:
        parser = _Parser(tokens(statement, sql_mode), database)
        return parser.statement()
    except NotSqlError as exc:
        return Statement(f"a statement in which {exc}", unknown=True)


_HARMLESS = frozenset(
    {
        "ANALYZE", "BINLOG", "CACHE", "CHANGE", "CHECK", "CHECKSUM", "CLONE", "DEALLOCATE", "FLUSH", "GRANT", "HELP",
        "INSTALL", "KILL", "LOCK", "OPTIMIZE", "PREPARE", "PURGE", "RELEASE", "REPAIR", "RESET", "RESTART", "REVOKE",
        "SAVEPOINT", "SHOW", "SHUTDOWN", "START", "STOP", "UNINSTALL", "UNLOCK", "USE",
    }
)  # fmt: skip
_WRITES = frozenset(
    {
        "CALL", "DELETE", "DO", "EXECUTE", "HANDLER", "IMPORT", "INSERT", "LOAD", "REPLACE", "SELECT", "TABLE", "UPDATE",
        "VALUES", "WITH",
    }
)  # fmt: skip
_MAX_WRITE_TOKENS = 1000
"""A longer statement that writes rows has no known target."""
_FUNCTIONS = frozenset(
    {
        "AND", "COALESCE", "CONCAT", "CONNECTION_ID", "CURRENT_TIMESTAMP", "GREATEST", "HEX", "IF", "IFNULL", "IN", "KEY",
        "LEAST", "NOT", "NOW", "OR", "ROW", "UNHEX", "UNIX_TIMESTAMP", "UTC_TIMESTAMP", "UUID", "VALUE", "VALUES", "WHERE",
    }
)  # fmt: skip
"""Words before a parenthesis that do not call a stored function, unless a database is named before them."""
_READS = frozenset({"CALL", "SELECT", "TABLE", "WITH"})
"""Words that begin a query, which may read a view that calls stored functions."""
_OTHER_OBJECTS = frozenset(
    {
        "AGGREGATE", "COLLATION", "DATABASE", "DEFINER", "EVENT", "FUNCTION", "LIBRARY", "LOGFILE", "MASKING", "PACKAGE",
        "PROCEDURE", "RESOURCE", "ROLE", "SCHEMA", "SEQUENCE", "SERVER", "SPATIAL", "SQL", "TABLESPACE", "TRIGGER",
        "UNDO", "USER", "VIEW", "ALGORITHM", "INSTANCE", "PUBLIC",
    }
)  # fmt: skip
"""After CREATE, ALTER or DROP: objects without rows. SPATIAL: a reference system, or an index, see below."""


@dataclass(slots=True)
class _Parser:
    source: Iterator[Token]
    database: str
    rest: list[Token] = field(init=False)
    at: int = 0
    is_whole: bool = True

    def __post_init__(self) -> None:
        self.rest = list(islice(self.source, 1))
        if self.rest and self.rest[0].is_word(*_WRITES):
            self._take_write()
        else:
            self.rest += self.source

    def _take_write(self) -> None:
        """Takes the tokens of a statement that writes rows. It can have any size, and its first word is enough to refuse it."""
        try:
            self.rest += islice(self.source, _MAX_WRITE_TOKENS)
            self.is_whole = next(self.source, None) is None
        except NotSqlError:
            self.is_whole = False

    # Tokens

    def peek(self, ahead: int = 0) -> Token:
        index = self.at + ahead
        return self.rest[index] if index < len(self.rest) else _END

    def word(self, *words: str) -> bool:
        """Takes the next token if it is one of these keywords."""
        if self.peek().is_word(*words):
            self.at += 1
            return True
        return False

    def words(self, *sequence: str) -> bool:
        """Takes these keywords if they all come next."""
        if all(self.peek(i).is_word(word) for i, word in enumerate(sequence)):
            self.at += len(sequence)
            return True
        return False

    def symbol(self, symbol: str) -> bool:
        if self.peek().is_symbol(symbol):
            self.at += 1
            return True
        return False

    def table(self) -> TableId:
        """Takes a table's name, possibly with its database. Raises NotSqlError if there is none."""
        self.symbol(".")
        first = self._name()
        return TableId(first, self._name()) if self.symbol(".") else TableId(self.database, first)

    def tables(self) -> list[TableId]:
        found = [self.table()]
        while self.symbol(","):
            found.append(self.table())
        return found

    def _name(self) -> str:
        token = self.peek()
        if not token.is_name:
            raise NotSqlError("a name is missing")
        if _SURROGATE.search(token.text):
            raise NotSqlError("a name is not valid in the statement's character set")
        self.at += 1
        return token.text

    # Statements

    def statement(self) -> Statement:
        first = self.peek()
        if first is _END:
            return Statement("an empty statement")
        if first.kind is TokenKind.SYMBOL and first.text == "(":
            return Statement("a query", writes=True)
        keyword = first.text.upper() if first.kind is TokenKind.WORD else ""
        self.at += 1
        if keyword in _WRITES:
            written = self._written(keyword)
            is_known = written is not None and self.is_whole and not self._may_call_functions()
            return Statement(keyword, writes=True, target=written if is_known else None, written=written)
        match keyword:
            case "CREATE":
                return self._create()
            case "ALTER":
                return self._alter()
            case "DROP":
                return self._drop()
            case "RENAME":
                return self._rename()
            case "TRUNCATE":
                self.word("TABLE")
                table = self.table()
                return Statement("TRUNCATE TABLE", frozenset([table]), truncated=table)
            case "SET":
                return self._set()
            case _ if keyword in _HARMLESS:
                return Statement(keyword)
        return Statement("an unknown statement", unknown=True)

    def _written(self, keyword: str) -> TableId | None:
        """The only table that INSERT, REPLACE, UPDATE or DELETE names to be written. None if it names several."""
        if keyword not in {"INSERT", "REPLACE", "UPDATE", "DELETE"}:
            return None
        while self.word("LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "QUICK", "IGNORE"):
            pass
        if keyword in {"INSERT", "REPLACE"}:
            self.word("INTO")
        elif keyword == "DELETE" and not self.word("FROM"):
            return None
        try:
            table = self.table()
        except NotSqlError:
            return None
        if keyword == "UPDATE" and not self.peek().is_word("SET"):
            return None
        if keyword == "DELETE" and not (self.peek() is _END or self.peek().is_word("WHERE", "ORDER", "LIMIT")):
            return None
        return table

    def _may_call_functions(self) -> bool:
        """True if the rest of the statement may call a stored function, which can change any table. A parenthesis directly
        after the table's name begins its column list."""
        for i in range(self.at, len(self.rest)):
            if self.rest[i].is_word(*_READS):
                return True
            before = self.rest[i - 1]
            if i == self.at or not self.rest[i].is_symbol("(") or not before.is_name:
                continue
            if not before.is_word(*_FUNCTIONS) or self.rest[i - 2].is_symbol("."):
                return True
        return False

    def _set(self) -> Statement:
        if not self.word("STATEMENT"):
            return Statement("SET")
        while self.peek() is not _END:
            if self.word("FOR"):
                return self.statement()
            self.at += 1
        return Statement("SET STATEMENT", unknown=True)

    def _create(self) -> Statement:
        replaces = self.words("OR", "REPLACE")
        self.word("TEMPORARY", "ONLINE", "OFFLINE")
        if self.peek(-1).is_word("TEMPORARY"):
            return Statement("CREATE TEMPORARY TABLE")
        if self.word("TABLE"):
            self.words("IF", "NOT", "EXISTS")
            table = self.table()
            if replaces:
                return Statement("CREATE OR REPLACE TABLE", frozenset([table]))
            if self._selects():
                return Statement("CREATE TABLE … SELECT", writes=True, written=table)
            return Statement("CREATE TABLE")
        if self._is_index():
            return self._replace_index() if replaces else Statement("CREATE INDEX")
        return self._other("CREATE")

    def _replace_index(self) -> Statement:
        """MariaDB's CREATE OR REPLACE INDEX drops an index of the same name."""
        self._name()
        if self.word("USING"):
            self.at += 1
        if not self.word("ON"):
            return Statement("CREATE OR REPLACE INDEX", unknown=True)
        return Statement("CREATE OR REPLACE INDEX", lost_index=frozenset([self.table()]))

    def _selects(self) -> bool:
        """True for CREATE TABLE … [AS] SELECT, TABLE, VALUES or WITH, logged as one statement: its rows are not row events."""
        depth = 0
        while (token := self.peek()) is not _END:
            self.at += 1
            depth += token.is_symbol("(") - token.is_symbol(")")
            inside = self.peek(-2).is_symbol("(")
            if token.is_word("SELECT", "VALUES", "TABLE", "WITH") and (depth == 0 or inside) and not self._is_option():
                return True
        return False

    def _is_option(self) -> bool:
        """True if the word belongs to a table's definition: WITH SYSTEM VERSIONING, PARTITION … VALUES LESS THAN."""
        before, after = self.peek(-2), self.peek()
        if self.peek(-1).is_word("VALUES"):
            return after.is_word("LESS", "IN")
        if self.peek(-1).is_word("WITH"):
            return after.is_word("SYSTEM", "PARSER", "VALIDATION") or before.is_word("WITHOUT")
        return False

    def _drop(self) -> Statement:
        if self.word("TEMPORARY"):
            return Statement("DROP TEMPORARY TABLE")
        if self.word("TABLE", "TABLES"):
            self.words("IF", "EXISTS")
            return Statement("DROP TABLE", frozenset(self.tables()))
        if self.word("DATABASE", "SCHEMA"):
            self.words("IF", "EXISTS")
            return Statement("DROP DATABASE", dropped_databases=frozenset([self._name()]))
        if self._is_index():
            return self._drop_index()
        return self._other("DROP")

    def _drop_index(self) -> Statement:
        self.words("IF", "EXISTS")
        index = self._name()
        if not self.word("ON"):
            return Statement("DROP INDEX", unknown=True)
        table = frozenset([self.table()])
        if index.upper() == "PRIMARY":
            return Statement("DROP INDEX PRIMARY", changed=table)
        return Statement("DROP INDEX", lost_index=table)

    def _is_index(self) -> bool:
        """Takes [ONLINE|OFFLINE] [UNIQUE|FULLTEXT|SPATIAL|VECTOR] INDEX."""
        start = self.at
        self.word("ONLINE", "OFFLINE")
        self.word("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR")
        if self.word("INDEX"):
            return True
        self.at = start
        return False

    def _other(self, verb: str) -> Statement:
        kind = self.peek()
        if kind.is_word(*_OTHER_OBJECTS):
            return Statement(f"{verb} {kind.text.upper()}")
        return Statement(f"{verb} of an unknown object", unknown=True)

    def _rename(self) -> Statement:
        if self.word("USER"):
            return Statement("RENAME USER")
        if not self.word("TABLE", "TABLES"):
            return Statement("RENAME of an unknown object", unknown=True)
        self.words("IF", "EXISTS")
        names = []
        while True:
            names.append(self.table())
            if self.word("WAIT"):
                self.at += 1
            self.word("NOWAIT")
            if not self.word("TO"):
                return Statement("RENAME TABLE", frozenset(names), unknown=True)
            names.append(self.table())
            if not self.symbol(","):
                return Statement("RENAME TABLE", frozenset(names))

    def _alter(self) -> Statement:
        self.word("ONLINE", "OFFLINE")
        ignores = self.word("IGNORE")
        if not self.word("TABLE"):
            return self._other("ALTER")
        self.words("IF", "EXISTS")
        table = self.table()
        if ignores:  # MariaDB deletes the rows that do not fit, without logging them
            return Statement("ALTER IGNORE TABLE", frozenset([table]))
        if self.word("WAIT"):
            self.at += 1
        self.word("NOWAIT")
        return _AlterTable(self, table).statement()


_END = Token(TokenKind.SYMBOL, "")
_SURROGATE = re.compile("[\ud800-\udfff]")
_QUOTING = re.compile(r"""['"\\]""")


_TABLE_OPTIONS = frozenset(
    {
        "ALGORITHM", "AUTOEXTEND_SIZE", "AUTO_INCREMENT", "AVG_ROW_LENGTH", "CHARSET", "CHECKSUM", "COLLATE", "COMMENT",
        "COMPRESSION", "DELAY_KEY_WRITE", "ENCRYPTED", "ENCRYPTION", "ENCRYPTION_KEY_ID", "ENGINE_ATTRIBUTE",
        "IETF_QUOTES", "INSERT_METHOD", "KEY_BLOCK_SIZE", "LOCK", "MAX_ROWS", "MIN_ROWS", "PACK_KEYS", "PAGE_CHECKSUM",
        "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL", "ROW_FORMAT", "SECONDARY_ENGINE", "SECONDARY_ENGINE_ATTRIBUTE",
        "STATS_AUTO_RECALC", "STATS_PERSISTENT", "STATS_SAMPLE_PAGES",
        "TABLESPACE", "TABLE_CHECKSUM", "TRANSACTIONAL",
    }
)  # fmt: skip
"""Options of ALTER TABLE that do not change columns, keys or rows."""
_NO_COLUMN = frozenset(
    {
        "CHECK", "CONSTRAINT", "FOREIGN", "FULLTEXT", "INDEX", "KEY", "PARTITION", "PERIOD", "PRIMARY", "SPATIAL", "SYSTEM",
        "UNIQUE", "VECTOR",
    }
)  # fmt: skip
"""Words after ADD or DROP that may begin something else than a column."""
_MADE = frozenset({"AS", "AUTO_INCREMENT", "GENERATED", "KEY", "ON", "PRIMARY", "SERIAL", "WITH", "WITHOUT"})
"""Words in a column's definition with which it may have any values in the rows that the table has."""
_AFTER_DEFAULT = frozenset({"AFTER", "COMMENT", "FIRST", "INVISIBLE", "NOT", "NULL", "VISIBLE"})
"""Words that may follow a literal default and are no part of an expression."""
_TYPE_NAMES = {
    **{name: name for name in (
        "bigint", "blob", "char", "datetime", "decimal", "enum", "int", "longblob", "longtext", "mediumblob", "mediumint",
        "mediumtext", "set", "smallint", "text", "tinyblob", "tinyint", "tinytext", "varbinary", "varchar",
    )},
    "dec": "decimal",
    "integer": "int",
    "numeric": "decimal",
}  # fmt: skip
"""The types that MODIFY is understood with, and their names in the catalog."""
_SWITCHES = frozenset({"FORCE", "SECONDARY_LOAD", "SECONDARY_UNLOAD"})
"""Options without a value."""
_PARTITION_VERBS = frozenset({"ANALYZE", "CHECK", "COALESCE", "OPTIMIZE", "REBUILD", "REORGANIZE", "REPAIR"})


@dataclass(slots=True)
class _AlterTable:
    """The actions of one ALTER TABLE, separated by commas outside of parentheses."""

    parser: _Parser
    table: TableId
    changed: set[TableId] = field(default_factory=set)
    added: list[AddedColumn] = field(default_factory=list)
    dropped: list[DroppedColumn] = field(default_factory=list)
    modified: list[ModifiedColumn] = field(default_factory=list)
    charsets: list[str] = field(default_factory=list)
    with_default: set[str] = field(default_factory=set)
    lost_index: bool = False
    cascades: bool = False
    reason: str = ""

    def statement(self) -> Statement:
        while self.parser.peek() is not _END:
            if not self._part():
                self.changed.add(self.table)
                self.reason = self.reason or " of its columns, keys or rows"
            self._skip_part()
        added = {column.name.lower() for column in self.added}
        others = [column.name.lower() for column in self.dropped] + [column.name.lower() for column in self.modified]
        if added & (self.with_default | set(others)) or len(others) > len(set(others)):
            self.changed.add(self.table)
        columns = " ADD COLUMN" if self.added else " DROP COLUMN" if self.dropped else ""
        columns = columns or (" MODIFY COLUMN" if self.modified else "")
        what = f"ALTER TABLE{self.reason or columns}"
        lost = frozenset([self.table]) if self.lost_index else frozenset()
        cascades = frozenset([self.table]) if self.cascades else frozenset()
        return Statement(
            what,
            frozenset(self.changed),
            lost,
            cascades=cascades,
            altered=self.table if self.added or self.dropped or self.modified or self.charsets else None,
            added=tuple(self.added),
            dropped=tuple(self.dropped),
            modified=tuple(self.modified),
            charsets=tuple(self.charsets),
        )

    def _skip_part(self) -> None:
        p, depth = self.parser, 0
        while (token := p.peek()) is not _END:
            if depth == 0 and p.word("ON") and p.word("DELETE", "UPDATE"):
                self.cascades = self.cascades or p.word("CASCADE") or (p.word("SET") and p.word("NULL", "DEFAULT"))
                continue
            p.at += 1
            depth += token.is_symbol("(") - token.is_symbol(")")
            if token.is_symbol(",") and depth == 0:
                return

    def _part(self) -> bool:
        """True if the action is known not to change the table's columns, keys and rows, or only adds, drops or modifies
        columns."""
        p = self.parser
        if p.word("ADD"):
            start = p.at
            if self._add():
                return True
            p.at = start
            return self._add_columns()
        if p.word("DROP"):
            return self._drop()
        if p.word("ALTER"):
            return self._alter_part()
        if p.word("MODIFY"):
            return self._modify(renames=False)
        if p.word("CHANGE"):
            return self._modify(renames=True)
        if p.word("RENAME"):
            return self._rename()
        if p.word("EXCHANGE"):
            return self._exchange()
        if p.word("CONVERT"):
            return self._convert()
        if p.word("DISCARD", "IMPORT", "TRUNCATE"):
            self.reason = f" {p.peek(-1).text.upper()}"
            return False
        if p.word(*_PARTITION_VERBS):
            # A list of names follows, also separated by commas. No other action can follow.
            return p.peek().is_word("PARTITION") and self._take_all()
        if p.word("ORDER"):
            return self._take_all()
        return self._options()

    def _options(self) -> bool:
        """Takes table options, which follow each other without commas, and partitioning after the last one."""
        p = self.parser
        while (token := p.peek()) is not _END and not token.is_symbol(","):
            if p.words("PARTITION", "BY") or p.words("REMOVE", "PARTITIONING"):
                return self._take_all()
            if p.word("ENGINE", "TYPE"):
                p.symbol("=")
                if not p.word("INNODB"):
                    return False
            elif not (self._option() or self._switch()):
                return False
        return True

    def _option(self) -> bool:
        """Takes a table option and its value."""
        p = self.parser
        is_charset = (
            p.words("DEFAULT", "CHARACTER", "SET") or p.words("CHARACTER", "SET") or p.word("CHARSET", "COLLATE")
        )
        known = is_charset or p.words("DATA", "DIRECTORY") or p.words("INDEX", "DIRECTORY") or p.word(*_TABLE_OPTIONS)
        if known:
            self._value()
        if is_charset:
            self.charsets.append(p.peek(-1).text.lower())
        return known

    def _switch(self) -> bool:
        """Takes an option without a value."""
        p = self.parser
        return (
            p.word("DEFAULT", *_SWITCHES)
            or p.words("WITH", "VALIDATION")
            or p.words("WITHOUT", "VALIDATION")
            or p.words("ENABLE", "KEYS")
            or p.words("DISABLE", "KEYS")
        )

    def _value(self) -> None:
        """Takes [=] and one token."""
        self.parser.symbol("=")
        self.parser.at += 1

    def _take_all(self) -> bool:
        self.parser.at = len(self.parser.rest)
        return True

    def _add(self) -> bool:
        p = self.parser
        if p.word("CONSTRAINT") and not p.peek().is_word("PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
            p.words("IF", "NOT", "EXISTS")
            p.at += 1
        if p.peek(-1).is_word("ADD") and p.word("PARTITION"):
            return True
        if p.word("VECTOR"):  # not reserved: it may be the name of a new column
            return p.word("INDEX", "KEY")
        return p.word("INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK")

    def _add_columns(self) -> bool:
        """Takes [COLUMN] [IF NOT EXISTS] name definition, or such definitions in parentheses. False if it is anything else."""
        p = self.parser
        p.word("COLUMN")
        if_absent = p.words("IF", "NOT", "EXISTS")
        if not p.symbol("("):
            return self._column(if_absent=if_absent)
        while self._column(if_absent=if_absent):
            if p.symbol(")"):
                return True
            if not p.symbol(","):
                return False
        return False

    def _column(self, *, if_absent: bool) -> bool:
        """Takes a column's name and definition, up to the comma or parenthesis after it."""
        p = self.parser
        name, depth, defaults = p.peek(), 0, list[Literal | None]()
        is_not_null = is_made = False
        if not name.is_name or name.is_word(*_NO_COLUMN):
            return False
        p.at += 1
        while (token := p.peek()) is not _END and (depth or not (token.is_symbol(",") or token.is_symbol(")"))):
            p.at += 1
            depth += token.is_symbol("(") - token.is_symbol(")")
            if token.is_word("REFERENCES"):
                return False
            is_not_null = is_not_null or token.is_word("NOT")
            is_other_not = token.is_word("NOT") and (depth > 0 or not p.peek().is_word("NULL"))
            is_made = is_made or is_other_not or token.is_word(*_MADE)
            if token.is_word("DEFAULT") and not p.peek().is_word("NULL"):
                defaults.append(self._literal())
        is_null = not (is_not_null or is_made or defaults)
        default = defaults[0] if len(defaults) == 1 and not is_made else None
        is_implicit = is_not_null and not (is_made or defaults)
        self.added.append(AddedColumn(name.text, is_null, if_absent, default, is_implicit))
        return True

    def _modify(self, *, renames: bool) -> bool:
        """Takes [COLUMN] [IF EXISTS] name [new name] definition. False unless the name stays, and type and options are such
        that it is known what becomes of the values."""
        p = self.parser
        p.word("COLUMN")
        p.words("IF", "EXISTS")
        name = p.peek()
        p.at += 1
        if not name.is_name or (renames and not (p.peek().is_name and p.peek().text == name.text)):
            return False
        p.at += renames
        kind = self._type()
        if kind is None:
            return False
        nullable, charset = True, None
        while p.peek() is not _END and not p.peek().is_symbol(","):
            if p.words("NOT", "NULL"):
                nullable = False
            elif p.words("CHARACTER", "SET") or p.word("CHARSET", "COLLATE"):
                is_collation = p.peek(-1).is_word("COLLATE")
                found = p.peek().text.lower().partition("_")[0] if is_collation else p.peek().text.lower()
                if not p.peek().is_name or charset not in {None, found}:
                    return False
                charset = found
                p.at += 1
            elif p.word("COMMENT"):
                p.at += 1
            elif p.word("DEFAULT"):
                if not self._default():
                    return False
            elif not p.word("NULL", "VISIBLE", "INVISIBLE"):
                return False
        self.modified.append(ModifiedColumn(name.text, kind, nullable, charset))
        return True

    def _type(self) -> SourceType | None:
        """Takes a type. None for one whose values are not known to stay as they are."""
        p = self.parser
        word = p.peek()
        base = _TYPE_NAMES.get(word.text.lower()) if word.kind is TokenKind.WORD else None
        p.at += 1
        if base is None:
            return None
        arguments = self._arguments()
        texts = [token.text for token in arguments if token.kind is TokenKind.TEXT and not _QUOTING.search(token.text)]
        numbers = [int(token.text) for token in arguments if token.kind is TokenKind.WORD and token.text.isdecimal()]
        wanted, others = (texts, numbers) if base in {"enum", "set"} else (numbers, texts)
        if others or len(wanted) != len(arguments) or (base.endswith(("text", "blob")) and wanted):
            return None
        attributes = frozenset({"unsigned"}) if p.word("UNSIGNED") else frozenset()
        if texts:
            return SourceType(base, labels=tuple(texts), attributes=attributes)
        return SourceType(base, tuple(numbers), attributes=attributes)

    def _arguments(self) -> list[Token]:
        """Takes what is in parentheses, without the commas."""
        p, found = self.parser, list[Token]()
        if p.symbol("("):
            while p.peek() is not _END and not p.symbol(")"):
                found.append(p.peek())
                p.at += 1
                p.symbol(",")
        return found

    def _default(self) -> bool:
        """Takes NULL or a literal."""
        p = self.parser
        if p.word("NULL"):
            return True
        if self._literal() is None:
            return False
        p.at += 1 + (p.peek().is_symbol("-") or p.peek().is_symbol("+"))
        p.at += 2 * p.peek().is_symbol(".")
        return True

    def _literal(self) -> Literal | None:
        """Returns the literal that comes next and is the whole default, without taking it. None if anything else comes."""
        p, at = self.parser, 0
        sign = p.peek().text if p.peek().is_symbol("-") or p.peek().is_symbol("+") else ""
        at += len(sign)
        token = p.peek(at)
        at += 1
        if token.kind is TokenKind.TEXT and not sign:
            literal = None if _QUOTING.search(token.text) else Literal(token.text, is_text=True)
        elif token.is_word("TRUE", "FALSE") and not sign:
            literal = Literal("1" if token.is_word("TRUE") else "0", is_text=False)
        elif token.kind is TokenKind.WORD and token.text.isdecimal():
            literal = Literal(sign + token.text, is_text=False)
            if p.peek(at).is_symbol("."):
                fraction = p.peek(at + 1)
                literal = Literal(f"{sign}{token.text}.{fraction.text}", is_text=False)
                at += 2
                if fraction.kind is not TokenKind.WORD or not fraction.text.isdecimal():
                    return None
        else:
            return None
        after = p.peek(at)
        ends = after is _END or after.is_symbol(",") or after.is_symbol(")") or after.is_word(*_AFTER_DEFAULT)
        return literal if ends else None

    def _drop(self) -> bool:
        p = self.parser
        if p.words("FOREIGN", "KEY") or p.word("CHECK"):
            return True
        if p.word("INDEX", "KEY", "CONSTRAINT"):
            p.words("IF", "EXISTS")
            self.lost_index = True
            return p.peek().text.upper() != "PRIMARY"
        if p.peek().is_word("PARTITION"):
            self.reason = " DROP PARTITION"
        is_column = p.word("COLUMN")
        if_present = p.words("IF", "EXISTS")
        name = p.peek()
        if not name.is_name or (not is_column and name.is_word(*_NO_COLUMN)):
            return False
        p.at += 1
        p.word("RESTRICT", "CASCADE")
        self.dropped.append(DroppedColumn(name.text, if_present))
        return p.peek() is _END or p.peek().is_symbol(",")

    def _alter_part(self) -> bool:
        p = self.parser
        if p.word("INDEX", "KEY", "CHECK", "CONSTRAINT"):
            return True
        p.word("COLUMN")
        p.words("IF", "EXISTS")
        self.with_default.add(p.peek().text.lower())
        p.at += 1
        return p.words("DROP", "DEFAULT") or (p.word("SET") and p.word("DEFAULT", "VISIBLE", "INVISIBLE"))

    def _rename(self) -> bool:
        p = self.parser
        if p.peek().is_word("INDEX", "KEY") and p.peek(2).is_word("TO"):
            return True
        if p.peek().is_word("COLUMN") and p.peek(2).is_word("TO"):
            return False
        p.word("TO", "AS") or p.symbol("=")
        self.changed.add(p.table())
        self.reason = " RENAME"
        return False

    def _exchange(self) -> bool:
        """EXCHANGE PARTITION swaps rows with another table."""
        p = self.parser
        self.reason = " EXCHANGE PARTITION"
        while (token := p.peek()) is not _END and not token.is_symbol(","):
            if p.words("WITH", "TABLE"):
                self.changed.add(p.table())
                break
            p.at += 1
        return False

    def _convert(self) -> bool:
        """CONVERT TO CHARACTER SET; MariaDB: CONVERT PARTITION p TO TABLE t, CONVERT TABLE t TO PARTITION p."""
        p = self.parser
        self.reason = " CONVERT"
        if p.word("TABLE"):
            self.changed.add(p.table())
        elif p.word("PARTITION"):
            p.at += 1
            if p.words("TO", "TABLE"):
                self.changed.add(p.table())
        return False
