"""A connection to a MySQL or MariaDB server through a proxy that rewrites what it passes on."""

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator

from devtools.server import Server

Rewrite = Callable[[bytes], bytes]
"""Returns as many bytes as it gets: the packets have their lengths before them."""


@contextlib.contextmanager
def rewriting(server: Server, *, of_client: Rewrite = bytes, of_server: Rewrite = bytes) -> Iterator[int]:
    """Yields the proxy's port on 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=_serve, args=(listening, server, of_client, of_server), daemon=True)
        serving.start()
        yield listening.getsockname()[1]


def replacing(text: str, other: str) -> Rewrite:
    """`other` is filled up with spaces."""
    assert len(other) <= len(text)
    return lambda chunk: chunk.replace(text.encode(), other.encode().ljust(len(text)))


def closing_at(pattern: bytes) -> Rewrite:
    """Breaks connections whose client sends such a packet."""

    def rewrite(chunk: bytes) -> bytes:
        if re.search(pattern, chunk, re.S):
            raise ConnectionAbortedError
        return chunk

    return rewrite


def doing_at(pattern: bytes, action: Callable[[], object]) -> Rewrite:
    """Does something before the first packet of this form passes."""
    done: list[bytes] = []

    def rewrite(chunk: bytes) -> bytes:
        if not done and re.search(pattern, chunk, re.S):
            done.append(chunk)
            action()
        return chunk

    return rewrite


def _serve(listening: socket.socket, server: Server, of_client: Rewrite, of_server: Rewrite) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listening.accept()
            other = socket.create_connection((server.host, server.port))
            for pair in ((client, other, of_client), (other, client, of_server)):
                threading.Thread(target=_copy, args=pair, daemon=True).start()


def _copy(source: socket.socket, target: socket.socket, rewrite: Rewrite) -> None:
    with source, target:
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 16):
                target.sendall(rewrite(chunk))
        for end in (source, target):  # the other thread waits for one of them: closing alone would leave it open
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
