"""The shop that the demo copies: six tables with different keys, filled by the server itself. PostgreSQL's shop is in
demo_shop_postgres.py."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from devtools.server import Server
from scripts.demo_shop_postgres import BEFORE as POSTGRES_BEFORE
from scripts.demo_shop_postgres import TABLES as POSTGRES_TABLES
from scripts.demo_table import DATABASE, ShopTable

MYSQL_TABLES = (
    ShopTable(
        "customers",  # an even integer key
        ("id",),
        100,
        """id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, name VARCHAR(60) NOT NULL, email VARCHAR(80),
        country CHAR(2) CHARACTER SET latin1 NOT NULL, points INT NOT NULL, born DATE, joined_at TIMESTAMP NOT NULL""",
        """i, CONCAT(ELT(1 + i % 6, 'Ana', 'Björn', 'Chloé', '大輔', 'Élodie', 'Zoë'), ' ', i),
        IF(i % 9 = 0, NULL, CONCAT('c', i, '@example.org')), ELT(1 + i % 5, 'DE', 'FR', 'JP', 'SE', 'US'), i % 1000,
        IF(i % 7 = 0, NULL, '1950-01-01' + INTERVAL i % 18000 DAY), '2020-01-01' + INTERVAL i MINUTE""",
    ),
    ShopTable(
        "products",  # text in a collation that ignores case and accents
        ("sku",),
        40,
        """sku VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_ai_ci NOT NULL PRIMARY KEY, title VARCHAR(80),
        price DECIMAL(10,2) NOT NULL, attributes JSON, weight DOUBLE""",
        """CONCAT(ELT(1 + i % 7, 'apple', 'Éclair', 'straße', 'ZEBRA', 'ñandú', 'Apple', 'éclair'), '-', i),
        CONCAT('No. ', i), i % 9000 / 100, JSON_OBJECT('n', i, 'tags', JSON_ARRAY('a', i % 3)), i / 8""",
    ),
    ShopTable(
        "orders",  # an integer key with steps and one huge gap
        ("id",),
        300,
        """id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, customer_id INT UNSIGNED NOT NULL,
        status ENUM('new','paid','sent','returned') NOT NULL, total DECIMAL(12,2) NOT NULL,
        placed_at DATETIME(6) NOT NULL, changed_at TIMESTAMP(3) NULL, note TEXT, KEY (customer_id)""",
        """i * 3 + IF(i % 2 = 0, 0, 4000000000), 1 + i % 30000, 1 + i % 4, i % 50000 / 7,
        '2024-01-01' + INTERVAL i * 1.25 SECOND, IF(i % 3 = 0, NULL, '2024-06-01' + INTERVAL i SECOND),
        IF(i % 4 = 0, NULL, CONCAT('Note ', SHA2(i, 256)))""",
    ),
    ShopTable(
        "order_items",  # two columns
        ("order_id", "line_no"),
        400,
        """order_id BIGINT NOT NULL, line_no SMALLINT NOT NULL, sku VARCHAR(40) NOT NULL, quantity INT NOT NULL,
        unit_price DECIMAL(10,2) NOT NULL, PRIMARY KEY (order_id, line_no)""",
        "(i DIV 3) * 3, i % 3, CONCAT('sku-', i % 10000), 1 + i % 9, i % 10000 / 100",
    ),
    ShopTable(
        "events",  # random bytes
        ("event_id",),
        130,
        """event_id BINARY(16) NOT NULL PRIMARY KEY, kind VARCHAR(20) NOT NULL, body JSON,
        happened_at DATETIME(3) NOT NULL, source VARBINARY(20)""",
        """LEFT(UNHEX(SHA2(i, 256)), 16), ELT(1 + i % 3, 'view', 'click', 'buy'), JSON_OBJECT('i', i, 'ok', i % 2 = 0),
        '2024-05-05' + INTERVAL i SECOND, LEFT(UNHEX(SHA2(-i, 256)), i % 20)""",
    ),
    ShopTable(
        "tariffs",  # a day and an exact number
        ("valid_from", "weight_kg"),
        30,
        """valid_from DATE NOT NULL, weight_kg DECIMAL(8,3) NOT NULL, price DECIMAL(10,4) NOT NULL,
        zone TINYINT UNSIGNED, PRIMARY KEY (valid_from, weight_kg)""",
        "'2015-01-01' + INTERVAL i % 900 DAY, (i DIV 900) / 8, i / 13, IF(i % 10 = 0, NULL, i % 250)",
    ),
)


@dataclass(frozen=True, slots=True)
class Shop:
    """The shop of one kind of server.

    `schema`: the schema of its tables in the job file. `before`: statements that precede the tables. `sequence`: the query that
    follows INSERT INTO. It applies the table's `{select}` to the numbers from 1 to `{count}`, named `n (i)`.
    """

    schema: str
    tables: tuple[ShopTable, ...]
    before: tuple[str, ...]
    sequence: str


_RECURSION = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) SELECT {select} FROM n"
_LIKE_0900 = "utf8mb4_uca1400_nopad_ai_ci"
"""MariaDB's collation that is most similar to MySQL's utf8mb4_0900_ai_ci."""

SHOPS: Mapping[str, Shop] = {
    "mysql": Shop(
        DATABASE, MYSQL_TABLES, ("SET time_zone = '+00:00', cte_max_recursion_depth = 4294967295",), _RECURSION
    ),
    "mariadb": Shop(
        DATABASE,
        tuple(replace(t, columns=t.columns.replace("utf8mb4_0900_ai_ci", _LIKE_0900)) for t in MYSQL_TABLES),
        ("SET time_zone = '+00:00', max_recursive_iterations = 4294967295",),
        _RECURSION,
    ),
    "postgres": Shop(
        "public", POSTGRES_TABLES, POSTGRES_BEFORE, "SELECT {select} FROM generate_series(1, {count}) AS n (i)"
    ),
}


def load_shop(server: Server, row_count: int) -> int:
    """Creates the database with about `row_count` rows. Returns how many there are."""
    shop = SHOPS[server.kind]
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE}" + ("" if server.kind == "postgres" else " CHARACTER SET utf8mb4"))
    with contextlib.closing(server.connect(DATABASE)) as connection, connection.cursor() as cursor:
        for statement in shop.before:
            cursor.execute(statement)
        return sum(_load_table(cursor, shop, table, row_count * table.share // 1000) for table in shop.tables)


def _load_table(cursor: Any, shop: Shop, table: ShopTable, row_count: int) -> int:
    cursor.execute(f"CREATE TABLE {table.name} ({table.columns})")
    rows = shop.sequence.format(count=max(row_count, 1), select=table.select)
    cursor.execute(f"INSERT INTO {table.name} {rows}")
    count = int(cursor.rowcount)
    for statement in table.after:
        cursor.execute(statement)
    return count
