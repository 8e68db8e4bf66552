"""Spark's own filesystem of S3, `s3a://`: hadoop-aws, and of the AWS SDK only what it needs to read and write files.

hadoop-aws asks for the bundle of the whole SDK, which has 600 MB. These have 13 MB.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from devtools.server_packages import WITHOUT_JAVA, built_once, cache_folder, run
from tests.support.s3 import Application

HADOOP, AWS_SDK, ACCELERATOR = "3.5.0", "2.35.4", "1.3.1"
"""The versions of Spark's Hadoop, and those that its hadoop-aws names."""
_JARS = f"""\
<ivy-module version="2.0">
  <info organisation="tidemark" module="s3a"/>
  <dependencies>
    <dependency org="org.apache.hadoop" name="hadoop-aws" rev="{HADOOP}" transitive="false"/>
    <dependency org="software.amazon.s3.analyticsaccelerator" name="analyticsaccelerator-s3" rev="{ACCELERATOR}"
                transitive="false"/>
    <dependency org="software.amazon.awssdk" name="s3" rev="{AWS_SDK}" conf="default->default"/>
    <dependency org="software.amazon.awssdk" name="s3-transfer-manager" rev="{AWS_SDK}" conf="default->default"/>
    <dependency org="software.amazon.awssdk" name="sts" rev="{AWS_SDK}" conf="default->default"/>
    <exclude org="commons-codec"/>
    <exclude org="commons-logging"/>
    <exclude org="io.netty"/>
    <exclude org="org.apache.httpcomponents"/>
    <exclude org="org.slf4j"/>
  </dependencies>
</ivy-module>
"""


def s3a_jars() -> list[Path]:
    """The jars that Spark has not, downloaded by the program that Spark downloads packages with."""
    home = Path(pyspark.__file__).parent / "jars"
    assert (home / f"hadoop-client-api-{HADOOP}.jar").exists(), "another version of Spark needs another hadoop-aws"
    target = cache_folder() / f"s3a-{HADOOP}"
    with built_once(target) as filling:
        if filling is not None:
            described = filling.with_name("ivy.xml")
            described.write_text(_JARS)
            (ivy,) = home.glob("ivy-*.jar")
            place = ("-cache", str(filling.with_name("ivy")), "-retrieve", f"{filling}/[artifact]-[revision].[ext]")
            run("java", "-jar", str(ivy), "-ivy", str(described), "-types", "jar", *place, missing=WITHOUT_JAVA)
    return sorted(target.glob("*.jar"))


@pytest.fixture(scope="session")
def s3a_session(delta_session: SparkSession) -> SparkSession:
    """The session of tests of Delta, which now has `s3a://`, too. It can't read a bucket without the settings of `reads`."""
    jvm = delta_session.sparkContext._jvm
    loader = jvm.Thread.currentThread().getContextClassLoader()
    for jar in s3a_jars():
        loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())
    return delta_session


@contextmanager
def reads(session: SparkSession, **settings: str) -> Iterator[None]:
    """Lets Spark use the server of `s3_server`. Names of more `settings` of `fs.s3a.` have `_` for a dot."""
    given = {f"fs.s3a.{name.replace('_', '.')}": value for name, value in settings.items()}
    hadoop = session.sparkContext._jsc.hadoopConfiguration()
    for name, value in (hadoop_settings() | given).items():
        hadoop.set(name, value)
    try:
        yield
    finally:
        for name in hadoop_settings() | given:
            hadoop.unset(name)


class Faults:
    """Between Spark and the server: answers Spark's own requests for files in its place, while there is an `answer`."""

    def __init__(self) -> None:
        self.answer: str | None = None
        self.left, self.given = 0, 0

    def __call__(self, server: Application) -> Application:
        def answered(environ: dict[str, Any], start_response: Any) -> Any:
            of_spark = not environ["HTTP_USER_AGENT"].startswith("aiobotocore") and environ["REQUEST_METHOD"] == "GET"
            if not of_spark or self.answer is None or self.left == 0 or "list-type" in environ["QUERY_STRING"]:
                return server(environ, start_response)
            self.left, self.given = self.left - 1, self.given + 1
            start_response(self.answer, [("Content-Length", "0")])
            return [b""]

        return answered


def hadoop_settings() -> dict[str, str]:
    """Those of `s3a://` for the server of `s3_server`, whose errors pass soon."""
    return {
        "fs.s3a.endpoint": os.environ["AWS_ENDPOINT_URL"],
        "fs.s3a.endpoint.region": os.environ["AWS_DEFAULT_REGION"],
        "fs.s3a.access.key": os.environ["AWS_ACCESS_KEY_ID"],
        "fs.s3a.secret.key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "fs.s3a.path.style.access": "true",
        "fs.s3a.retry.interval": "20ms",
        "fs.s3a.retry.throttle.interval": "20ms",
    }
