"""The source of the MySQL benchmarks: a private server, and tables of orders that it fills itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from devtools.mysql_log import LoggedServer
from devtools.server_commands import Option

OPTIONS: Mapping[str, Mapping[str, Option]] = {
    "mysql": {
        "innodb_buffer_pool_size": "3G",
        "innodb_redo_log_capacity": "2G",
        "innodb_flush_log_at_trx_commit": 0,
        "innodb_doublewrite": False,
        "max_binlog_size": "1G",
    },
    "postgres": {"shared_buffers": "2GB", "max_wal_size": "4GB"},
}
"""Server options by kind."""

ROWS_AT_ONCE = 1_000_000
COLUMNS = """
    id BIGINT NOT NULL PRIMARY KEY,
    customer_id INT NOT NULL,
    status VARCHAR(16) NOT NULL,
    total DECIMAL(12,2) NOT NULL,
    weight DOUBLE NULL,
    is_gift TINYINT NOT NULL,
    placed_at DATETIME(6) NOT NULL,
    shipped_on DATE NULL,
    email VARCHAR(80) NOT NULL,
    note VARCHAR(200) NULL
"""
VALUES = """
    i, 1 + CRC32(i) % 100000, ELT(1 + i % 5, 'new', 'paid', 'packed', 'sent', 'returned'), CRC32(i + 7) % 1000000 / 100,
    IF(i % 10 = 0, NULL, CRC32(i + 3) % 100000 / 1000), i % 7 = 0,
    TIMESTAMP '2024-01-01 00:00:00' + INTERVAL CRC32(i + 5) % 31536000 SECOND,
    IF(i % 3 = 0, NULL, DATE '2024-01-01' + INTERVAL CRC32(i + 9) % 365 DAY),
    CONCAT('customer', CRC32(i) % 100000, '@example.com'), SHA2(i, 256)
"""
CHANGES_PER_ROUND = 4
CHANGE = """
    CREATE PROCEDURE {table}_change(round_count BIGINT, size BIGINT, row_count BIGINT)
    BEGIN
        DECLARE done, half, first BIGINT DEFAULT 0;
        SET half = row_count DIV (4 * size) * 2 * size;
        WHILE done < round_count DO
            SET first = 2 * size * done % half;
            UPDATE {table} SET status = 'sent', total = total + 1 WHERE id > first AND id <= first + size;
            UPDATE {table} SET status = 'paid', weight = done + 0.5 WHERE id > first + size AND id <= first + 2 * size;
            INSERT INTO {table} SELECT row_count + size * done + id - first, customer_id, status, total, weight, is_gift,
                placed_at, shipped_on, email, note FROM {table} WHERE id > first AND id <= first + size;
            DELETE FROM {table} WHERE id > half + size * done AND id <= half + size * (done + 1);
            SET done = done + 1;
        END WHILE;
    END
"""


@dataclass
class Source(LoggedServer):
    """A server whose log has the changes, but not the inserts that filled the tables."""

    row_counts: dict[str, int] = field(default_factory=dict)

    def orders(self, name: str, row_count: int) -> str:
        """Creates the table `name` with rows 1 to `row_count` at the first call. Returns `name`."""
        if name not in self.row_counts:
            self.execute(f"CREATE TABLE {name} ({COLUMNS})", f"ANALYZE TABLE {name}", CHANGE.format(table=name))
            fill = ["SET sql_log_bin = OFF", f"SET cte_max_recursion_depth = {ROWS_AT_ONCE}"]
            for first in range(1, row_count + 1, ROWS_AT_ONCE):
                last = min(first + ROWS_AT_ONCE - 1, row_count)
                numbers = f"WITH RECURSIVE n (i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last})"
                fill.append(f"INSERT INTO {name} {numbers} SELECT {VALUES} FROM n")
            self.execute(*fill, f"ANALYZE TABLE {name}")
            self.row_counts[name] = row_count
        return name

    def change(self, name: str, change_count: int, *, transaction_rows: int) -> None:
        """Makes changes in transactions of one statement: half updates, a quarter inserts, a quarter deletes.

        At most half of the rows are deleted, so `change_count` is at most twice the row count.
        """
        rounds = change_count // (CHANGES_PER_ROUND * transaction_rows)
        self.execute(f"CALL {name}_change({rounds}, {transaction_rows}, {self.row_counts[name]})")

    def count(self, name: str) -> int:
        return int(self.query(f"SELECT COUNT(*) FROM {name}")[0][0])
