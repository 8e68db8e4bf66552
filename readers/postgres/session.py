"""A session of repeatable queries (readers/session.py) on PostgreSQL connections."""

from typing import ClassVar

import psycopg2

from tidemark.readers.postgres.connect import (
    CONFLICT,
    LOCK_TIMEOUT,
    Connection,
    conflict,
    error_code,
    error_text,
    is_removed_log,
    is_too_large,
    is_transient,
    removed_log,
)
from tidemark.readers.session import AskingSession, Row, pause
from tidemark.state.errors import TidemarkError

__all__ = ["Row", "SqlSession", "pause", "will_pass"]


def will_pass(error: psycopg2.Error, connection: Connection) -> bool:
    """True if the same query may succeed on another connection."""
    return is_transient(error) or connection.closed != 0


_OF_TABLE = frozenset({"42501", "58P01"})
"""A privilege; a file that is missing."""
_OF_STORAGE = ("XX001", "XX002")
_OF_ROWS = ("21", "22", "54", *_OF_STORAGE)
"""Codes and classes of errors of rows: a condition can't be computed, a character has no place in UTF-8, a row is too long to
be sent, its storage is damaged. See also `is_too_large`."""


def is_of_storage(error: psycopg2.Error) -> bool:
    """True if the server finds a file of the table or of an index damaged."""
    return error_code(error) in _OF_STORAGE


class SqlSession(AskingSession[Connection]):
    error_class: ClassVar[type[Exception]] = psycopg2.Error
    will_pass = staticmethod(will_pass)
    error_text = staticmethod(error_text)

    @staticmethod
    def unavailable(message: str, error: psycopg2.Error) -> TidemarkError:
        if is_removed_log(error):
            return removed_log(error)
        return conflict(message) if error_code(error) == CONFLICT else AskingSession.unavailable(message, error)

    @staticmethod
    def is_gone(error: psycopg2.Error) -> bool:
        return error_code(error) in {"42P01", "42703", "3F000"}

    @staticmethod
    def is_of_table(error: psycopg2.Error) -> bool:
        return error_code(error) in _OF_TABLE

    @staticmethod
    def is_of_rows(error: psycopg2.Error) -> bool:
        code = error_code(error)
        return code is not None and (code.startswith(_OF_ROWS) or is_too_large(error))

    @staticmethod
    def is_locked(error: psycopg2.Error) -> bool:
        return error_code(error) == LOCK_TIMEOUT

    @staticmethod
    def is_open(connection: Connection) -> bool:
        return connection.closed == 0
