"""Pairs of a primary and its replica, and failovers from one to the other."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from devtools.server import Server
from devtools.servers import start_server
from tests.support.servers import Database

WAIT_SECONDS = 60


@contextmanager
def replicated(kind: str, **options: str | int) -> Iterator[tuple[Server, Server]]:
    """A primary and its replica, MySQL with GTIDs or MariaDB."""
    extra = {} if kind == "mysql" else {"log_slave_updates": True}
    with (
        start_server(kind, {"server_id": 11, **extra, **options}) as primary,
        start_server(kind, {"server_id": 12, **extra, **options}) as replica,
    ):
        follow(replica, primary)
        yield primary, replica


def reset(primary: Server, replica: Server) -> None:
    """Makes both servers empty again, with new logs, and the second one a replica of the first one."""
    mysql = primary.kind == "mysql"
    for server in (primary, replica):
        stop = ["STOP REPLICA", "RESET REPLICA ALL"] if mysql else ["STOP SLAVE", "RESET SLAVE ALL"]
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW DATABASES LIKE 't\\_%'")
            drops = [f"DROP DATABASE `{name}`" for (name,) in cursor.fetchall()]
        clear = ["RESET BINARY LOGS AND GTIDS"] if mysql else ["RESET MASTER", "SET GLOBAL gtid_slave_pos=''"]
        _execute(server, *stop, "SET GLOBAL read_only=0", *drops, *clear)
    follow(replica, primary)


def seed(replica: Server, primary: Server) -> None:
    """Makes a replica look as if it was made from a backup: its log starts after the transactions that it has."""
    stop_receiving(replica)
    if replica.kind == "mysql":
        purged = f"SET GLOBAL gtid_purged='{_ask(replica, 'gtid_executed')}'"
        _execute(replica, "RESET REPLICA ALL", "RESET BINARY LOGS AND GTIDS", purged)
    else:
        _execute(replica, "RESET SLAVE ALL", "RESET MASTER")
    follow(replica, primary)


def stop_receiving(replica: Server) -> None:
    _execute(replica, "STOP REPLICA" if replica.kind == "mysql" else "STOP SLAVE")


def start_receiving(replica: Server) -> None:
    _execute(replica, "START REPLICA" if replica.kind == "mysql" else "START SLAVE")


def lose_end_of_log(primary: Server, replica: Server, *undo: str) -> None:
    """Makes a primary look as if a crash had lost all transactions that the replica lacks. `undo` takes their changes back."""
    if primary.kind == "mysql":
        clear = ["RESET BINARY LOGS AND GTIDS", f"SET GLOBAL gtid_purged='{_ask(replica, 'gtid_executed')}'"]
    else:
        clear = ["RESET MASTER", f"SET GLOBAL gtid_binlog_state='{_ask(replica, 'gtid_binlog_state')}'"]
    _execute(primary, "SET sql_log_bin=0", *undo, "SET sql_log_bin=1", *clear)


def follow(replica: Server, primary: Server) -> None:
    """Lets `replica` replicate from `primary`, read-only."""
    if replica.kind == "mysql":
        _execute(
            replica,
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='{primary.host}', SOURCE_PORT={primary.port}, "
            f"SOURCE_USER='{primary.user}', SOURCE_PASSWORD='{primary.password}', SOURCE_AUTO_POSITION=1, "
            "SOURCE_CONNECT_RETRY=1, GET_SOURCE_PUBLIC_KEY=1",
            "START REPLICA",
            "SET GLOBAL read_only=1",
        )
        return
    position = _ask(replica, "gtid_current_pos")
    _execute(
        replica,
        f"SET GLOBAL gtid_slave_pos='{position}'",
        f"CHANGE MASTER TO MASTER_HOST='{primary.host}', MASTER_PORT={primary.port}, MASTER_USER='{primary.user}', "
        f"MASTER_PASSWORD='{primary.password}', MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1, MASTER_SSL=0",
        "START SLAVE",
        "SET GLOBAL read_only=1",
    )


def await_replica(primary: Server, replica: Server) -> None:
    """Until the replica has all transactions of the primary."""
    variable = "gtid_executed" if primary.kind == "mysql" else "gtid_binlog_pos"
    deadline = time.monotonic() + WAIT_SECONDS
    while (wanted := _ask(primary, variable)) != _ask(replica, variable):
        if primary.kind == "mysql" and _contains(replica, wanted):
            return
        assert time.monotonic() < deadline, (wanted, _ask(replica, variable), _status(replica))
        time.sleep(0.05)


def promote(replica: Server) -> None:
    """Makes a replica accept writes, once it has applied what it has received."""
    if replica.kind == "mysql":
        _execute(replica, "STOP REPLICA IO_THREAD", "STOP REPLICA", "RESET REPLICA ALL", "SET GLOBAL read_only=0")
    else:
        _execute(replica, "STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only=0")


def on(server: Server, database: Database) -> Database:
    """The database of this name on another server."""
    return replace(database, server=server)


def _contains(server: Server, wanted: str) -> bool:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT GTID_SUBSET(%s, @@GLOBAL.gtid_executed)", (wanted,))
        return bool(cursor.fetchone()[0])


def _status(replica: Server) -> list[object]:
    with replica.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW REPLICA STATUS" if replica.kind == "mysql" else "SHOW SLAVE STATUS")
        return list(cursor.fetchall())


def _ask(server: Server, variable: str) -> str:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT @@GLOBAL.{variable}")
        return str(cursor.fetchone()[0])


def _execute(server: Server, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
