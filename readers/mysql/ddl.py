"""What a logged statement means for tables: nothing, another form or other rows without row events, or we can't tell.

Row changes stand in row events; statements in the log are DDL, administration, transaction control, and what sessions
with binlog_format=STATEMENT write. Only statements on an allow-list pass; whatever is not known here counts as a change.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from readers.mysql.sql_tokens import NotSqlError, Token, TokenKind, tokens
from state.table import TableId


@dataclass(frozen=True, slots=True)
class Statement:
    """`what` names it without values: `ALTER TABLE … DROP COLUMN`. Safe for messages.

    `changed`: tables that get other columns, keys, names or rows. `truncated`: the one of them that only lost all its rows.
    `lost_index`: tables that may have lost a unique key. `dropped_databases`: all their tables are changed. `writes`: it
    changes rows, perhaps of tables that it does not name (triggers, functions). `unknown`: we don't know what it does.
    """

    what: str
    changed: frozenset[TableId] = frozenset()
    lost_index: frozenset[TableId] = frozenset()
    dropped_databases: frozenset[str] = frozenset()
    writes: bool = False
    written: TableId | None = None
    unknown: bool = False
    truncated: TableId | None = None


def classify(statement: str, database: str, sql_mode: int = 0) -> Statement:
    """`database` is the session's default one, "" for none."""
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
_OTHER_OBJECTS = frozenset(
    {
        "AGGREGATE", "COLLATION", "DATABASE", "DEFINER", "EVENT", "FUNCTION", "LIBRARY", "LOGFILE", "MASKING", "PACKAGE",
        "PROCEDURE", "RESOURCE", "ROLE", "SCHEMA", "SEQUENCE", "SERVER", "SPATIAL", "SQL", "TABLESPACE", "TRIGGER",
        "UNDO", "USER", "VIEW", "ALGORITHM", "INSTANCE", "PUBLIC",
    }
)  # fmt: skip
"""After CREATE, ALTER or DROP: no tables with rows. SPATIAL: a reference system, or an index, see below."""


@dataclass(slots=True)
class _Parser:
    source: Iterable[Token]
    database: str
    rest: list[Token] = field(init=False)
    at: int = 0

    def __post_init__(self) -> None:
        # Rows written as statements can be of any size; what they begin with is enough to refuse them.
        self.rest = []
        for token in self.source:
            self.rest.append(token)
            if len(self.rest) == 1 and token.is_word(*_WRITES):
                break

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
        """A table's name, perhaps with its database. Raises NotSqlError where none stands here."""
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
        if keyword in _WRITES:
            return Statement(keyword, writes=True)
        self.at += 1
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
            return Statement("CREATE INDEX")
        return self._other("CREATE")

    def _selects(self) -> bool:
        """CREATE TABLE … [AS] SELECT, TABLE, VALUES or WITH, logged as one statement: its rows are not row events."""
        depth = 0
        while (token := self.peek()) is not _END:
            self.at += 1
            depth += token.is_symbol("(") - token.is_symbol(")")
            inside = self.peek(-2).is_symbol("(")
            if token.is_word("SELECT", "VALUES", "TABLE", "WITH") and (depth == 0 or inside) and not self._is_option():
                return True
        return False

    def _is_option(self) -> bool:
        """Not a query but part of a table's definition: WITH SYSTEM VERSIONING, PARTITION … VALUES LESS THAN."""
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
        return Statement(f"{verb} of something unknown", unknown=True)

    def _rename(self) -> Statement:
        if self.word("USER"):
            return Statement("RENAME USER")
        if not self.word("TABLE", "TABLES"):
            return Statement("RENAME of something unknown", unknown=True)
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
        self.word("IGNORE")
        if not self.word("TABLE"):
            return self._other("ALTER")
        self.words("IF", "EXISTS")
        table = self.table()
        if self.word("WAIT"):
            self.at += 1
        self.word("NOWAIT")
        return _AlterTable(self, table).statement()


_END = Token(TokenKind.SYMBOL, "")


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
"""Of ALTER TABLE: they leave columns, keys and rows alone."""
_SWITCHES = frozenset({"FORCE", "SECONDARY_LOAD", "SECONDARY_UNLOAD"})
"""Those without a value."""
_PARTITION_VERBS = frozenset({"ANALYZE", "CHECK", "COALESCE", "OPTIMIZE", "REBUILD", "REORGANIZE", "REPAIR"})


@dataclass(slots=True)
class _AlterTable:
    """The parts of one ALTER TABLE, which commas outside of parentheses divide."""

    parser: _Parser
    table: TableId
    changed: set[TableId] = field(default_factory=set)
    lost_index: bool = False
    reason: str = ""

    def statement(self) -> Statement:
        while self.parser.peek() is not _END:
            if not self._part():
                self.changed.add(self.table)
                self.reason = self.reason or " of its columns, keys or rows"
            self._skip_part()
        what = f"ALTER TABLE{self.reason}"
        lost = frozenset([self.table]) if self.lost_index else frozenset()
        return Statement(what, frozenset(self.changed), lost)

    def _skip_part(self) -> None:
        depth = 0
        while (token := self.parser.peek()) is not _END:
            self.parser.at += 1
            depth += token.is_symbol("(") - token.is_symbol(")")
            if token.is_symbol(",") and depth == 0:
                return

    def _part(self) -> bool:
        """True where the part is known to leave the table's columns, keys and rows as they are."""
        p = self.parser
        if p.word("ADD"):
            return self._add()
        if p.word("DROP"):
            return self._drop()
        if p.word("ALTER"):
            return self._alter_part()
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
            # Names after it, divided by commas too, are no parts of their own; nothing else can follow.
            return p.peek().is_word("PARTITION") and self._take_all()
        if p.word("ORDER"):
            return self._take_all()
        return self._options()

    def _options(self) -> bool:
        """Table options stand one after the other without commas, and partitioning after the last."""
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
        """A table option and its value."""
        p = self.parser
        known = (
            p.words("DEFAULT", "CHARACTER", "SET")
            or p.words("CHARACTER", "SET")
            or p.words("DATA", "DIRECTORY")
            or p.words("INDEX", "DIRECTORY")
            or p.word(*_TABLE_OPTIONS)
        )
        if known:
            self._value()
        return known

    def _switch(self) -> bool:
        """What has no value."""
        p = self.parser
        return (
            p.word("DEFAULT", *_SWITCHES)
            or p.words("WITH", "VALIDATION")
            or p.words("WITHOUT", "VALIDATION")
            or p.words("ENABLE", "KEYS")
            or p.words("DISABLE", "KEYS")
        )

    def _value(self) -> None:
        """[=] one token, or = a sign or @ and one token."""
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
        if p.word("VECTOR"):  # not reserved: may be the name of a new column
            return p.word("INDEX", "KEY")
        return p.word("INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK")

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
        return False

    def _alter_part(self) -> bool:
        p = self.parser
        if p.word("INDEX", "KEY", "CHECK", "CONSTRAINT"):
            return True
        p.word("COLUMN")
        p.words("IF", "EXISTS")
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
        """Rows change places with those of another table."""
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
