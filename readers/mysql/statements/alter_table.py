"""Classifies the actions of an ALTER TABLE. An action that is not known counts as a change of columns, keys or rows."""

import re
from dataclasses import dataclass, field

from tidemark.readers.mysql.schema.constants import Literal
from tidemark.readers.mysql.schema.types import SourceType
from tidemark.readers.mysql.statements.cursor import END, Cursor
from tidemark.readers.mysql.statements.sql_tokens import Token, TokenKind
from tidemark.readers.mysql.statements.statement import AddedColumn, DroppedColumn, ModifiedColumn, Statement
from tidemark.state.table import TableId

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
"""Words in a column's definition. A column with one of them may have any value in the rows that the table has."""
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
class AlterTable:
    """The actions of one ALTER TABLE, separated by commas outside of parentheses."""

    cursor: Cursor
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
        while self.cursor.peek() is not END:
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
        p, depth = self.cursor, 0
        while (token := p.peek()) is not END:
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
        p = self.cursor
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
        p = self.cursor
        while (token := p.peek()) is not END and not token.is_symbol(","):
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
        p = self.cursor
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
        p = self.cursor
        return (
            p.word("DEFAULT", *_SWITCHES)
            or p.words("WITH", "VALIDATION")
            or p.words("WITHOUT", "VALIDATION")
            or p.words("ENABLE", "KEYS")
            or p.words("DISABLE", "KEYS")
        )

    def _value(self) -> None:
        """Takes [=] and one token."""
        self.cursor.symbol("=")
        self.cursor.at += 1

    def _take_all(self) -> bool:
        self.cursor.at = len(self.cursor.rest)
        return True

    def _add(self) -> bool:
        p = self.cursor
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
        p = self.cursor
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
        p = self.cursor
        name, depth, defaults = p.peek(), 0, list[Literal | None]()
        is_not_null = is_made = False
        if not name.is_name or name.is_word(*_NO_COLUMN):
            return False
        p.at += 1
        while (token := p.peek()) is not END and (depth or not (token.is_symbol(",") or token.is_symbol(")"))):
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
        """Takes [COLUMN] [IF EXISTS] name [new name] definition. False unless the name stays the same, and type and options
        show what happens to the values."""
        p = self.cursor
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
        while p.peek() is not END and not p.peek().is_symbol(","):
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
        p = self.cursor
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
        p, found = self.cursor, list[Token]()
        if p.symbol("("):
            while p.peek() is not END and not p.symbol(")"):
                found.append(p.peek())
                p.at += 1
                p.symbol(",")
        return found

    def _default(self) -> bool:
        """Takes NULL or a literal."""
        p = self.cursor
        if p.word("NULL"):
            return True
        if self._literal() is None:
            return False
        p.at += 1 + (p.peek().is_symbol("-") or p.peek().is_symbol("+"))
        p.at += 2 * p.peek().is_symbol(".")
        return True

    def _literal(self) -> Literal | None:
        """Returns the literal that comes next and is the whole default, without taking it. None if anything else comes."""
        p, at = self.cursor, 0
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
        ends = after is END or after.is_symbol(",") or after.is_symbol(")") or after.is_word(*_AFTER_DEFAULT)
        return literal if ends else None

    def _drop(self) -> bool:
        p = self.cursor
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
        return p.peek() is END or p.peek().is_symbol(",")

    def _alter_part(self) -> bool:
        p = self.cursor
        if p.word("INDEX", "KEY", "CHECK", "CONSTRAINT"):
            return True
        p.word("COLUMN")
        p.words("IF", "EXISTS")
        self.with_default.add(p.peek().text.lower())
        p.at += 1
        return p.words("DROP", "DEFAULT") or (p.word("SET") and p.word("DEFAULT", "VISIBLE", "INVISIBLE"))

    def _rename(self) -> bool:
        p = self.cursor
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
        p = self.cursor
        self.reason = " EXCHANGE PARTITION"
        while (token := p.peek()) is not END and not token.is_symbol(","):
            if p.words("WITH", "TABLE"):
                self.changed.add(p.table())
                break
            p.at += 1
        return False

    def _convert(self) -> bool:
        """CONVERT TO CHARACTER SET; MariaDB: CONVERT PARTITION p TO TABLE t, CONVERT TABLE t TO PARTITION p."""
        p = self.cursor
        self.reason = " CONVERT"
        if p.word("TABLE"):
            self.changed.add(p.table())
        elif p.word("PARTITION"):
            p.at += 1
            if p.words("TO", "TABLE"):
                self.changed.add(p.table())
        return False
