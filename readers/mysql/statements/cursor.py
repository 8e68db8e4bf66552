"""A position among the tokens of a statement. A parser takes them from there, one after the other."""

import re
from dataclasses import dataclass

from tidemark.readers.mysql.statements.sql_tokens import NotSqlError, Token, TokenKind
from tidemark.state.table import TableId

END = Token(TokenKind.SYMBOL, "")
"""Comes after the last token."""
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(slots=True)
class Cursor:
    """`rest`: the statement's tokens, of which the one at index `at` comes next. `database`: the session's default database."""

    rest: list[Token]
    database: str
    at: int = 0

    def peek(self, ahead: int = 0) -> Token:
        index = self.at + ahead
        return self.rest[index] if index < len(self.rest) else END

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
        first = self.name()
        return TableId(first, self.name()) if self.symbol(".") else TableId(self.database, first)

    def tables(self) -> list[TableId]:
        found = [self.table()]
        while self.symbol(","):
            found.append(self.table())
        return found

    def name(self) -> str:
        token = self.peek()
        if not token.is_name:
            raise NotSqlError("a name is missing")
        if SURROGATE.search(token.text):
            raise NotSqlError("a name is not valid in the statement's character set")
        self.at += 1
        return token.text
