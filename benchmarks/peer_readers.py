"""Copies a table into Parquet by a reader of PyPI. Run as a script by `benchmarks/readers.py`, in the readers' own environment.

Arguments: the reader, the URL of the database, the table, a folder. Prints nothing.
"""

import os
import sys
from pathlib import Path

PARTITIONS = 2
"""The number of tasks of the job under test, and of the cores."""
ROW_GROUP_ROWS = 65_536


def by_connectorx(url: str, table: str, folder: Path) -> None:
    import connectorx
    import pyarrow.parquet as pq

    query = f"SELECT * FROM {table}"
    rows = connectorx.read_sql(
        url, query, partition_on="id", partition_num=PARTITIONS, return_type="arrow", protocol="binary"
    )
    pq.write_table(rows, folder / "rows.parquet")


def by_adbc(url: str, table: str, folder: Path) -> None:
    import pyarrow.parquet as pq
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        batches = cursor.fetch_record_batch()
        with pq.ParquetWriter(folder / "rows.parquet", batches.schema) as file:
            for batch in batches:
                file.write_batch(batch, row_group_size=ROW_GROUP_ROWS)


def by_dlt(url: str, table: str, folder: Path) -> None:
    os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
    import dlt
    from dlt.sources.sql_database import sql_table

    driver = {"mysql": "mysql+pymysql", "postgresql": "postgresql+psycopg2"}
    kind, _, rest = url.partition("://")
    pipeline = dlt.pipeline(
        "bench",
        pipelines_dir=str(folder / "state"),
        destination=dlt.destinations.filesystem(folder.as_uri()),
        dataset_name="copy",
    )
    resource = sql_table(
        f"{driver[kind]}://{rest}",
        table=table,
        backend="connectorx",
        reflection_level="minimal",
        backend_kwargs={"conn": url, "protocol": "binary"},
    )
    pipeline.run(resource, loader_file_format="parquet", write_disposition="replace")


READERS = {"connectorx": by_connectorx, "adbc": by_adbc, "dlt": by_dlt}

if __name__ == "__main__":
    READERS[sys.argv[1]](sys.argv[2], sys.argv[3], Path(sys.argv[4]))
