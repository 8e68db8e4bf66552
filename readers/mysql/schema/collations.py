"""The collations of a server."""

import pymysql

from tidemark.readers.mysql.connect import Connection

_UNKNOWN_COLUMN = 1054

_cached: dict[tuple[str, str], dict[int, str]] = {}


def charsets_by_collation(connection: Connection) -> dict[int, str]:
    """Collation id → name of the character set. A process asks each server and version once: a split or a short range of
    the log takes less time than the answer. Raises pymysql.MySQLError."""
    server = (str(connection.get_host_info()), str(connection.get_server_info()))  # type: ignore[no-untyped-call]  # no types here
    if server not in _cached:
        _cached[server] = _queried(connection)
    return _cached[server]


def _queried(connection: Connection) -> dict[int, str]:
    with connection.cursor() as cursor:
        sql = "SELECT ID, CHARACTER_SET_NAME FROM information_schema.%s WHERE ID IS NOT NULL"
        try:  # since MariaDB 10.10 only this table lists collations that several character sets share
            cursor.execute(sql % "COLLATION_CHARACTER_SET_APPLICABILITY")
        except pymysql.MySQLError as exc:
            if exc.args[0] != _UNKNOWN_COLUMN:
                raise
            cursor.execute(sql % "COLLATIONS")
        return {int(number): str(charset) for number, charset in cursor.fetchall() if charset is not None}
