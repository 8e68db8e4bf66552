"""The peer of the snapshot benchmark: Spark's own JDBC reader into Parquet, as a separate program.

`python -m benchmarks.spark_jdbc URL USER TABLE LAST_ID FOLDER` prints when the session was up and when the rows were written,
in seconds since 1970. URL is a JDBC URL of MySQL or PostgreSQL.
"""

import json
import sys
import time

from pyspark.sql import SparkSession

from benchmarks.tidemark import CONF, MASTER

CONNECTORS = {
    "jdbc:mysql": ("com.mysql:mysql-connector-j:9.4.0", "com.mysql.cj.jdbc.Driver"),
    "jdbc:postgresql": ("org.postgresql:postgresql:42.7.8", "org.postgresql.Driver"),
}
PARTITIONS = 20
FETCH_ROWS = 10_000


def main() -> None:
    url, user, table, last_id, folder = sys.argv[1:]
    package, driver = CONNECTORS[url.partition("://")[0]]
    builder = SparkSession.builder.master(MASTER).config("spark.ui.enabled", "false")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    session = builder.config("spark.jars.packages", package).getOrCreate()
    up = time.time()
    reader = session.read.format("jdbc").option("driver", driver)
    reader = reader.option("url", url).option("user", user).option("dbtable", table)
    reader = reader.option("partitionColumn", "id").option("lowerBound", 1).option("upperBound", last_id)
    reader = reader.option("numPartitions", PARTITIONS).option("fetchsize", FETCH_ROWS)
    reader.load().write.parquet(folder)
    written = time.time()
    session.stop()
    print(json.dumps({"up": up, "written": written}))


if __name__ == "__main__":
    main()
