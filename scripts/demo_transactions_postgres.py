"""Transactions of the shop's customers and clerks in PostgreSQL: the same as in demo_transactions.py."""

import random
import uuid
from typing import Any

from scripts.demo_transactions import Business, cancel, fill_order, move_customer, some_order, stock_taking


def _buy(cursor: Any, chance: random.Random, rows: int) -> None:
    """Changes four tables in one transaction."""
    customer = chance.randint(1, rows // 10)
    cursor.execute(
        "INSERT INTO orders (customer_id, status, total, placed_at, note) VALUES (%s, 'new', 0, clock_timestamp(), %s) "
        "RETURNING id",
        (customer, chance.choice([None, "", "bitte läuten", "お願いします", chance.randbytes(1500).hex()])),
    )
    (order,) = cursor.fetchone()
    fill_order(cursor, chance, order, customer)
    cursor.execute(
        "INSERT INTO events VALUES (%s, 'buy', jsonb_build_object('order', %s), clock_timestamp(), NULL)",
        (_event_id(chance), order),
    )


def _ship(cursor: Any, chance: random.Random, rows: int) -> None:
    cursor.execute(
        "UPDATE orders SET status = 'sent', changed_at = clock_timestamp() "
        "WHERE id IN (SELECT id FROM orders WHERE id >= %s ORDER BY id LIMIT 3)",
        (some_order(chance, rows),),
    )


def _rename_product(cursor: Any, chance: random.Random, rows: int) -> None:
    """Changes a key, sometimes only its case, which leaves it equal in this collation."""
    rename = chance.choice(["upper(sku)", "lower(sku)", "'new-' || sku", "ltrim(sku, 'new-')"])
    cursor.execute(
        f"UPDATE products SET sku = {rename}, "
        "attributes = jsonb_set(attributes, '{seen}', to_jsonb(clock_timestamp())) "
        "WHERE title = %s AND char_length(sku) < 34",
        (f"No. {chance.randint(1, rows // 25)}",),
    )


def _renumber_lines(cursor: Any, chance: random.Random, rows: int) -> None:
    """Shifts keys by one: each new key except the last was another row's old key."""
    order = some_order(chance, rows)
    cursor.execute("SELECT line_no FROM order_items WHERE order_id = %s ORDER BY line_no DESC FOR UPDATE", (order,))
    cursor.executemany(
        "UPDATE order_items SET line_no = line_no + 1 WHERE order_id = %s AND line_no = %s",
        [(order, line_no) for (line_no,) in cursor.fetchall()],
    )


def _replace_event(cursor: Any, chance: random.Random, rows: int) -> None:
    """Deletes a key and inserts it again in one transaction."""
    cursor.execute("SELECT event_id FROM events WHERE event_id >= %s ORDER BY event_id LIMIT 1", (_event_id(chance),))
    if (found := cursor.fetchone()) is not None:
        cursor.execute("DELETE FROM events WHERE event_id = %s", found)
        cursor.execute(
            "INSERT INTO events VALUES (%s, 'again', NULL, clock_timestamp(), %s)", (*found, chance.randbytes(9))
        )


def _reprice(cursor: Any, chance: random.Random, rows: int) -> None:
    """Changes both columns of a key, a day and a number, and rolls back to a savepoint."""
    weight = chance.randrange(max(1, rows // 30000)) / 8
    day = chance.randrange(900)
    cursor.execute("SAVEPOINT before_reprice")
    cursor.execute("DELETE FROM tariffs WHERE valid_from = date '2015-01-01' + %s", (day,))
    cursor.execute("ROLLBACK TO SAVEPOINT before_reprice")
    cursor.execute(
        "UPDATE tariffs SET valid_from = valid_from + 900, weight_kg = weight_kg + 0.001, price = price * 1.01 "
        "WHERE valid_from = date '2015-01-01' + %s AND weight_kg = %s",
        (day, weight),
    )


def _event_id(chance: random.Random) -> str:
    return str(uuid.UUID(bytes=chance.randbytes(16)))


POSTGRES = Business(
    "SET TIME ZONE 'UTC'; SET lock_timeout = '2s'",
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
