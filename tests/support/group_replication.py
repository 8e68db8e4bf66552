"""A group of MySQL servers that replicate to each other (group replication)."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from devtools.server import Server
from devtools.server_process import ReservedPort
from devtools.servers import start_server

GROUP = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
BLOCK = 7
"""Each member takes so many GTIDs at once, so those of members alternate."""
WAIT_SECONDS = 120


@contextmanager
def group_of(count: int) -> Iterator[list[Server]]:
    """Members that all accept writes."""
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(contextlib.closing(ReservedPort())) for _ in range(count)]
        servers = [stack.enter_context(start_server("mysql", _options(i, ports))) for i in range(count)]
        make_group(servers)
        yield servers


def _options(i: int, ports: Sequence[ReservedPort]) -> dict[str, str | int | bool | None]:
    settings = {
        "group_name": GROUP,
        "local_address": f"127.0.0.1:{ports[i].number}",
        "group_seeds": ",".join(f"127.0.0.1:{port.number}" for port in ports),
        "start_on_boot": False,
        "single_primary_mode": False,
        "enforce_update_everywhere_checks": True,
        "gtid_assignment_block_size": BLOCK,
        "recovery_get_public_key": True,
        "member_expel_timeout": 0,
    }
    return {
        "server_id": 31 + i,
        "plugin_load_add": "group_replication.so",
        "report_host": "127.0.0.1",
        **{f"loose_group_replication_{name}": value for name, value in settings.items()},
    }


def join(server: Server, *, is_first: bool = False) -> None:
    """Lets a server join its group. `is_first`: it makes the group."""
    if is_first:
        execute(server, "SET GLOBAL group_replication_bootstrap_group=ON")
    execute(server, f"START GROUP_REPLICATION USER='{server.user}', PASSWORD='{server.password}'")
    if is_first:
        execute(server, "SET GLOBAL group_replication_bootstrap_group=OFF")


def leave(*servers: Server) -> None:
    """Lets servers leave their group, if they are in one."""
    for server in servers:
        execute(server, "STOP GROUP_REPLICATION")


def make_group(servers: Sequence[Server]) -> None:
    """Makes a new group: all get what the first one has. Each must have left its group before."""
    for i, server in enumerate(servers):
        join(server, is_first=i == 0)
    await_online(servers)


def await_online(servers: Sequence[Server]) -> None:
    """Until each of these members sees all of them online, and no others."""
    for server in servers:
        await_states(server, ["ONLINE"] * len(servers))


def await_states(server: Server, wanted: list[str]) -> None:
    """Until a member sees the members of its group, itself too, in these states."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (states := sorted(_states(server))) != wanted:
        log = "" if server.process is None else server.process.log()[-3000:]
        assert time.monotonic() < deadline, (states, log)
        time.sleep(0.1)


def await_applied(servers: Sequence[Server]) -> None:
    """Until all members have the same transactions. Nobody may write meanwhile."""
    deadline = time.monotonic() + WAIT_SECONDS
    while len(found := {str(ask(server, "SELECT @@GLOBAL.gtid_executed")) for server in servers}) > 1:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def _states(server: Server) -> list[str]:
    query = "SELECT member_state FROM performance_schema.replication_group_members"
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return [str(state) for (state,) in cursor.fetchall()]


@contextmanager
def applying_stopped(server: Server, table: str) -> Iterator[None]:
    """Meanwhile this member applies nothing that others write to the table, nor what they write after that."""
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLES {table} READ")
        yield


def ask(server: Server, query: str) -> Any:
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0]


def execute(server: Server, *statements: str) -> None:
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
