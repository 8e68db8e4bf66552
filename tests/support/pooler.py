"""A connection to PostgreSQL through a proxy that invents session ids, as poolers do (BackendKeyData of the protocol)."""

import contextlib
import socket
import threading
from collections.abc import Iterator

_KEY_DATA = b"K\x00\x00\x00\x0c"


@contextlib.contextmanager
def pooler(host: str, port: int) -> Iterator[int]:
    """Yields the proxy's port on 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_serve, args=(listening, host, port), daemon=True).start()
        yield listening.getsockname()[1]


def _serve(listening: socket.socket, host: str, port: int) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listening.accept()
            server = socket.create_connection((host, port))
            for pair in ((client, server), (server, client)):
                threading.Thread(target=_copy, args=pair, daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError), source, target:
        while chunk := source.recv(1 << 16):
            at = chunk.find(_KEY_DATA)
            if at >= 0:
                chunk = chunk[: at + 5] + b"\x7f\xff\xff\xff" + chunk[at + 9 :]
            target.sendall(chunk)
