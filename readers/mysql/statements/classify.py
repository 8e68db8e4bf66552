"""Classifies a logged statement: no effect on tables, a change of columns or rows without row events, or unknown.

Row changes come as row events. Statements in the log are DDL, administration, transaction control, and the writes of
sessions with binlog_format=STATEMENT. Only statements on an allow-list are ignored; anything else counts as a change.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from tidemark.readers.mysql.statements.alter_table import AlterTable
from tidemark.readers.mysql.statements.cursor import END, SURROGATE, Cursor
from tidemark.readers.mysql.statements.sql_tokens import NotSqlError, Token, TokenKind, tokens
from tidemark.readers.mysql.statements.statement import Statement
from tidemark.state.table import TableId


def classify(statement: str, database: str, sql_mode: int = 0) -> Statement:
    """`database`: the session's default database, "" for none."""
    try:
        rest, is_whole = _tokens_of(tokens(statement, sql_mode))
    except NotSqlError as exc:
        return Statement(f"a statement in which {exc}", unknown=True)
    parser = _Parser(rest, database, is_whole=is_whole)
    try:
        return parser.statement()
    except NotSqlError as exc:
        return parser.unknown(f"a statement in which {exc}", is_named=parser.is_of_tables())


def quoted(statement: str, sql_mode: int = 0) -> str:
    """Returns a statement that was not understood for messages: its keywords, names and symbols, up to MAX_QUOTED characters.
    Literals and comments are left out, and all that comes after the first thing that can't be a token."""
    found, size = list[str](), 0
    try:
        for token in tokens(statement, sql_mode):
            is_word = token.kind is TokenKind.WORD
            text = f"`{token.text}`" if token.kind is TokenKind.NAME else token.text
            if token.kind is TokenKind.TEXT or (is_word and text[0].isdigit()):
                text = "?"
            size += len(text) + 1
            # A dollar may begin a text of another language.
            if size > MAX_QUOTED or (is_word and "$" in text) or SURROGATE.search(text):
                found.append("…")
                break
            found.append(text)
    except NotSqlError:
        found.append("…")
    return " ".join(found)


MAX_QUOTED = 200


_HARMLESS = frozenset(
    {
        "BINLOG", "CACHE", "CHANGE", "CHECK", "CHECKSUM", "CLONE", "DEALLOCATE", "FLUSH", "GRANT", "HELP",
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
        "AGGREGATE", "COLLATION", "COMPRESSION_DICTIONARY", "DATABASE", "DEFINER", "EVENT", "FUNCTION", "LIBRARY",
        "LOGFILE", "MASKING", "PACKAGE", "PROCEDURE", "RESOURCE", "ROLE", "SCHEMA", "SEQUENCE", "SERVER", "SPATIAL",
        "SQL", "TABLESPACE", "TRIGGER", "UNDO", "USER", "VIEW", "ALGORITHM", "INSTANCE", "PUBLIC",
    }
)  # fmt: skip
"""After CREATE, ALTER or DROP: objects without rows. SPATIAL: a reference system, or an index, see below."""


def _tokens_of(source: Iterator[Token]) -> tuple[list[Token], bool]:
    """Returns a statement's tokens, and whether they are all. A statement that writes rows can have any size; its first word
    is enough to refuse it. Raises NotSqlError for other statements, unless their first words tell that they define an object
    without rows: the body of such an object may be in another language (JavaScript between `$$`)."""
    found = list(islice(source, 1))
    try:
        if not (found and found[0].is_word(*_WRITES)):
            found.extend(source)
            return found, True
        found.extend(islice(source, _MAX_WRITE_TOKENS))
        return found, next(source, None) is None
    except NotSqlError:
        if found and (found[0].is_word(*_WRITES) or _defines_no_rows(found)):
            return found, False
        raise


def _defines_no_rows(found: list[Token]) -> bool:
    """True if a statement that begins so creates or alters an object without rows."""
    start = Cursor(found, "")
    if not start.word("CREATE", "ALTER"):
        return False
    start.words("OR", "REPLACE")
    return start.peek().is_word(*_OTHER_OBJECTS - {"SPATIAL"})


@dataclass(slots=True)
class _Parser(Cursor):
    is_whole: bool = True

    def statement(self) -> Statement:
        first = self.peek()
        if first is END:
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
            case "ANALYZE":
                return self._analyze()
            case _ if keyword in _HARMLESS:
                return Statement(keyword)
        return self.unknown("an unknown statement")

    def is_of_tables(self) -> bool:
        """True if the statement's first words tell that it defines, renames or empties tables or indexes, which it names."""
        start = Cursor(self.rest, self.database)
        if start.word("TRUNCATE"):
            return True
        if not start.word("ALTER", "CREATE", "DROP", "RENAME"):
            return False
        start.words("OR", "REPLACE")
        while start.word("FULLTEXT", "IGNORE", "OFFLINE", "ONLINE", "SPATIAL", "UNIQUE", "VECTOR"):
            pass
        return start.peek().is_word("INDEX", "TABLE", "TABLES")

    def unknown(self, what: str, *, is_named: bool = False) -> Statement:
        """`is_named`: it can only change tables, or all tables of databases, that it names."""
        is_readable = not any(token.is_name and SURROGATE.search(token.text) for token in self.rest)
        if not (is_named and is_readable and self.is_whole):
            return Statement(what, unknown=True)
        tables, databases = set[TableId](), set[str]()
        rest = [END, END, *self.rest, END, END]
        for i in range(2, len(rest) - 2):
            if rest[i].kind is TokenKind.SYMBOL:
                continue
            is_qualified = rest[i - 1].is_symbol(".") and rest[i - 2].kind is not TokenKind.SYMBOL
            if rest[i + 1].is_symbol("."):
                tables.add(TableId(rest[i].text, rest[i + 2].text))
            elif not is_qualified:
                databases.add(rest[i].text)
            if not is_qualified:
                tables.add(TableId(self.database, rest[i].text))
        return Statement(what, frozenset(tables), dropped_databases=frozenset(databases), unknown=True, is_named=True)

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
        if keyword == "DELETE" and not (self.peek() is END or self.peek().is_word("WHERE", "ORDER", "LIMIT")):
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
        while self.peek() is not END:
            if self.word("FOR"):
                return self.statement()
            self.at += 1
        return self.unknown("SET STATEMENT")

    def _analyze(self) -> Statement:
        """Takes ANALYZE TABLE; MariaDB: ANALYZE [FORMAT=JSON] and a statement, which it executes."""
        if self.peek().is_word("LOCAL", "NO_WRITE_TO_BINLOG", "TABLE", "TABLES"):
            return Statement("ANALYZE TABLE")
        if self.word("FORMAT"):
            self.symbol("=")
            self.at += 1
        return self.statement()

    def _create(self) -> Statement:
        replaces = self.words("OR", "REPLACE")
        self.word("TEMPORARY", "ONLINE", "OFFLINE")
        if self.peek(-1).is_word("TEMPORARY"):
            return self._create_temporary()
        if self.word("TABLE"):
            self.words("IF", "NOT", "EXISTS")
            table = self.table()
            if replaces:
                return Statement("CREATE OR REPLACE TABLE", frozenset([table]), drops=True)
            if self._selects():
                return Statement("CREATE TABLE … SELECT", writes=True, written=table)
            return Statement("CREATE TABLE")
        if self._is_index():
            return self._replace_index() if replaces else Statement("CREATE INDEX")
        if replaces and self.word("DATABASE", "SCHEMA"):  # MariaDB drops the database with its tables
            name = frozenset([self.name()])
            return Statement("CREATE OR REPLACE DATABASE", dropped_databases=name, drops=True)
        return self._other("CREATE")

    def _create_temporary(self) -> Statement:
        if not self.word("TABLE"):
            return Statement("CREATE TEMPORARY SEQUENCE")
        self.words("IF", "NOT", "EXISTS")
        table = self.table()
        if self._selects():
            return Statement("CREATE TEMPORARY TABLE … SELECT", calls=True, written=table)
        return Statement("CREATE TEMPORARY TABLE")

    def _replace_index(self) -> Statement:
        """MariaDB's CREATE OR REPLACE INDEX drops an index of the same name."""
        self.name()
        if self.word("USING"):
            self.at += 1
        if not self.word("ON"):
            return self.unknown("CREATE OR REPLACE INDEX", is_named=True)
        return Statement("CREATE OR REPLACE INDEX", lost_index=frozenset([self.table()]))

    def _selects(self) -> bool:
        """True for CREATE TABLE … [AS] SELECT, TABLE, VALUES or WITH, logged as one statement: its rows are not row events."""
        depth = 0
        while (token := self.peek()) is not END:
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
            return Statement("DROP TABLE", frozenset(self.tables()), drops=True)
        if self.word("DATABASE", "SCHEMA"):
            self.words("IF", "EXISTS")
            return Statement("DROP DATABASE", dropped_databases=frozenset([self.name()]), drops=True)
        if self._is_index():
            return self._drop_index()
        return self._other("DROP")

    def _drop_index(self) -> Statement:
        self.words("IF", "EXISTS")
        index = self.name()
        if not self.word("ON"):
            return self.unknown("DROP INDEX", is_named=True)
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
        # What is new can't have rows of other tables. What is altered or dropped may contain tables that are not named.
        may_write = any(token.is_word(*_WRITES) for token in self.rest[self.at :])
        return self.unknown(f"{verb} of an unknown object", is_named=verb == "CREATE" and not may_write)

    def _rename(self) -> Statement:
        if self.word("USER"):
            return Statement("RENAME USER")
        if not self.word("TABLE", "TABLES"):
            return self.unknown("RENAME of an unknown object")
        self.words("IF", "EXISTS")
        names = []
        while True:
            names.append(self.table())
            if self.word("WAIT"):
                self.at += 1
            self.word("NOWAIT")
            if not self.word("TO"):
                return self.unknown("RENAME TABLE", is_named=True)
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
        return AlterTable(self, table).statement()
