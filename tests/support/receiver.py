"""A receiver of webhooks: a real HTTP server on this machine."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HANG = 0
"""In place of a status: the request is read, and not answered before the receiver ends."""


class Receiver:
    """Answers with `statuses` in turn, the last one for ever. `bodies`: what came, also what was refused."""

    def __init__(self, url: str, statuses: Sequence[int]) -> None:
        self.url = url
        self.bodies: list[dict[str, Any]] = []
        self.methods: list[str] = []
        self._statuses = statuses
        self._over = threading.Event()

    @property
    def events(self) -> list[str]:
        return [body["event"] for body in self.bodies]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("Content-Length", 0))
        self.methods.append(handler.command)
        if length:
            assert handler.headers["Content-Type"] == "application/json"
            self.bodies.append(json.loads(handler.rfile.read(length)))
        status = self._statuses[min(len(self.methods), len(self._statuses)) - 1]
        if status == HANG:
            self._over.wait()
            handler.close_connection = True
            return
        handler.send_response(status)
        if 300 <= status < 400:
            handler.send_header("Location", self.url)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    def end(self) -> None:
        self._over.set()


@contextmanager
def receiving(*statuses: int, path: str = "/hook") -> Iterator[Receiver]:
    """A receiver that answers with these statuses, 200 without any."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.answer(self)

        def do_GET(self) -> None:
            receiver.answer(self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(f"http://127.0.0.1:{server.server_port}{path}", statuses or (200,))
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield receiver
        finally:
            receiver.end()
            server.shutdown()
            thread.join()
