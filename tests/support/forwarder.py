"""A port that leads to one server, and later to another: what a DNS name or a load balancer does in a failover."""

import contextlib
import select
import socket
import threading
from collections.abc import Iterator

from devtools.server import Server


class Forwarder:
    """`server`: where new connections lead. `port`: on 127.0.0.1. While `passes` is not set, nothing comes through, and neither
    side sees the other one's end: as if a host was gone."""

    def __init__(self, listening: socket.socket, server: Server) -> None:
        self.server = server
        self.passes = threading.Event()
        self.passes.set()
        self.port: int = listening.getsockname()[1]

    def serve(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listening.accept()
                try:
                    server = socket.create_connection((self.server.host, self.server.port))
                except OSError:
                    client.close()
                    continue
                threading.Thread(target=_carry, args=(client, server, self.passes), daemon=True).start()


@contextlib.contextmanager
def forwarding(server: Server) -> Iterator[Forwarder]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        forwarder = Forwarder(listening, server)
        threading.Thread(target=forwarder.serve, args=(listening,), daemon=True).start()
        try:
            yield forwarder
        finally:
            forwarder.passes.set()


def _carry(client: socket.socket, server: socket.socket, passes: threading.Event) -> None:
    """Copies in both directions until one side closes."""
    with contextlib.suppress(OSError), client, server:
        while True:
            for readable in select.select([client, server], [], [])[0]:
                chunk = readable.recv(1 << 16)
                passes.wait()
                if not chunk:
                    return
                (server if readable is client else client).sendall(chunk)
