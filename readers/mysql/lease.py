"""The job's lease on MySQL and MariaDB: GET_LOCK needs no grant, writes nothing and works on a read-only replica."""

from typing import ClassVar

import pymysql

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.reconnect import AT_START, Reconnect
from tidemark.conf.source import Tls
from tidemark.readers.lease import IDLE_SECONDS, Lock, connection_broke
from tidemark.readers.mysql.connect import (
    CORRECT_REFUSED,
    Connection,
    connect,
    error_text,
    flavour_of,
    is_transient,
    version_of,
)
from tidemark.state.errors import SourceNotUsableError

READ_TIMEOUT_SECONDS = 10.0

_SHOWN_BY_PERFORMANCE_SCHEMA_SINCE = (8, 0, 22)


class MySqlLock(Lock):
    error_class: ClassVar[type[Exception]] = pymysql.MySQLError

    def __init__(self, endpoint: Endpoint, tls: Tls | None, name: str) -> None:
        self._endpoint, self._tls, self._name = endpoint, tls, name
        self._connection: Connection | None = None

    def open(self, reconnect: Reconnect) -> None:
        if self._connection is None:
            self._connection = connect(
                self._endpoint,
                self._tls,
                purpose="lease",
                read_timeout_seconds=READ_TIMEOUT_SECONDS,
                reconnect=reconnect,
            )

    def try_to_take(self, wait_seconds: int) -> int | None:
        self.open(AT_START)
        assert self._connection is not None
        try:
            with self._connection.cursor() as cursor:
                # A dead machine, or a frozen process, must not keep the lock for hours: the server notices neither.
                cursor.execute("SET SESSION wait_timeout = %s", (IDLE_SECONDS,))
                cursor.execute("SELECT GET_LOCK(%s, %s), CONNECTION_ID()", (self._name, wait_seconds))
                row = cursor.fetchone()
        except (pymysql.MySQLError, OSError) as error:
            broke = isinstance(error, OSError) or is_transient(error) or not self._connection.open
            self.drop()
            if broke:
                raise connection_broke(self._endpoint.host) from error
            raise SourceNotUsableError(
                f"The source refuses the job's lease: {error_text(error)}", CORRECT_REFUSED
            ) from error
        return None if row is None or row[0] != 1 else int(row[1])

    def is_mine(self) -> bool:
        if self._connection is None:
            return False
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT IS_USED_LOCK(%s) = CONNECTION_ID()", (self._name,))
            row = cursor.fetchone()
        return row is not None and row[0] == 1

    def holder_id(self) -> int | None:
        if self._connection is None:
            return None
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT IS_USED_LOCK(%s)", (self._name,))
            row = cursor.fetchone()
        return None if row is None or row[0] is None else int(row[0])

    def whereabouts(self, holder: int) -> str:
        """Works without a grant if the holder has the same account: an account sees its own connections."""
        connection = self._connection
        assert connection is not None
        recent = version_of(connection) >= _SHOWN_BY_PERFORMANCE_SCHEMA_SINCE and flavour_of(connection) == "mysql"
        schema = "performance_schema" if recent else "information_schema"
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT user, host FROM {schema}.processlist WHERE id = %s", (holder,))
            row = cursor.fetchone()
        return "" if row is None else f"{row[0]} from {row[1]}"

    def ending(self, holder: int) -> str:
        return f"KILL {holder}"

    def drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            connection.close()
