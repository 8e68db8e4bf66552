"""`spark.readStream.format("tidemark")` on real servers: types, restarts, triggers, and sinks that read as they like."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.support.all_types import create_all_types, insert_edge_rows
from tests.support.direct_query import catch_up, into_parquet, parquet_rows, read_stream, spark_session, writer
from tests.support.history import assert_history
from tests.support.jobs import start_process
from tests.support.mysql_accounts import account
from tests.support.reference_rows import differences, reference_rows
from tests.support.servers import Database
from tests.support.workload import KEYS, Uids, Writers, create_tables
from tidemark.readers.mysql.schema.catalog import load_schema
from tidemark.state.table import TableId

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

LOG_GRANTS = ("REPLICATION SLAVE, REPLICATION CLIENT ON *.*",)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session() as session:
        yield session


def stream_of(spark: SparkSession, folder: Path, database: Database, table: str = "t", **options: str) -> DataFrame:
    return read_stream(spark, folder, database.server.url, f"{database.name}.{table}", **options)


def numbers(database: Database, count: int) -> None:
    database.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    database.execute(f"INSERT INTO t VALUES {', '.join(f'({i}, 0)' for i in range(count))}")


class Batches:
    """A foreachBatch function: what each call got, as (batch id, sorted rows)."""

    def __init__(self, before: Callable[[DataFrame], Any] | None = None) -> None:
        self.seen: list[tuple[int, list[tuple[Any, ...]]]] = []
        self._before = before

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        if self._before is not None:
            self._before(batch)
        rows = batch.select("id", "v", "_change_type", "_is_snapshot").collect()
        self.seen.append((batch_id, sorted(tuple(row) for row in rows)))

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The rows of a sink that goes by batch id: a repeated batch replaces itself."""
        return [row for rows in dict(self.seen).values() for row in rows]


@pytest.mark.parametrize("server", ["mysql", pytest.param("mariadb", marks=pytest.mark.every_server)])
def test_every_type_arrives_typed_half_by_select_half_by_log(
    server: str, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database: Database = request.getfixturevalue(f"{server}_database")
    connection = database.connect()
    create_all_types(connection)
    count = insert_edge_rows(connection)
    catch_up(into_parquet(stream_of(spark, tmp_path, database, "all_types"), tmp_path))
    insert_edge_rows(connection, first_id=1000)
    stream = stream_of(spark, tmp_path, database, "all_types")
    catch_up(into_parquet(stream, tmp_path))

    schema = load_schema(connection, TableId(database.name, "all_types"))
    rows = parquet_rows(spark, tmp_path)
    for field in schema.arrow_schema():
        found = rows.schema.field(field.name).type
        same = found.value_type == field.type.value_type if pa.types.is_list(field.type) else found == field.type
        assert same, field.name
    assert not differences(rows.sort_by("id").to_pylist(), reference_rows(database.connect(), schema))
    assert rows["_is_snapshot"].to_pylist() == [True] * count + [False] * count
    assert set(rows["_change_type"].to_pylist()) == {"insert"}
    assert rows.column_names[-6:] == stream.columns[-6:]


@pytest.mark.pitfall(74)
@pytest.mark.every_server
def test_killed_again_and_again_it_goes_on_exactly(
    mysql_database: Database, spark: SparkSession, tmp_path: Path
) -> None:
    """Kills come in the snapshot, then while it follows the log."""
    uids = Uids()
    create_tables(mysql_database, rows=1500, uids=uids)

    def killed_after(plans: int) -> None:
        process = start_process(
            tmp_path,
            *(sys.executable, "-m", "tests.support.direct_query", str(tmp_path)),
            *(mysql_database.server.url, f"{mysql_database.name}.orders"),
        )
        try:
            process.wait_until(lambda: len(list(tmp_path.glob("tidemark/plans/e*"))) >= plans)
        finally:
            process.kill()

    with Writers(mysql_database, uids, count=2, seed=5, pause_seconds=0.02):
        killed_after(2)
        killed_after(6)
    catch_up(into_parquet(stream_of(spark, tmp_path, mysql_database, "orders"), tmp_path))
    history = parquet_rows(spark, tmp_path)
    source = {row[2:]: row[:2] for row in mysql_database.query("SELECT uid, version, id FROM orders")}
    assert_history(history, source, name="orders", key=KEYS["orders"])
    assert not all(history["_is_snapshot"].to_pylist())


def test_a_batch_is_the_same_however_often_it_is_read(
    mysql_database: Database, spark: SparkSession, tmp_path: Path
) -> None:
    """The batch is read twice in one call, and again after the function failed behind its write."""
    numbers(mysql_database, 300)
    first: list[list[tuple[Any, ...]]] = []

    def read_and_change(batch: DataFrame) -> None:
        first.append(sorted(tuple(row) for row in batch.select("id", "v", "_change_type", "_is_snapshot").collect()))
        mysql_database.execute("UPDATE t SET v = v + 1")

    def failing(batch: DataFrame, batch_id: int) -> None:
        read_and_change(batch)
        raise RuntimeError("behind the writing")

    def query(function: Callable[[DataFrame, int], None]) -> Any:
        stream = stream_of(spark, tmp_path, mysql_database, snapshot__split_rows="100", snapshot__parallelism="2")
        return writer(stream, tmp_path).foreachBatch(function)

    with pytest.raises(StreamingQueryException, match="behind the writing"):
        catch_up(query(failing))
    again = Batches(read_and_change)
    catch_up(query(again))
    assert again.seen[0] == (0, first[0])
    assert [rows for _, rows in again.seen] == first[1:]
    last = {row[0]: row[1] for row in again.rows}
    missing = Batches()
    catch_up(query(missing))
    assert {**last, **{row[0]: row[1] for row in missing.rows}} == dict(mysql_database.query("SELECT id, v FROM t"))


@pytest.mark.every_server
def test_a_function_that_does_not_read_its_batch(mysql_database: Database, spark: SparkSession, tmp_path: Path) -> None:
    """Rows and changes that it skips are skipped for good, and the stream continues with the next ones."""
    numbers(mysql_database, 400)

    def query(function: Callable[[DataFrame, int], None]) -> Any:
        stream = stream_of(spark, tmp_path, mysql_database, snapshot__split_rows="100", snapshot__parallelism="2")
        return writer(stream, tmp_path).foreachBatch(function)

    def nothing(batch: DataFrame, batch_id: int) -> None:
        pass

    catch_up(query(lambda batch, batch_id: batch.limit(1).collect()))
    mysql_database.execute("UPDATE t SET v = 1")
    catch_up(query(nothing))
    mysql_database.execute("UPDATE t SET v = 2 WHERE id < 3")
    seen = Batches()
    catch_up(query(seen))
    assert seen.rows == [(i, 2, "update_postimage", False) for i in range(3)]


@pytest.mark.every_server
@pytest.mark.once_per_family
@pytest.mark.servers_in_turn("source_database")
def test_an_interval_then_stopped_and_started_in_the_same_session(
    source_database: Database, spark: SparkSession, tmp_path: Path
) -> None:
    numbers(source_database, 50)
    seen = Batches()
    query = writer(stream_of(spark, tmp_path, source_database), tmp_path).foreachBatch(seen)
    for round_number in range(2):
        started = query.trigger(processingTime="100 milliseconds").start()
        _wait(started, lambda: len(seen.rows) >= 50)
        source_database.execute(f"INSERT INTO t VALUES ({100 + round_number}, 7)")
        _wait(started, lambda number=round_number: (100 + number, 7, "insert", False) in seen.rows)
        started.stop()
    snapshot = [(i, 0, "insert", True) for i in range(50)]
    assert seen.rows == [*snapshot, (100, 7, "insert", False), (101, 7, "insert", False)]


def _wait(query: Any, condition: Callable[[], bool]) -> None:
    """Polls; a query that fails or takes too long fails the test."""
    for _ in range(1200):
        if condition():
            return
        assert not query.awaitTermination(0.1), "the query ended"
    raise AssertionError("nothing after 120 s")


@pytest.mark.every_server
def test_two_queries_on_one_checkpoint(mysql_database: Database, spark: SparkSession, tmp_path: Path) -> None:
    numbers(mysql_database, 5)
    seen = Batches()
    stream = stream_of(spark, tmp_path, mysql_database)
    first = writer(stream, tmp_path).foreachBatch(seen).trigger(processingTime="100 milliseconds").start()
    try:
        _wait(first, lambda: len(seen.rows) == 5)
        with pytest.raises(StreamingQueryException, match=r"Another driver runs this job .*Remedy: Wait until it ends"):
            catch_up(writer(stream, tmp_path / "second").foreachBatch(Batches()))
        mysql_database.execute("INSERT INTO t VALUES (5, 0)")
        _wait(first, lambda: len(seen.rows) == 6)
    finally:
        first.stop()


@pytest.mark.every_server
@pytest.mark.pitfall(73)
def test_one_of_the_two_checkpoints_lost(mysql_database: Database, spark: SparkSession, tmp_path: Path) -> None:
    numbers(mysql_database, 300)

    def query(folder: Path, function: Batches) -> Any:
        stream = stream_of(spark, folder, mysql_database, snapshot__split_rows="100", snapshot__parallelism="1")
        return writer(stream, folder).foreachBatch(function)

    catch_up(query(tmp_path / "whole", Batches()))
    mysql_database.execute("UPDATE t SET v = 1")
    for lost in ("query", "tidemark"):
        folder = tmp_path / "whole"
        kept = shutil.copytree(folder, tmp_path / lost)
        shutil.rmtree(folder / lost)
        seen = Batches()
        with pytest.raises(
            StreamingQueryException, match=r"Epoch \d is committed, but the newest plan is that of epoch \d"
        ):
            catch_up(query(folder, seen))
        assert seen.seen == []
        shutil.rmtree(folder)
        kept.rename(folder)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"snapshot.split_row": "9"}, "option snapshot.split_row: unknown key. Did you mean 'split_rows'?"),
        ({"table": "{database}.nothing"}, "matches no table that the account may read"),
        ({"table": "{database}.*"}, "Option table matches 2 tables."),
    ],
)
def test_wrong_options_are_refused_when_the_stream_is_made(
    options: dict[str, str], said: str, mysql_database: Database, spark: SparkSession, tmp_path: Path
) -> None:
    mysql_database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE u (id INT PRIMARY KEY)")
    given = {"url": mysql_database.server.url, "table": f"{mysql_database.name}.t", "checkpoint": str(tmp_path / "c")}
    given |= {name: value.format(database=mysql_database.name) for name, value in options.items()}
    with pytest.raises(AnalysisException) as caught:
        spark.readStream.format("tidemark").options(**given).load()
    assert said in str(caught.value)
    assert "Remedy:" in str(caught.value)
    assert not (tmp_path / "c").exists()


@pytest.mark.pitfall(73)
def test_a_checkpoint_is_of_one_table(mysql_database: Database, spark: SparkSession, tmp_path: Path) -> None:
    """Also holds where two tables' names make one job's name."""
    numbers(mysql_database, 3)
    mysql_database.execute("CREATE TABLE `T` (id INT PRIMARY KEY, v INT)")
    catch_up(writer(stream_of(spark, tmp_path, mysql_database), tmp_path).foreachBatch(Batches()))
    with pytest.raises(AnalysisException, match=r"belongs to a stream of \S+\.t, not of \S+\.T"):
        stream_of(spark, tmp_path, mysql_database, "T")


@pytest.mark.every_server
@pytest.mark.pitfall(84)
def test_a_password_is_shown_nowhere(mysql_database: Database, spark: SparkSession, tmp_path: Path) -> None:
    """The URL holds the password as it is, where Spark keeps it, or takes it from a file, as it should."""
    numbers(mysql_database, 3)
    secret_file = tmp_path / "secret"
    with account(mysql_database.server, f"SELECT ON {mysql_database.name}.*", *LOG_GRANTS) as endpoint:
        password = endpoint.password.get_secret_value()
        secret_file.write_text(password)
        texts = []
        for name, written in (("plain", password), ("file", f"${{file:{secret_file}}}")):
            url = f"mysql://{endpoint.user}:{written}@{endpoint.host}:{endpoint.port}/"
            stream = read_stream(spark, tmp_path / name, url, f"{mysql_database.name}.t")
            seen = Batches()
            query = catch_up(writer(stream, tmp_path / name).foreachBatch(seen))
            assert len(seen.rows) == 3
            texts += [stream._jdf.queryExecution().toString(), str(query.lastProgress), str(stream)]
            texts.append(query._jsq.explainInternal(True))
            mysql_database.execute(f"ALTER USER {endpoint.user} IDENTIFIED BY 'another'")
            with pytest.raises(StreamingQueryException) as caught:
                catch_up(writer(stream, tmp_path / name).foreachBatch(seen))
            mysql_database.execute(f"ALTER USER {endpoint.user} IDENTIFIED BY '{password}'")
            assert "The source refuses" in str(caught.value)
            texts.append(str(caught.value))
    assert not [text for text in texts if password in text]
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path != secret_file]
    assert len(written) > 10
    assert not [path for path in written if password.encode() in path.read_bytes()]
