"""The shop's customers and clerks, who write while the job copies."""

import contextlib
import random
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg2
import pymysql
from psycopg2 import errorcodes
from pymysql.constants import ER

from devtools.server import Server
from scripts.demo_table import DATABASE
from scripts.demo_transactions import MYSQL, Business
from scripts.demo_transactions_postgres import POSTGRES

WRITERS = 3
TRANSACTIONS_PER_SECOND = 60
"""The average rate of each writer, at most."""
ROLLED_BACK_SHARE = 0.05
"""The share of all transactions that are rolled back on purpose."""

BUSINESS: Mapping[str, Business] = {"mysql": MYSQL, "mariadb": MYSQL, "postgres": POSTGRES}

# Errors of two writers that change the same rows. The transaction is rolled back and the writer goes on with another one.
COLLISIONS = {
    ER.DUP_ENTRY,
    ER.LOCK_DEADLOCK,
    ER.LOCK_WAIT_TIMEOUT,
    errorcodes.UNIQUE_VIOLATION,
    errorcodes.DEADLOCK_DETECTED,
    errorcodes.LOCK_NOT_AVAILABLE,
}


class Writers:
    """Threads that write: `with Writers(server, row_count) as writers:`, until `stop()` or the end of the block.

    An error that is not a collision ends all writers and is raised by `stop`.
    """

    def __init__(self, server: Server, row_count: int) -> None:
        self._server, self._row_count = server, row_count
        self._business = BUSINESS[server.kind]
        self._ending = threading.Event()
        self._counts = [[0, 0] for _ in range(WRITERS)]
        self._threads = ThreadPoolExecutor(WRITERS, thread_name_prefix="writer")
        self._running: list[Future[None]] = []

    def __enter__(self) -> "Writers":
        self._running = [self._threads.submit(self._write, i) for i in range(WRITERS)]
        for writer in self._running:
            writer.add_done_callback(lambda _: self._ending.set())
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._threads.shutdown()

    @property
    def committed(self) -> int:
        """The number of transactions that were committed so far."""
        return sum(committed for committed, _ in self._counts)

    @property
    def rolled_back(self) -> int:
        """The number of transactions that were rolled back, on purpose or after a collision."""
        return sum(rolled_back for _, rolled_back in self._counts)

    def stop(self) -> None:
        self._ending.set()
        for writer in self._running:
            writer.result()

    def _write(self, index: int) -> None:
        with contextlib.closing(self._server.connect(DATABASE)) as connection, connection.cursor() as cursor:
            cursor.execute(self._business.session)
            if self._server.kind == "postgres":
                connection.autocommit = False
            else:
                connection.autocommit(False)
            self._write_on(connection, cursor, index)

    def _write_on(self, connection: Any, cursor: Any, index: int) -> None:
        chance = random.Random(index)
        kinds, weights = list(self._business.weights), list(self._business.weights.values())
        while not self._ending.wait(chance.uniform(0, 2 / TRANSACTIONS_PER_SECOND)):
            (kind,) = chance.choices(kinds, weights)
            try:
                kind(cursor, chance, self._row_count)
                wanted = chance.random() >= ROLLED_BACK_SHARE
            except (pymysql.MySQLError, psycopg2.Error) as error:
                if (error.pgcode if isinstance(error, psycopg2.Error) else error.args[0]) not in COLLISIONS:
                    raise
                wanted = False
            if wanted:
                connection.commit()
            else:
                connection.rollback()
            self._counts[index][not wanted] += 1
