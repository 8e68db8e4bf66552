"""A private server ends with the process that started it, however that one ends."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.server import Server
from devtools.server_commands import merged_options
from devtools.server_packages import ServerUnavailableError, find_package, unpack
from devtools.server_process import SupervisedProcess
from devtools.server_supervisor import descendants
from devtools.servers import KINDS

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
END_TIMEOUT_MILLISECONDS = 30_000

PARENT = """
import json, os, sys, time
from devtools.servers import start_server
from devtools.server_supervisor import descendants
server = start_server(sys.argv[1])
process = server.process
if sys.argv[2] == "forked" and os.fork() == 0:
    os.close(1)
    while True:
        time.sleep(1)
print(json.dumps([str(process.folder), [process.supervisor.pid, *descendants(process.supervisor.pid)]]), flush=True)
sys.stdin.read()
"""


def environment() -> dict[str, str]:
    return {**os.environ, "TIDEMARK_TEST_SERVERS": "packages", "PYTHONPATH": str(ROOT)}


def wait_for_end(*pids: int) -> None:
    """Waits until all processes are gone, by the kernel's own notice."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        ended = poll.poll(END_TIMEOUT_MILLISECONDS)
        os.close(descriptor)
        assert ended, f"process {pid} still runs"


@contextlib.contextmanager
def parent_of_a_server(kind: str, how: str) -> Iterator[tuple["subprocess.Popen[bytes]", Path, list[int]]]:
    command = [sys.executable, "-c", PARENT, kind, how]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environment(), start_new_session=True
    ) as parent:
        try:
            assert parent.stdout is not None
            folder, pids = json.loads(parent.stdout.readline())
            yield parent, Path(folder), pids
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)


@pytest.mark.servers_in_turn("kind")
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_ends_with_a_parent_that_is_killed(kind: str) -> None:
    with parent_of_a_server(kind, "plain") as (parent, folder, pids):
        assert len(pids) >= 2
        assert folder.exists()
        parent.kill()
        wait_for_end(*pids)
        assert not folder.exists()


def test_a_child_of_the_killed_parent_that_holds_the_pipe_does_not_keep_the_server() -> None:
    with parent_of_a_server("mariadb", "forked") as (parent, folder, pids):
        parent.kill()
        wait_for_end(*pids)
        assert not folder.exists()


def test_a_server_ends_with_a_parent_that_just_leaves() -> None:
    with parent_of_a_server("mariadb", "plain") as (parent, folder, pids):
        assert parent.stdin is not None
        parent.stdin.close()
        assert parent.wait(30) == 0
        wait_for_end(*pids)
        assert not folder.exists()


def test_a_server_ends_when_its_supervisor_is_killed() -> None:
    process = SupervisedProcess(unpack(find_package("mariadb", None)), merged_options("mariadb", None))
    with Server.of_process("mariadb", process) as server:
        server.start()
        pids = list(descendants(process.supervisor.pid))
        assert pids
        process.supervisor.kill()
        wait_for_end(*pids)
        with pytest.raises(ServerUnavailableError, match="supervisor"):
            server.kill()
    assert not process.folder.exists()
    with pytest.raises(ServerUnavailableError, match="closed"):
        server.kill()


def test_postgres_runs_as_somebody_else_than_root() -> None:
    with parent_of_a_server("postgres", "plain") as (_, folder, _):
        pid = (folder / "data/postmaster.pid").read_text().split()[0]
        assert os.geteuid() != 0 or Path(f"/proc/{pid}").stat().st_uid != 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_the_url_and_stays_until_it_is_interrupted(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "devtools.servers", "start", "mariadb", "--option", "server_id=77"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=environment(), text=True) as running:
        try:
            assert running.stdout is not None
            server = Server("mariadb", running.stdout.readline().strip())
            with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT @@server_id")
                assert cursor.fetchone() == (77,)
            running.send_signal(number)
            assert running.wait(30) == 0
        finally:
            running.kill()
    with pytest.raises(Exception, match="onnect"):
        server.connect()
