"""The database servers of a test run, kept by one process for all worker processes.

The process that controls the run holds a broker: it starts a server when the first test asks for it, and all of them
end with it. pytest-xdist's workers ask over a Unix socket and get a server that they can use but not stop.

A server that has died is noticed when a failed test asks about it (tests/support/server_deaths.py). The broker starts it
again, on the same port and with its data.
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from devtools.server import Server
from devtools.server_commands import Option
from devtools.server_packages import ServerUnavailableError
from devtools.servers import given_server, start_server

MAX_LOG_CHARACTERS = 3000


@dataclass(frozen=True, slots=True)
class ServerWanted:
    """Which server: equal ones are shared. `options` are sorted pairs of name and value, `worker` is the worker process that
    has the server to itself, empty if all share it."""

    kind: str
    options: tuple[tuple[str, Option], ...] = ()
    version: str | None = None
    worker: str = ""

    @classmethod
    def of(cls, kind: str, options: Mapping[str, Option], version: str | None, worker: str = "") -> "ServerWanted":
        return cls(kind, tuple(sorted(options.items())), version, worker)


@dataclass(frozen=True, slots=True)
class ServerFound:
    url: str
    version: str
    data_folder: Path | None


@dataclass(frozen=True, slots=True)
class DeathsAsked:
    """A question: which of these servers died after this time, in `time.monotonic` of this machine?"""

    servers: frozenset[ServerWanted]
    since: float


@dataclass(frozen=True, slots=True)
class ServerDeath:
    """A shared server's process ended by itself. `restarted_at` is when it took connections again."""

    wanted: ServerWanted
    exit_code: int
    log_end: str
    restarted_at: float


class ServerBroker:
    """The broker in the controlling process. `address` and `key` are what a worker needs to ask."""

    def __init__(self) -> None:
        self.key = secrets.token_bytes(16)
        self.servers: dict[ServerWanted, Server | ServerUnavailableError] = {}
        self.locks: dict[ServerWanted, threading.Lock] = {}
        self.deaths: list[ServerDeath] = []
        self.guard = threading.Lock()
        self.listener = Listener(family="AF_UNIX", authkey=self.key)
        self.address = str(self.listener.address)
        self.acceptor = threading.Thread(target=self._accept, name="server broker", daemon=True)
        self.acceptor.start()

    def find(self, wanted: ServerWanted) -> ServerFound:
        """The server, started if it isn't yet. One that could not be started fails again without another try."""
        with self.guard:
            lock = self.locks.setdefault(wanted, threading.Lock())
        with lock:
            if wanted not in self.servers:
                try:
                    self.servers[wanted] = shared_server(wanted)
                except ServerUnavailableError as error:
                    self.servers[wanted] = error
            server = self.servers[wanted]
        if isinstance(server, ServerUnavailableError):
            raise ServerUnavailableError(*server.args)
        return ServerFound(server.url, server.version, server.data_folder)

    def find_deaths(self, asked: DeathsAsked) -> tuple[ServerDeath, ...]:
        """The servers asked about that died, and were started again, since that moment.

        A server that can't be started again is left dead: the tests that use it fail.
        """
        for wanted in asked.servers:
            with self.locks[wanted]:
                server = self.servers[wanted]
                if isinstance(server, Server):
                    self._restart_if_dead(wanted, server)
        return tuple(
            death for death in self.deaths if death.wanted in asked.servers and death.restarted_at > asked.since
        )

    def _restart_if_dead(self, wanted: ServerWanted, server: Server) -> None:
        if server.process is None or (exit_code := server.process.exit_code()) is None:
            return
        log_end = server.process.log()[-MAX_LOG_CHARACTERS:]
        with contextlib.suppress(ServerUnavailableError):
            server.start()
            self.deaths.append(ServerDeath(wanted, exit_code, log_end, time.monotonic()))

    def close(self) -> None:
        with Client(self.address, authkey=self.key) as connection:
            connection.send(None)
        self.acceptor.join()
        self.listener.close()
        for lock in self.locks.values():
            with lock:  # a start that is still going on
                pass
        for server in self.servers.values():
            if isinstance(server, Server):
                server.close()

    def _accept(self) -> None:
        while True:
            connection = self.listener.accept()
            question = connection.recv()
            if question is None:
                connection.close()
                return
            threading.Thread(target=self._answer, args=(connection, question), daemon=True).start()

    def _answer(self, connection: Connection, question: ServerWanted | DeathsAsked) -> None:
        with connection:
            try:
                connection.send(
                    self.find_deaths(question) if isinstance(question, DeathsAsked) else self.find(question)
                )
            except ServerUnavailableError as error:
                connection.send(error)


def ask_broker(address: str, key: bytes, wanted: ServerWanted) -> ServerFound:
    """Asks the broker for a server, from a worker."""
    answer = _ask(address, key, wanted)
    assert isinstance(answer, ServerFound)
    return answer


def ask_for_deaths(address: str, key: bytes, asked: DeathsAsked) -> tuple[ServerDeath, ...]:
    """Asks the broker for deaths of servers, from a worker."""
    answer = _ask(address, key, asked)
    assert isinstance(answer, tuple)
    return answer


def _ask(address: str, key: bytes, question: ServerWanted | DeathsAsked) -> Any:
    with Client(address, authkey=key) as connection:
        connection.send(question)
        answer = connection.recv()
    if isinstance(answer, ServerUnavailableError):
        raise answer
    return answer


def shared_server(wanted: ServerWanted) -> Server:
    """The server given by URL if it fits, else one started for the tests."""
    try:
        given = given_server(wanted.kind, dict(wanted.options), wanted.version)
    except ServerUnavailableError:  # start_server names the reason if it can't start one either
        given = None
    return given or start_server(wanted.kind, dict(wanted.options), wanted.version)
