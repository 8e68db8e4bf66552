"""A Galera cluster of two MariaDB nodes."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pymysql
import pytest

from devtools.server import Server
from devtools.server_process import ReservedPort, SupervisedProcess
from devtools.servers import start_server
from tests.support.group_replication import WAIT_SECONDS, execute

TRANSFER = """#!/bin/bash
# A node that joins gets all it lacks as write sets, so there are no files to transfer. Nodes tell each other the position.
while [ $# -gt 0 ]; do
  case "$1" in
    --role) role="$2" ;; --address) address="$2" ;; --gtid) gtid="$2" ;;
  esac
  shift
done
if [ "$role" = joiner ]; then
  answer="$(mktemp -u "$TIDEMARK_TRANSFERS/XXXXXXXX")"
  echo "ready 127.0.0.1:1/${answer##*/}"
  until [ -s "$answer" ]; do sleep 0.05; done
  cat "$answer"
else
  answer="$TIDEMARK_TRANSFERS/${address##*/}"
  echo "$gtid" > "$answer.new"
  mv "$answer.new" "$answer"
  echo "done $gtid"
fi
"""


@contextmanager
def cluster(folder: Path, server_ids: tuple[int, int] = (41, 42)) -> Iterator[list[Server]]:
    """Two nodes that accept writes. GTIDs are the cluster's (wsrep_gtid_mode)."""
    script = folder / "wsrep_sst_tidemark"
    script.write_text(TRANSFER)
    script.chmod(0o755)
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{os.environ['PATH']}:{folder}")
        patch.setenv("TIDEMARK_TRANSFERS", str(folder))
        ports = [stack.enter_context(contextlib.closing(ReservedPort())).number for _ in range(2)]
        options = [
            {"server_id": server_id, "gtid_domain_id": 41 + i, "log_slave_updates": True}
            for i, server_id in enumerate(server_ids)
        ]
        nodes = [stack.enter_context(start_server("mariadb", each, "10.11-plugins")) for each in options]
        for node in nodes:
            node.stop()
        _start(nodes[0], ports[0], "gcomm://", size=1)
        nodes[0].stop()
        _copy_data(nodes[0], nodes[1])
        _start(nodes[0], ports[0], "gcomm://", size=1)
        _start(nodes[1], ports[1], f"gcomm://127.0.0.1:{ports[0]}", size=2)
        yield nodes


def _copy_data(first: Server, second: Server) -> None:
    """The second node has the first one's files, but for the log."""
    assert first.data_folder is not None
    assert second.data_folder is not None
    shutil.rmtree(second.data_folder)
    own = shutil.ignore_patterns("binlog.*", "galera.cache", "gvwstate.dat")
    shutil.copytree(first.data_folder, second.data_folder, ignore=own)


def _start(node: Server, port: int, address: str, *, size: int) -> None:
    process = node.process
    assert isinstance(process, SupervisedProcess)
    provider = {
        "base_port": port,
        "gmcast.listen_addr": f"tcp://127.0.0.1:{port}",
        "evs.keepalive_period": "PT0.5S",
        "evs.inactive_check_period": "PT0.5S",
        "evs.suspect_timeout": "PT2S",
        "evs.inactive_timeout": "PT4S",
    }
    process.options = {
        **process.options,
        "wsrep_on": True,
        "wsrep_provider": str(process.unpacked.root / "usr/lib/galera/libgalera_smm.so"),
        "wsrep_provider_options": ";".join(f"{name}={value}" for name, value in provider.items()),
        "wsrep_cluster_address": address,
        "wsrep_node_address": "127.0.0.1",
        "wsrep_sst_method": "tidemark",
        "wsrep_gtid_mode": True,
        "wsrep_gtid_domain_id": 40,
        "innodb_autoinc_lock_mode": 2,
    }
    node.start()
    await_node(node, size)


def await_node(node: Server, size: int) -> None:
    """Until a node is ready in a cluster of so many."""
    wanted = {"wsrep_ready": "ON", "wsrep_cluster_size": str(size)}
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := _status(node, wanted)) != wanted:
        assert time.monotonic() < deadline, (found, "" if node.process is None else node.process.log()[-3000:])
        time.sleep(0.1)


def _status(node: Server, names: dict[str, str]) -> dict[str, str]:
    try:
        with contextlib.closing(node.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW GLOBAL STATUS LIKE 'wsrep%'")
            return {name: value for name, value in cursor.fetchall() if name in names}
    except pymysql.MySQLError:  # while it joins
        return {}


def give_server_id(node: Server, server_id: int) -> None:
    """Restarts one of two nodes with another server_id."""
    assert isinstance(node.process, SupervisedProcess)
    node.process.options = {**node.process.options, "server_id": server_id}
    node.restart()
    await_node(node, 2)


def lose_other_node(node: Server, other: Server) -> None:
    """Kills the other one of two nodes, and makes this one the cluster."""
    other.kill()
    deadline = time.monotonic() + WAIT_SECONDS
    while _status(node, {"wsrep_cluster_status": ""}) == {"wsrep_cluster_status": "Primary"}:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    execute(node, "SET GLOBAL wsrep_provider_options = 'pc.bootstrap=YES'")
    await_node(node, 1)
