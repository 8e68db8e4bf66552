"""One set of database servers for a whole test run, however many worker processes share it.

The process that controls the run holds a broker: it starts a server when the first test asks for it, and all of them
end with it. pytest-xdist's workers ask over a Unix socket and get a server that they can use but not stop.
"""

import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from scripts.server import Server
from scripts.server_commands import Option
from scripts.server_packages import ServerUnavailableError
from scripts.servers import given_server, start_server


@dataclass(frozen=True, slots=True)
class ServerWanted:
    """Which server: equal ones are shared. `options` are sorted pairs of name and value."""

    kind: str
    options: tuple[tuple[str, Option], ...] = ()
    version: str | None = None

    @classmethod
    def of(cls, kind: str, options: Mapping[str, Option], version: str | None) -> "ServerWanted":
        return cls(kind, tuple(sorted(options.items())), version)


@dataclass(frozen=True, slots=True)
class ServerFound:
    url: str
    version: str
    data_folder: Path | None


class ServerBroker:
    """Lives in the controlling process. `address` and `key` are what a worker needs to ask."""

    def __init__(self) -> None:
        self.key = secrets.token_bytes(16)
        self.servers: dict[ServerWanted, Server | ServerUnavailableError] = {}
        self.locks: dict[ServerWanted, threading.Lock] = {}
        self.guard = threading.Lock()
        self.listener = Listener(family="AF_UNIX", authkey=self.key)
        self.address = str(self.listener.address)
        self.acceptor = threading.Thread(target=self._accept, name="server broker", daemon=True)
        self.acceptor.start()

    def find(self, wanted: ServerWanted) -> ServerFound:
        """The server, started if it isn't yet; one that could not be started fails again without another try."""
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
            wanted = connection.recv()
            if wanted is None:
                connection.close()
                return
            threading.Thread(target=self._answer, args=(connection, wanted), daemon=True).start()

    def _answer(self, connection: Connection, wanted: ServerWanted) -> None:
        with connection:
            try:
                connection.send(self.find(wanted))
            except ServerUnavailableError as error:
                connection.send(error)


def ask_broker(address: str, key: bytes, wanted: ServerWanted) -> ServerFound:
    """A worker's side."""
    with Client(address, authkey=key) as connection:
        connection.send(wanted)
        answer = connection.recv()
    if isinstance(answer, ServerUnavailableError):
        raise answer
    assert isinstance(answer, ServerFound)
    return answer


def shared_server(wanted: ServerWanted) -> Server:
    """The server given by URL where it fits, else one of our own."""
    try:
        given = given_server(wanted.kind, dict(wanted.options), wanted.version)
    except ServerUnavailableError:  # start_server names the reason if it can't start one either
        given = None
    return given or start_server(wanted.kind, dict(wanted.options), wanted.version)
