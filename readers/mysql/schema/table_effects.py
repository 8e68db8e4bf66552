"""Finds out whether a write to a table may change other tables, by triggers or foreign keys. Reads primary keys."""

import re

from tidemark.readers.mysql.connect import Connection
from tidemark.state.table import TableId

_GRANT = re.compile(r"GRANT (?P<privileges>.+?) ON (?:TABLE )?(?P<object>\S+) TO ", re.IGNORECASE)


def is_isolated(connection: Connection, table: TableId) -> bool:
    """Returns True if a write to the table certainly changes no other table: it is a base table without triggers, and no
    foreign key refers to it.

    The server shows triggers only to accounts with TRIGGER. Without this privilege the answer is False.
    """
    names = (table.database, table.name)
    with connection.cursor() as cursor:
        cursor.execute("SHOW GRANTS")
        if not any(grants_trigger(str(row[0]), table) for row in cursor.fetchall()):
            return False
        cursor.execute(
            "SELECT table_type FROM information_schema.tables WHERE table_schema = %s AND table_name = %s", names
        )
        if [row[0] for row in cursor.fetchall()] != ["BASE TABLE"]:
            return False
        for query in (
            "SELECT 1 FROM information_schema.triggers WHERE event_object_schema = %s AND event_object_table = %s",
            "SELECT 1 FROM information_schema.key_column_usage "
            "WHERE referenced_table_schema = %s AND referenced_table_name = %s",
        ):
            cursor.execute(f"{query} LIMIT 1", names)
            if cursor.fetchone() is not None:
                return False
    return True


def grants_trigger(grant: str, table: TableId) -> bool:
    """Returns True if a line of SHOW GRANTS gives TRIGGER on the table. Patterns in database names do not count."""
    match = _GRANT.match(grant)
    if match is None:
        return False
    privileges = {name.strip().upper() for name in match["privileges"].split(",")}
    objects = {"*.*", f"`{table.database}`.*", f"`{table.database}`.`{table.name}`"}
    return bool(privileges & {"TRIGGER", "ALL PRIVILEGES", "ALL"}) and match["object"].replace("\\_", "_") in objects


def primary_key(connection: Connection, table: TableId) -> tuple[str, ...]:
    """Returns the columns of the table's primary key; () if it has none or the table does not exist."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name FROM information_schema.statistics "
            "WHERE table_schema = %s AND table_name = %s AND index_name = 'PRIMARY' ORDER BY seq_in_index",
            (table.database, table.name),
        )
        return tuple(str(row[0]) for row in cursor.fetchall())


def default_charset(connection: Connection, table: TableId) -> str:
    """Returns the character set that new columns of the table have if they name none; "" if the table does not exist."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_collation FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
            (table.database, table.name),
        )
        row = cursor.fetchone()
    return "" if row is None or row[0] is None else str(row[0]).partition("_")[0]
