"""PostgreSQL's estimates of its tables."""

from tidemark.readers.postgres.connect import Connection, quote_table
from tidemark.readers.statistics import TableStatistics
from tidemark.state.table import TableId

# pg_table_size includes TOAST, compressed.
_STATISTICS = """
SELECT sum(c.reltuples)::bigint, sum(pg_table_size(c.oid))::bigint, bool_or(c.reltuples < 0)
FROM pg_class c, to_regclass(%s) AS t(oid)
WHERE c.oid IN (SELECT relid FROM pg_partition_tree(t.oid) WHERE isleaf) OR (c.oid = t.oid AND c.relkind = 'r')
"""


def table_statistics(connection: Connection, table: TableId) -> TableStatistics:
    """Returns estimates as of the last ANALYZE or VACUUM. Without one there is no row count. A partitioned table is the sum
    of its partitions."""
    with connection.cursor() as cursor:
        cursor.execute(_STATISTICS, (quote_table(table),))
        found = cursor.fetchone()
    assert found is not None
    rows, data_bytes, unknown = found
    if rows is None or unknown:
        return TableStatistics(None, None, data_bytes)
    return TableStatistics(rows, data_bytes // rows if rows else None, data_bytes)
