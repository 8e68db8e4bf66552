"""The source of the PostgreSQL benchmarks: a private database, and tables of orders that the server fills itself."""

from dataclasses import dataclass, field

from devtools.databases import Database

COLUMNS = """
    id bigint PRIMARY KEY, customer_id int NOT NULL, status varchar(16) NOT NULL, total numeric(12,2) NOT NULL,
    weight double precision, is_gift boolean NOT NULL, placed_at timestamptz NOT NULL, shipped_on date,
    email varchar(80) NOT NULL, note varchar(200)
"""
VALUES = """
    i, 1 + i * 7919 % 100000, (ARRAY['new', 'paid', 'packed', 'sent', 'returned'])[1 + i % 5], i * 104729 % 1000000 / 100.0,
    nullif(i % 10, 0) * 0.1, i % 7 = 0, timestamptz '2024-01-01 00:00+00' + i * interval '17.000123 s',
    CASE WHEN i % 3 > 0 THEN date '2024-01-01' + (i % 365)::int END,
    concat('customer', i * 7919 % 100000, '@example.com'), md5(i::text)
"""


@dataclass
class PostgresSource:
    database: Database
    row_counts: dict[str, int] = field(default_factory=dict)

    def orders(self, name: str, row_count: int) -> str:
        """Creates the table `name` with rows 1 to `row_count` at the first call. Returns `name`."""
        if name not in self.row_counts:
            fill = f"INSERT INTO {name} SELECT {VALUES} FROM generate_series(1::bigint, {row_count}) AS i"
            self.database.execute(f"CREATE TABLE {name} ({COLUMNS})", fill, f"VACUUM ANALYZE {name}")
            self.row_counts[name] = row_count
        return name
