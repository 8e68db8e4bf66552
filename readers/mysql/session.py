"""The session that asks again, on MySQL's and MariaDB's connections."""

from typing import ClassVar

import pymysql

from readers.mysql.connect import Connection, error_code, error_text, is_transient
from readers.session import AskingSession, Row, pause

__all__ = ["Row", "SqlSession", "pause", "will_pass"]

_PASSING = frozenset({1205, 1213, 1317, 1927, 3169, 4031})
"""Lock wait, deadlock, query or connection killed, session idle for too long."""


def will_pass(error: pymysql.MySQLError, connection: Connection) -> bool:
    """True if the same question may get an answer on another connection."""
    return is_transient(error) or error_code(error) in _PASSING or not connection.open


class SqlSession(AskingSession[Connection]):
    error_class: ClassVar[type[Exception]] = pymysql.MySQLError
    will_pass = staticmethod(will_pass)
    error_text = staticmethod(error_text)

    @staticmethod
    def is_open(connection: Connection) -> bool:
        return connection.open
