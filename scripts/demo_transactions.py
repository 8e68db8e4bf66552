"""Transactions of the shop's customers and clerks in MySQL and MariaDB. PostgreSQL's are in demo_transactions_postgres.py.

Every kind of change that is hard for a copy happens many times: transactions over several tables, keys that change,
rows that are deleted and come back, savepoints, one statement that changes many rows.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Transaction = Callable[[Any, random.Random, int], None]
"""Arguments: cursor, random numbers, number of rows that were loaded."""


@dataclass(frozen=True, slots=True)
class Business:
    """A writer's work. `session`: its first statement. `weights`: the relative frequency of each transaction."""

    session: str
    weights: Mapping[Transaction, int]


def _buy(cursor: Any, chance: random.Random, rows: int) -> None:
    """Changes four tables in one transaction."""
    customer = chance.randint(1, rows // 10)
    cursor.execute(
        "INSERT INTO orders (customer_id, status, total, placed_at, note) VALUES (%s, 'new', 0, NOW(6), %s)",
        (customer, chance.choice([None, "", "bitte läuten", "お願いします"])),
    )
    order = cursor.lastrowid
    fill_order(cursor, chance, order, customer)
    cursor.execute(
        "INSERT INTO events VALUES (%s, 'buy', JSON_OBJECT('order', %s), NOW(3), NULL)", (chance.randbytes(16), order)
    )


def fill_order(cursor: Any, chance: random.Random, order: int, customer: int) -> None:
    """Adds the order's lines and total, and the customer's points."""
    lines = [(order, i, f"sku-{chance.randrange(10000)}", chance.randint(1, 9), chance.randrange(10000) / 100)
             for i in range(chance.randint(1, 5))]  # fmt: skip
    cursor.executemany("INSERT INTO order_items VALUES (%s, %s, %s, %s, %s)", lines)
    cursor.execute(
        "UPDATE orders SET total = (SELECT SUM(quantity * unit_price) FROM order_items WHERE order_id = %s) "
        "WHERE id = %s",
        (order, order),
    )
    cursor.execute("UPDATE customers SET points = points + 1 WHERE id = %s", (customer,))


def _ship(cursor: Any, chance: random.Random, rows: int) -> None:
    cursor.execute(
        "UPDATE orders SET status = 'sent', changed_at = NOW(3) WHERE id >= %s ORDER BY id LIMIT 3",
        (some_order(chance, rows),),
    )


def cancel(cursor: Any, chance: random.Random, rows: int) -> None:
    """Deletes from two tables."""
    order = some_order(chance, rows)
    cursor.execute("DELETE FROM order_items WHERE order_id = %s", (order,))
    cursor.execute("DELETE FROM orders WHERE id = %s", (order,))


def _rename_product(cursor: Any, chance: random.Random, rows: int) -> None:
    """Changes a key, sometimes only its case, which leaves it equal in this collation."""
    rename = chance.choice(["UPPER(sku)", "LOWER(sku)", "CONCAT('new-', sku)", "TRIM(LEADING 'new-' FROM sku)"])
    cursor.execute(
        f"UPDATE products SET sku = {rename}, attributes = JSON_SET(attributes, '$.seen', NOW(3)) "
        "WHERE title = %s AND CHAR_LENGTH(sku) < 34",
        (f"No. {chance.randint(1, rows // 25)}",),
    )


def move_customer(cursor: Any, chance: random.Random, rows: int) -> None:
    """Changes a key, which moves the row to another split."""
    cursor.execute(
        "UPDATE customers SET id = %s WHERE id = %s", (chance.randint(1, rows // 8), chance.randint(1, rows // 8))
    )


def _renumber_lines(cursor: Any, chance: random.Random, rows: int) -> None:
    """Shifts keys by one: each new key except the last was another row's old key."""
    cursor.execute(
        "UPDATE order_items SET line_no = line_no + 1 WHERE order_id = %s ORDER BY line_no DESC",
        (some_order(chance, rows),),
    )


def _replace_event(cursor: Any, chance: random.Random, rows: int) -> None:
    """Deletes a key and inserts it again in one transaction."""
    cursor.execute(
        "SELECT event_id FROM events WHERE event_id >= %s ORDER BY event_id LIMIT 1", (chance.randbytes(16),)
    )
    if (found := cursor.fetchone()) is not None:
        cursor.execute("DELETE FROM events WHERE event_id = %s", found)
        cursor.execute("INSERT INTO events VALUES (%s, 'again', NULL, NOW(3), %s)", (*found, chance.randbytes(9)))


def _reprice(cursor: Any, chance: random.Random, rows: int) -> None:
    """Changes both columns of a key, a day and a number, and rolls back to a savepoint."""
    weight = chance.randrange(max(1, rows // 30000)) / 8
    day = chance.randrange(900)
    cursor.execute("SAVEPOINT before_reprice")
    cursor.execute("DELETE FROM tariffs WHERE valid_from = '2015-01-01' + INTERVAL %s DAY", (day,))
    cursor.execute("ROLLBACK TO SAVEPOINT before_reprice")
    cursor.execute(
        "UPDATE tariffs SET valid_from = valid_from + INTERVAL 900 DAY, weight_kg = weight_kg + 0.001, "
        "price = price * 1.01 WHERE valid_from = '2015-01-01' + INTERVAL %s DAY AND weight_kg = %s",
        (day, weight),
    )


def stock_taking(cursor: Any, chance: random.Random, rows: int) -> None:
    """Changes several hundred rows in one statement."""
    cursor.execute(
        "UPDATE order_items SET quantity = quantity + 1 WHERE order_id BETWEEN %s AND %s + 300",
        (order := some_order(chance, rows), order),
    )


def some_order(chance: random.Random, rows: int) -> int:
    """Returns the id of a loaded order. Orders with even numbers have low ids, those with odd numbers have high ids."""
    number = chance.randint(1, rows * 3 // 10)
    return number * 3 + (0 if number % 2 == 0 else 4_000_000_000)


MYSQL = Business(
    "SET time_zone = '+00:00', innodb_lock_wait_timeout = 2",
    {
        _buy: 42,
        _ship: 21,
        cancel: 8,
        _rename_product: 6,
        move_customer: 6,
        _renumber_lines: 5,
        _replace_event: 5,
        _reprice: 5,
        stock_taking: 1,
    },
)
