from contextlib import closing

import pytest

from tests.support.servers import Database
from tidemark.conf.endpoint import parse_endpoint
from tidemark.readers.postgres.connect import connect
from tidemark.readers.postgres.schema.statistics import table_statistics
from tidemark.state.table import TableId

pytestmark = pytest.mark.integration


def test_rows_of_plain_and_partitioned_tables_are_known_once_analyzed(postgres_source_database: Database) -> None:
    postgres_source_database.execute(
        "CREATE TABLE plain (id int PRIMARY KEY) WITH (autovacuum_enabled = false)",
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (400)",
        "CREATE TABLE high PARTITION OF parted FOR VALUES FROM (400) TO (1000)",
        "INSERT INTO plain SELECT generate_series(0, 999)",
        "INSERT INTO parted SELECT generate_series(0, 999)",
    )
    with closing(connect(parse_endpoint(postgres_source_database.url), None)) as connection:
        before = table_statistics(connection, TableId("public", "plain"))
        postgres_source_database.execute("ANALYZE")
        after = [table_statistics(connection, TableId("public", name)) for name in ("plain", "parted")]
    assert before.row_estimate is None
    assert [statistics.row_estimate for statistics in after] == [1000, 1000]
    assert all(statistics.average_row_bytes for statistics in after)
