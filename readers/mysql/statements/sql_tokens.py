"""Splits statements into tokens: enough of the servers' lexical rules to tell names from text and comments.

https://dev.mysql.com/doc/refman/8.4/en/language-structure.html
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

ANSI_QUOTES = 1 << 2
NO_BACKSLASH_ESCAPES = 1 << 20
"""Bits of a session's SQL mode that change what quotes mean."""


class TokenKind(Enum):
    WORD = auto()  # a keyword, a plain name or a number
    NAME = auto()  # a quoted name
    TEXT = auto()  # a string, as it is between its quotes
    SYMBOL = auto()


@dataclass(frozen=True, slots=True)
class Token:
    kind: TokenKind
    text: str

    def is_word(self, *words: str) -> bool:
        """True if the token is one of these keywords (upper case) and not quoted."""
        # Letters such as the dotless i have a capital of ASCII.
        return self.kind is TokenKind.WORD and self.text.isascii() and self.text.upper() in words

    def is_symbol(self, symbol: str) -> bool:
        return self.kind is TokenKind.SYMBOL and self.text == symbol

    @property
    def is_name(self) -> bool:
        return self.kind is TokenKind.WORD or self.kind is TokenKind.NAME


_SPACE = re.compile(r"[\s\0]+", re.ASCII)
_WORD = re.compile(r"[0-9A-Za-z$_\u0080-\U0010ffff]+")
_LINE_COMMENT = re.compile(r"(?:#|--(?=[\s\0]|$))[^\n]*", re.ASCII)
_CODE_COMMENT = re.compile(r"/\*M?!\d*", re.ASCII)
_QUOTED = {quote: re.compile(rf"{quote}((?:[^{quote}]|{quote}{quote})*){quote}") for quote in "`'\""}
_ESCAPED = {quote: re.compile(rf"{quote}((?:[^{quote}\\]|\\.|{quote}{quote})*){quote}", re.DOTALL) for quote in "'\""}


class NotSqlError(ValueError):
    """A quote or a comment is not closed."""


def tokens(statement: str, sql_mode: int = 0) -> Iterator[Token]:
    """The statement's tokens. Raises NotSqlError. The content of a version comment (`/*!50100 …*/`, `/*M!…*/`) counts as code
    for every version: the reader must see what any server may have run."""
    at, code_comments = 0, 0
    quotes = _QUOTED if sql_mode & NO_BACKSLASH_ESCAPES else {**_QUOTED, **_ESCAPED}
    while at < len(statement):
        if (match := _SPACE.match(statement, at)) or (match := _LINE_COMMENT.match(statement, at)):
            at = match.end()
        elif match := _CODE_COMMENT.match(statement, at):
            code_comments += 1
            at = match.end()
        elif code_comments and statement.startswith("*/", at):
            code_comments -= 1
            at += 2
        elif statement.startswith("/*", at):
            at = _after_comment(statement, at)
        elif match := _WORD.match(statement, at):
            yield Token(TokenKind.WORD, match[0])
            at = match.end()
        elif (quote := statement[at]) in quotes:
            match = (_QUOTED if _is_name(quote, sql_mode) else quotes)[quote].match(statement, at)
            if match is None:
                raise NotSqlError("a quote is not closed")
            if _is_name(quote, sql_mode):
                yield Token(TokenKind.NAME, match[1].replace(quote * 2, quote))
            else:
                yield Token(TokenKind.TEXT, match[1])
            at = match.end()
        else:
            yield Token(TokenKind.SYMBOL, statement[at])
            at += 1


def _is_name(quote: str, sql_mode: int) -> bool:
    return quote == "`" or (quote == '"' and bool(sql_mode & ANSI_QUOTES))


def _after_comment(statement: str, at: int) -> int:
    end = statement.find("*/", at + 2)
    if end < 0:
        raise NotSqlError("a comment is not closed")
    return end + 2
