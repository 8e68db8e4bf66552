"""Leaves row values out of servers' messages: errors end up in logs, in the history and in reports."""

import re

_MYSQL_VALUE = re.compile(r"(value: |entry )'.*'(?= for (?:column|key|function) )", re.DOTALL)
_MYSQL_LAST_VALUE = re.compile(r"(value: |entry )'(?!…').*'$|(for value )[^'\s]+$", re.DOTALL)
_MYSQL_EXPRESSION = re.compile(r"(value is out of range in )'.*'", re.DOTALL)
_POSTGRES_VALUE = re.compile(r"\".*\"(?:: 0x.*)?", re.DOTALL)
_DATA_EXCEPTION = "22"
"""The class of PostgreSQL's errors about values. In their messages only values are in quotes, and names of encodings."""


def without_mysql_values(text: str) -> str:
    """Returns a message of MySQL or MariaDB without the values that it quotes. Names of columns and keys stay."""
    for pattern in (_MYSQL_VALUE, _MYSQL_LAST_VALUE, _MYSQL_EXPRESSION):
        text = pattern.sub(lambda match: "".join(filter(None, match.groups())) + "'…'", text)
    return text


def without_postgres_values(code: str | None, primary: str) -> str:
    """Returns the first line of a message of PostgreSQL without the values that it quotes. `code`: its SQLSTATE.

    Detail, hint and context have to be left out by the caller.
    """
    return _POSTGRES_VALUE.sub("…", primary) if code is not None and code.startswith(_DATA_EXCEPTION) else primary
