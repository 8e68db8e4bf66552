"""Every type by SELECT, through the binary protocol and the compiled loop, against an independent reading."""

from typing import Any

import pymysql
import pytest

from tests.support.all_types import create_all_types, insert_edge_rows
from tests.support.reference_rows import differences, reference_rows
from tests.support.servers import Database, FindServer, fresh_database
from tidemark.readers.mysql.decoding.columns import ColumnPlan
from tidemark.readers.mysql.schema.catalog import load_schema
from tidemark.readers.mysql.snapshot.result import stream_select
from tidemark.state.errors import SchemaChangedError, SourceNotUsableError
from tidemark.state.table import TableId, TableSchema

pytestmark = pytest.mark.integration

MIB = 1 << 20


@pytest.fixture(
    params=[("mysql", None), ("mariadb", None), ("mariadb", "11.8")], ids=lambda p: "-".join(filter(None, p))
)
def database(request: pytest.FixtureRequest, find_server: FindServer) -> Any:
    kind, version = request.param
    with fresh_database(find_server(kind, version)) as fresh:
        yield fresh


def schema_of(database: Database, name: str) -> TableSchema:
    connection = database.connect()
    try:
        return load_schema(connection, TableId(database.name, name))
    finally:
        connection.close()


def read(connection: Any, schema: TableSchema, clause: str = "ORDER BY id", **options: Any) -> list[dict[str, Any]]:
    columns = ", ".join(f"`{column.name}`" for column in schema.captured)
    sql = f"SELECT {columns} FROM {schema.table.database}.{schema.table.name} {clause}"
    options.setdefault("zero_dates_null", True)
    rows: list[dict[str, Any]] = []
    for batch in stream_select(connection, sql, ColumnPlan.for_result(schema), **options):
        assert batch.schema == schema.arrow_schema()
        batch.validate(full=True)
        rows += batch.to_pylist()
    return rows


@pytest.mark.pitfall(35)
@pytest.mark.pitfall(37)
def test_every_type_reads_as_the_text_protocol_shows_it(database: Database) -> None:
    connection = database.connect()
    create_all_types(connection)
    count = insert_edge_rows(connection)
    schema = schema_of(database, "all_types")
    rows = read(connection, schema)
    expected = reference_rows(database.connect(), schema)
    assert len(rows) == len(expected) == count
    assert not differences(rows, expected)


def test_a_small_buffer_gives_the_same_rows(database: Database) -> None:
    """Rows are split at every offset of the buffer, and some are larger than it."""
    connection = database.connect()
    create_all_types(connection)
    insert_edge_rows(connection)
    schema = schema_of(database, "all_types")
    assert repr(read(connection, schema, buffer_bytes=1)) == repr(read(connection, schema))


@pytest.mark.servers_in_turn("database", always=("mysql", None))
@pytest.mark.pitfall(51)
def test_rows_of_more_than_one_packet(database: Database) -> None:
    """A packet holds 16 MiB - 1. There are rows just below, at and above it, and one of three packets, between small
    ones."""
    sizes = [10, 16 * MIB - 100, 16 * MIB - 15, 16 * MIB - 14, 16 * MIB - 13, 16 * MIB, 20, 40 * MIB, 30]
    connection = database.connect(max_allowed_packet=64 * MIB)
    database.execute("CREATE TABLE wide (id INT PRIMARY KEY, content LONGBLOB)")
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@global.max_allowed_packet")
        if int(cursor.fetchone()[0]) < 64 * MIB:
            cursor.execute(f"SET GLOBAL max_allowed_packet = {64 * MIB}")
            connection = database.connect(max_allowed_packet=64 * MIB)
    with connection.cursor() as cursor:
        for i, size in enumerate(sizes):
            cursor.execute(f"INSERT INTO wide VALUES ({i}, REPEAT('{chr(97 + i)}', {size}))")
    rows = read(connection, schema_of(database, "wide"), buffer_bytes=1 * MIB)
    assert [(row["id"], len(row["content"])) for row in rows] == list(enumerate(sizes))
    assert all(row["content"].count(bytes((97 + row["id"],))) == len(row["content"]) for row in rows)
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)


def test_many_rows_in_bounded_batches(mysql_database: Database) -> None:
    mysql_database.execute(
        "CREATE TABLE numbers (id INT PRIMARY KEY, name VARCHAR(40))",
        "SET SESSION cte_max_recursion_depth = 300000",
    )
    connection = mysql_database.connect()
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION cte_max_recursion_depth = 300000")
        cursor.execute(
            "INSERT INTO numbers WITH RECURSIVE n (id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM n WHERE id < 199999)"
            " SELECT id, CONCAT('name of ', id) FROM n"
        )
    schema = schema_of(mysql_database, "numbers")
    plan = ColumnPlan.for_result(schema)
    sql = f"SELECT id, name FROM {mysql_database.name}.numbers ORDER BY id"
    batches = list(stream_select(connection, sql, plan, zero_dates_null=True, buffer_bytes=1 * MIB))
    assert len(batches) > 3
    assert all(batch.nbytes < 2 * MIB for batch in batches)
    assert [id for batch in batches for id in batch.column(0).to_pylist()] == list(range(200000))
    assert batches[-1].column(1)[-1].as_py() == "name of 199999"


def test_an_empty_result(database: Database) -> None:
    database.execute("CREATE TABLE nothing (id INT PRIMARY KEY)")
    connection = database.connect()
    assert read(connection, schema_of(database, "nothing")) == []
    assert read(connection, schema_of(database, "nothing")) == []


def test_zero_dates_are_refused_where_the_job_says_so(database: Database) -> None:
    connection = database.connect()
    database.execute("CREATE TABLE dated (id INT PRIMARY KEY, day DATE)")
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        cursor.execute("INSERT INTO dated VALUES (1, '0000-00-00')")
    with pytest.raises(SourceNotUsableError, match=r"dated\.day holds a date whose year, month or day is zero"):
        read(connection, schema_of(database, "dated"), zero_dates_null=False)
    assert read(database.connect(), schema_of(database, "dated")) == [{"id": 1, "day": None}]


def test_days_that_do_not_exist_are_null_like_zero_dates(database: Database) -> None:
    connection = database.connect()
    database.execute("CREATE TABLE dated (id INT PRIMARY KEY, day DATETIME)")
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute("INSERT INTO dated VALUES (1, '2023-02-30 00:00:00')")
    with pytest.raises(SourceNotUsableError, match="a day that its month does not have") as caught:
        read(connection, schema_of(database, "dated"), zero_dates_null=False)
    assert "Set source.zero_dates: null, then start the job again" in caught.value.remedy
    assert read(database.connect(), schema_of(database, "dated")) == [{"id": 1, "day": None}]


def test_an_error_of_the_server_leaves_the_connection_usable(database: Database) -> None:
    database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    connection = database.connect()
    schema = schema_of(database, "t")
    with pytest.raises(pymysql.err.ProgrammingError) as wrong:
        list(stream_select(connection, "SELECT id FROM nowhere", ColumnPlan.for_result(schema), zero_dates_null=True))
    assert wrong.value.args[0] in {1046, 1146}
    assert read(connection, schema) == [{"id": 1}, {"id": 2}]


def test_an_error_between_the_rows_leaves_the_connection_usable(database: Database) -> None:
    """The second row's subquery has two rows, which shows when the first row is on its way."""
    database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3)")
    connection = database.connect()
    schema = schema_of(database, "t")
    late = f"SELECT (SELECT y.id FROM {database.name}.t y WHERE y.id >= 4 - x.id) AS id FROM {database.name}.t x ORDER BY x.id"
    with pytest.raises(pymysql.err.MySQLError) as wrong:
        list(stream_select(connection, late, ColumnPlan.for_result(schema), zero_dates_null=True))
    assert wrong.value.args[0] == 1242
    assert read(connection, schema) == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_abandoned_rows_close_the_connection(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, content LONGTEXT)", "INSERT INTO t VALUES (1, REPEAT('x', 100000))"
    )
    connection = database.connect()
    schema = schema_of(database, "t")
    many = " UNION ALL ".join([f"SELECT id, content FROM {database.name}.t"] * 50)
    batches = stream_select(connection, many, ColumnPlan.for_result(schema), zero_dates_null=True, buffer_bytes=MIB)
    assert next(batches).num_rows > 0
    batches.close()
    assert not connection.open


def test_a_killed_connection_is_an_operational_error(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, content LONGTEXT)", "INSERT INTO t VALUES (1, REPEAT('x', 1000000))"
    )
    connection = database.connect()
    schema = schema_of(database, "t")
    many = " UNION ALL ".join([f"SELECT id, content FROM {database.name}.t"] * 50)
    batches = stream_select(connection, many, ColumnPlan.for_result(schema), zero_dates_null=True, buffer_bytes=MIB)
    next(batches)
    database.execute(f"KILL {connection.thread_id()}")
    with pytest.raises(pymysql.err.OperationalError):
        list(batches)
    assert not connection.open


@pytest.mark.pitfall(43)
@pytest.mark.parametrize(
    "change",
    [
        "MODIFY name VARCHAR(10) CHARACTER SET latin1",
        "MODIFY name VARBINARY(10)",
        "MODIFY number BIGINT",
        "MODIFY number INT UNSIGNED",
        "MODIFY number VARCHAR(10)",
    ],
)
def test_a_table_altered_meanwhile_is_noticed(database: Database, change: str) -> None:
    database.execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(10) CHARACTER SET utf8mb4, number INT)")
    schema = schema_of(database, "t")
    database.execute(f"ALTER TABLE t {change}", "INSERT INTO t VALUES (1, 'x', 2)")
    connection = database.connect()
    with pytest.raises(SchemaChangedError, match=rf"t\.{change.split()[1]} was altered"):
        read(connection, schema)
    assert connection.open


def test_the_session_is_left_as_it_was(database: Database) -> None:
    database.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    connection = database.connect()
    ask = "SELECT @@session.character_set_results"
    with connection.cursor() as cursor:
        cursor.execute(ask)
        before = cursor.fetchone()
        read(connection, schema_of(database, "t"))
        cursor.execute(ask)
        assert cursor.fetchone() == before
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'")
        assert cursor.fetchone()[1] == "0"


def test_a_wrong_order_of_columns_is_noticed(database: Database) -> None:
    database.execute("CREATE TABLE t (a INT PRIMARY KEY, b INT)")
    connection = database.connect()
    plan = ColumnPlan.for_result(schema_of(database, "t"))
    with pytest.raises(SchemaChangedError, match="has b instead"):
        list(stream_select(connection, f"SELECT b, a FROM {database.name}.t", plan, zero_dates_null=True))
