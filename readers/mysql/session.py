"""`AskingSession` for MySQL and MariaDB."""

from typing import ClassVar

import pymysql

from tidemark.readers.mysql.connect import Connection, error_code, error_text, is_transient
from tidemark.readers.session import AskingSession, Row, pause

__all__ = ["Row", "SqlSession", "pause", "will_pass"]

_LOCK_TIMEOUT, _DEADLOCK = 1205, 1213
_PASSING = frozenset({_LOCK_TIMEOUT, _DEADLOCK})
_NO_PRIVILEGE = frozenset({1142, 1143})
_FILES = frozenset(
    {1016, 1017, 1030, 1033, 1034, 1035, 1194, 1195, 1296, 1459, 1712, 1808, 1812, 1814, 1877, 1932, 3185}
)
"""A table's file is missing, damaged, of another version, or encrypted with an unknown key; its tablespace is discarded."""
_VALUES = frozenset({1292, 1365, 1366, 1411, 1416, 1690, 3037, *range(3140, 3159), *range(3685, 3701)})
"""A value of a virtual column, or of snapshot.where, can't be computed: out of its range, a division by zero, no valid JSON or
geometry, a regular expression."""
_OF_TABLE = _NO_PRIVILEGE | _FILES


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
    def is_of_table(error: pymysql.MySQLError) -> bool:
        return error_code(error) in _OF_TABLE

    @staticmethod
    def is_of_rows(error: pymysql.MySQLError) -> bool:
        return error_code(error) in _VALUES

    @staticmethod
    def is_locked(error: pymysql.MySQLError) -> bool:
        return error_code(error) == _LOCK_TIMEOUT

    @staticmethod
    def is_open(connection: Connection) -> bool:
        return connection.open
