"""The session that asks again, on PostgreSQL's connections."""

from typing import ClassVar

import psycopg2

from readers.postgres.connect import Connection, error_text, is_transient
from readers.session import AskingSession, Row, pause

__all__ = ["Row", "SqlSession", "pause", "will_pass"]


def will_pass(error: psycopg2.Error, connection: Connection) -> bool:
    """True if the same question may get an answer on another connection."""
    return is_transient(error) or connection.closed != 0


class SqlSession(AskingSession[Connection]):
    error_class: ClassVar[type[Exception]] = psycopg2.Error
    will_pass = staticmethod(will_pass)
    error_text = staticmethod(error_text)

    @staticmethod
    def is_open(connection: Connection) -> bool:
        return connection.closed == 0
