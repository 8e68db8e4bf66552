"""`AskingSession` for MySQL and MariaDB."""

from typing import ClassVar

import pymysql

from tidemark.readers.mysql.connect import Connection, error_code, error_text, is_transient
from tidemark.readers.session import AskingSession, Row, pause

__all__ = ["Row", "SqlSession", "pause", "will_pass"]

_LOCK_TIMEOUT, _DEADLOCK = 1205, 1213
_PASSING = frozenset({_LOCK_TIMEOUT, _DEADLOCK})


def will_pass(error: pymysql.MySQLError, connection: Connection) -> bool:
    """True if repeating the query on a new connection may help."""
    return is_transient(error) or error_code(error) in _PASSING or not connection.open


class SqlSession(AskingSession[Connection]):
    error_class: ClassVar[type[Exception]] = pymysql.MySQLError
    will_pass = staticmethod(will_pass)
    error_text = staticmethod(error_text)

    @staticmethod
    def is_gone(error: pymysql.MySQLError) -> bool:
        return error_code(error) in {1054, 1146}

    @staticmethod
    def is_locked(error: pymysql.MySQLError) -> bool:
        return error_code(error) == _LOCK_TIMEOUT

    @staticmethod
    def is_open(connection: Connection) -> bool:
        return connection.open
