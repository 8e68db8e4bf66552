"""Random transactions whose traces can be checked row by row.

Every row has a `uid` that never changes and a `version` that grows by one with each UPDATE of the row, also when its
key changes. A uid is used once: a row that is deleted and inserted again under the same key gets a new one. So in a
copy's history a hole, a repeat or a step back of any single row is visible (tests/support/history.py).
"""

import contextlib
import itertools
import random
import threading
from typing import Any

import pymysql

from tests.support.servers import Database

TABLES = {
    "orders": "id BIGINT NOT NULL AUTO_INCREMENT, uid BIGINT NOT NULL, version INT NOT NULL, note VARCHAR(200), "
    "amount DECIMAL(12,2), at DATETIME(6), PRIMARY KEY (id)",
    "customers": "code VARCHAR(40) COLLATE utf8mb4_general_ci NOT NULL, uid BIGINT NOT NULL, version INT NOT NULL, "
    "note TEXT, PRIMARY KEY (code)",
    "order_lines": "order_id INT NOT NULL, line_no SMALLINT NOT NULL, uid BIGINT NOT NULL, version INT NOT NULL, "
    "quantity INT UNSIGNED, note VARBINARY(60), PRIMARY KEY (order_id, line_no)",
}
KEYS = {"orders": ("id",), "customers": ("code",), "order_lines": ("order_id", "line_no")}
_TRANSIENT = {1205, 1213}  # lock wait timeout, deadlock


class Uids:
    """Numbers that no other caller gets."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def take(self, count: int) -> list[int]:
        with self._lock:
            return list(itertools.islice(self._numbers, count))


def create_tables(database: Database, *, rows: int, uids: Uids) -> None:
    """Each table with about `rows` rows."""
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        for name, columns in TABLES.items():
            cursor.execute(f"CREATE TABLE {name} ({columns}) ENGINE=InnoDB")
        generator = random.Random(rows)
        for start in range(0, rows, 5000):
            count = min(5000, rows - start)
            cursor.executemany(
                "INSERT INTO orders (uid, version, note, amount, at) VALUES (%s, 1, %s, %s, NOW(6))",
                [(uid, f"note {uid}", generator.randrange(10**6) / 100) for uid in uids.take(count)],
            )
            cursor.executemany(
                "INSERT INTO customers (code, uid, version, note) VALUES (%s, %s, 1, %s)",
                [(_code(generator, uid), uid, "x" * (uid % 50)) for uid in uids.take(count)],
            )
            cursor.executemany(
                "INSERT INTO order_lines (order_id, line_no, uid, version, quantity) VALUES (%s, %s, %s, 1, %s)",
                [((start + i) // 4, i % 4, uid, uid % 100) for i, uid in enumerate(uids.take(count))],
            )


def _code(generator: random.Random, uid: int) -> str:
    return f"{generator.choice('aAbBéÉßzZ_-~ ')}{generator.randrange(1000)}-{uid}"


class Writers:
    """`count` threads that write until `stop`. Errors other than deadlocks are raised by `stop`."""

    def __init__(self, database: Database, uids: Uids, *, count: int, seed: int, pause_seconds: float = 0.0) -> None:
        self._database = database
        self._uids = uids
        self._stop = threading.Event()
        self._pause_seconds = pause_seconds
        self._errors: list[BaseException] = []
        self.transactions = 0
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed}/{number}"),), daemon=True)
            for number in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def __enter__(self) -> "Writers":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, generator: random.Random) -> None:
        try:
            with contextlib.closing(self._database.connect(autocommit=False)) as connection:
                while not self._stop.wait(self._pause_seconds):
                    self._transaction(connection, generator)
        except Exception as error:  # noqa: BLE001 -- raised again by `stop`
            self._errors.append(error)

    def _transaction(self, connection: Any, generator: random.Random) -> None:
        try:
            with connection.cursor() as cursor:
                for _ in range(generator.choice((1, 1, 1, 2, 4))):
                    if generator.random() < 0.1:
                        cursor.execute("SAVEPOINT s")
                        self._change(cursor, generator)
                        cursor.execute("ROLLBACK TO SAVEPOINT s")
                    self._change(cursor, generator)
            if generator.random() < 0.1:
                connection.rollback()
            else:
                connection.commit()
                self.transactions += 1
        except (pymysql.err.OperationalError, pymysql.err.IntegrityError) as error:
            connection.rollback()
            if error.args[0] not in _TRANSIENT and not isinstance(error, pymysql.err.IntegrityError):
                raise

    def _change(self, cursor: Any, generator: random.Random) -> None:
        generator.choice(
            (self._insert, self._insert, self._update, self._update, self._update_many, self._move, self._delete,
             self._replace)
        )(cursor, generator)  # fmt: skip

    def _insert(self, cursor: Any, generator: random.Random) -> None:
        count = generator.choice((1, 1, 3, 40))
        uids = self._uids.take(count)
        match generator.randrange(3):
            case 0:
                cursor.executemany(
                    "INSERT INTO orders (uid, version, note, amount, at) VALUES (%s, 1, %s, 1.5, NOW(6))",
                    [(uid, f"new {uid}") for uid in uids],
                )
            case 1:
                cursor.executemany(
                    "INSERT INTO customers (code, uid, version, note) VALUES (%s, %s, 1, NULL)",
                    [(_code(generator, uid), uid) for uid in uids],
                )
            case _:
                order = generator.randrange(-50, 10**6)
                cursor.executemany(
                    "INSERT INTO order_lines (order_id, line_no, uid, version, quantity) VALUES (%s, %s, %s, 1, 1)",
                    [(order, number, uid) for number, uid in enumerate(uids)],
                )

    def _some_key(self, cursor: Any, generator: random.Random, table: str) -> tuple[Any, ...] | None:
        keys, start = {
            "orders": ("id", (generator.randrange(1, 10**5),)),
            "customers": ("code", (_code(generator, 0),)),
            "order_lines": ("order_id, line_no", (generator.randrange(10**5), generator.randrange(4))),
        }[table]
        first = keys.split(",")[0]
        order = generator.choice(("ASC", "DESC"))
        comparison = ">=" if order == "ASC" else "<="
        cursor.execute(
            f"SELECT {keys} FROM {table} WHERE {first} {comparison} %s ORDER BY {keys.replace(',', f' {order},')} "
            f"{order} LIMIT 1",
            start[:1],
        )
        row: tuple[Any, ...] | None = cursor.fetchone()
        return row

    def _where(self, table: str) -> str:
        return {"orders": "id = %s", "customers": "code = %s", "order_lines": "order_id = %s AND line_no = %s"}[table]

    def _update(self, cursor: Any, generator: random.Random) -> None:
        table = generator.choice(list(TABLES))
        key = self._some_key(cursor, generator, table)
        if key is not None:
            cursor.execute(
                f"UPDATE {table} SET version = version + 1, note = %s WHERE {self._where(table)}",
                (f"u{generator.randrange(10**6)}", *key),
            )

    def _update_many(self, cursor: Any, generator: random.Random) -> None:
        start = generator.randrange(10**5)
        cursor.execute(
            "UPDATE orders SET version = version + 1, amount = amount + 0.01 WHERE id BETWEEN %s AND %s",
            (start, start + generator.choice((2, 20, 300))),
        )

    def _move(self, cursor: Any, generator: random.Random) -> None:
        table = generator.choice(list(TABLES))
        key = self._some_key(cursor, generator, table)
        if key is None:
            return
        change, new = {
            "orders": ("id = %s", (generator.randrange(1, 3 * 10**6),)),
            "customers": ("code = %s", (_code(generator, generator.randrange(10**9)),)),
            "order_lines": ("order_id = %s", (generator.randrange(-(10**5), 10**6),)),
        }[table]
        cursor.execute(f"UPDATE {table} SET version = version + 1, {change} WHERE {self._where(table)}", (*new, *key))

    def _delete(self, cursor: Any, generator: random.Random) -> None:
        table = generator.choice(list(TABLES))
        key = self._some_key(cursor, generator, table)
        if key is not None:
            cursor.execute(f"DELETE FROM {table} WHERE {self._where(table)}", key)

    def _replace(self, cursor: Any, generator: random.Random) -> None:
        """Delete and insert the same key in one transaction; the new row is another one."""
        key = self._some_key(cursor, generator, "orders")
        if key is not None:
            cursor.execute("DELETE FROM orders WHERE id = %s", key)
            if cursor.rowcount:
                cursor.execute(
                    "INSERT INTO orders (id, uid, version, note) VALUES (%s, %s, 1, 'again')",
                    (*key, *self._uids.take(1)),
                )
