"""The peer of the snapshot: Spark's own JDBC reader into Parquet, as a program of its own.

`python -m benchmarks.spark_jdbc HOST:PORT USER TABLE LAST_ID FOLDER OPTIONS` prints when the session was up and when the
rows were written, in seconds since 1970. OPTIONS are Connector/J's, `a=b&c=d`.
"""

import json
import sys
import time

from pyspark.sql import SparkSession

from benchmarks.tidemark import CONF, MASTER

CONNECTOR = "com.mysql:mysql-connector-j:9.4.0"
PARTITIONS = 20
FETCH_ROWS = 10_000


def main() -> None:
    address, user, table, last_id, folder, options = sys.argv[1:]
    builder = SparkSession.builder.master(MASTER).config("spark.ui.enabled", "false")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    session = builder.config("spark.jars.packages", CONNECTOR).getOrCreate()
    up = time.time()
    reader = session.read.format("jdbc").option("driver", "com.mysql.cj.jdbc.Driver")
    reader = reader.option("url", f"jdbc:mysql://{address}/d?{options}").option("user", user).option("dbtable", table)
    reader = reader.option("partitionColumn", "id").option("lowerBound", 1).option("upperBound", last_id)
    reader = reader.option("numPartitions", PARTITIONS).option("fetchsize", FETCH_ROWS)
    reader.load().write.parquet(folder)
    written = time.time()
    session.stop()
    print(json.dumps({"up": up, "written": written}))


if __name__ == "__main__":
    main()
