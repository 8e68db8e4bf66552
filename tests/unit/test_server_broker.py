"""One set of servers for all worker processes of a test run."""

import threading
from typing import Any

import pytest

from devtools.server import Server
from devtools.server_packages import ServerUnavailableError
from tests.support import server_broker
from tests.support.server_broker import ServerBroker, ServerWanted, ask_broker


def test_all_workers_get_the_one_server_and_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def start(wanted: ServerWanted) -> Server:
        started.append(wanted)
        if wanted.kind == "postgres":
            raise ServerUnavailableError("none here")
        return Server(wanted.kind, "mysql://root@127.0.0.1:1/", version="9")

    monkeypatch.setattr(server_broker, "shared_server", start)
    broker = ServerBroker()
    try:
        answers: list[Any] = []
        wanted = ServerWanted.of("mysql", {"b": 1, "a": 2}, None)
        workers = [
            threading.Thread(target=lambda: answers.append(ask_broker(broker.address, broker.key, wanted)))
            for _ in range(4)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(answers) == 4
        assert len(set(answers)) == 1
        assert started == [ServerWanted.of("mysql", {"a": 2, "b": 1}, None)]
        for _ in range(2):
            with pytest.raises(ServerUnavailableError, match="none here"):
                ask_broker(broker.address, broker.key, ServerWanted("postgres"))
        assert len(started) == 2
    finally:
        broker.close()
