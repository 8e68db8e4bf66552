"""The peer of the snapshot benchmarks: Spark's own JDBC reader into Parquet or Delta, as a separate program.

`python -m benchmarks.spark_jdbc URL USER TABLE LAST_ID FOLDER FORMAT` prints when the session was up and when the rows were
written, in seconds since 1970. URL is a JDBC URL of MySQL or PostgreSQL, FORMAT `parquet` or `delta`.
"""

import json
import sys
import time

from pyspark.sql import SparkSession

from benchmarks.tidemark import CONF, MASTER
from tidemark.sinks.delta.settings import delta_settings

CONNECTORS = {
    "jdbc:mysql": ("com.mysql:mysql-connector-j:9.4.0", "com.mysql.cj.jdbc.Driver"),
    "jdbc:postgresql": ("org.postgresql:postgresql:42.7.8", "org.postgresql.Driver"),
}
PARTITIONS = 20
FETCH_ROWS = 10_000


def main() -> None:
    url, user, table, last_id, folder, form = sys.argv[1:]
    package, driver = CONNECTORS[url.partition("://")[0]]
    builder = SparkSession.builder.master(MASTER).config("spark.ui.enabled", "false")
    settings = CONF | {"spark.jars.packages": package}
    if form == "delta":
        delta = delta_settings({}, submitted=False)
        settings |= delta | {"spark.jars.packages": f"{package},{delta['spark.jars.packages']}"}
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    up = time.time()
    reader = session.read.format("jdbc").option("driver", driver)
    reader = reader.option("url", url).option("user", user).option("dbtable", table)
    reader = reader.option("partitionColumn", "id").option("lowerBound", 1).option("upperBound", last_id)
    reader = reader.option("numPartitions", PARTITIONS).option("fetchsize", FETCH_ROWS)
    reader.load().write.format(form).save(folder)
    written = time.time()
    session.stop()
    print(json.dumps({"up": up, "written": written}))


if __name__ == "__main__":
    main()
