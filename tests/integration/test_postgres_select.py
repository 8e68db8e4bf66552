"""COPY's binary form into Arrow: every type and edge value, against the server's own text and against the log's path."""

import contextlib
from collections.abc import Iterator

import psycopg2
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.postgres_log import LoggedDatabase, logged_postgres  # noqa: F401  a fixture
from tests.support.postgres_values import EDGE_VALUES, MAKE_TYPES, array_of, otherwise_selected
from tidemark.conf.endpoint import parse_endpoint
from tidemark.readers.postgres.connect import Connection, connect
from tidemark.readers.postgres.schema.types import select_expression
from tidemark.readers.postgres.snapshot import copy_rows as copying
from tidemark.readers.postgres.snapshot.copy_rows import copy_rows
from tidemark.state.errors import SourceNotUsableError
from tidemark.state.log_range import LogRange
from tidemark.state.table import TableSchema

pytestmark = pytest.mark.integration


def selected(connection: Connection, schema: TableSchema, buffer_bytes: int = copying.BUFFER_BYTES) -> pa.Table:
    columns = ", ".join(map(select_expression, schema.captured))
    return copy_rows(connection, f"SELECT {columns} FROM public.t ORDER BY id", schema, buffer_bytes=buffer_bytes)


@pytest.fixture
def source(logged_postgres: LoggedDatabase) -> LoggedDatabase:  # noqa: F811
    logged_postgres.execute(*MAKE_TYPES)
    return logged_postgres


@pytest.fixture
def connection(source: LoggedDatabase) -> Iterator[Connection]:
    with contextlib.closing(connect(parse_endpoint(source.database.url), None)) as made:
        yield made


def bits(array: pa.Array) -> pa.Array:
    """Floats by their bits: -0 is not 0 then, and a NaN is itself."""
    kind = array.type
    if not pa.types.is_floating(kind):
        return array
    return pa.Array.from_buffers(pa.int32() if kind == pa.float32() else pa.int64(), len(array), array.buffers())


@pytest.mark.pitfall(68)
def test_every_value_is_the_servers_text_and_the_same_from_the_log(
    source: LoggedDatabase, connection: Connection
) -> None:
    names = [f"c{i}" for i in range(len(EDGE_VALUES))]
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(names, EDGE_VALUES, strict=True))
    source.execute(f"CREATE TABLE public.t (id int PRIMARY KEY, {columns})")
    source.publish("t")
    for row in range(max(map(len, EDGE_VALUES.values())) + 1):
        values = [f"({v[row]})::{kind}" if row < len(v) else "NULL" for kind, v in EDGE_VALUES.items()]
        source.execute(f"INSERT INTO public.t VALUES ({row}, {', '.join(values)})")
    schema = source.schema("t")
    rows = selected(connection, schema)
    rows.validate(full=True)
    texts = source_texts(connection, schema)
    (logged,) = [batch.rows for batch in source.reader("t").read(LogRange(source.start, source.end()))]
    for index, column in enumerate(schema.captured):
        found = bits(rows[column.name].combine_chunks())
        assert found.equals(bits(array_of(column, [row[index] for row in texts]))), column.source_type
        assert found.equals(bits(logged[column.name])), column.source_type
    kinds = dict(zip(EDGE_VALUES, (column.arrow_type for column in schema.columns[1:]), strict=True))
    assert kinds["numeric(38,38)"] == "decimal(38,38)"
    assert kinds["public.price"] == "decimal(10,2)"


def source_texts(connection: Connection, schema: TableSchema) -> list[tuple[str | None, ...]]:
    """The server's texts under the session's settings, which the text of some types depends on."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(map(otherwise_selected, schema.captured))} FROM public.t ORDER BY id")
        return list(cursor.fetchall())


@pytest.mark.pitfall(68)
@pytest.mark.parametrize(
    ("kind", "value", "named"),
    [
        ("date", "'infinity'", "infinity"),
        ("date", "'-infinity'", "-infinity"),
        ("timestamp", "'infinity'", "infinity"),
        ("timestamptz", "'-infinity'", "-infinity"),
        ("timestamp", "'294247-01-10 04:00:54.775806'", "64-bit microseconds"),
        ("timestamptz", "'294276-12-31 23:59:59.999999+00'", "64-bit microseconds"),
        ("numeric(12,2)", "'NaN'", "NaN"),
    ],
)
def test_a_value_without_a_place_stops_the_read_and_names_the_column(
    source: LoggedDatabase, connection: Connection, kind: str, value: str, named: str
) -> None:
    source.execute(f"CREATE TABLE public.t (id int PRIMARY KEY, odd {kind})")
    source.execute(f"INSERT INTO public.t VALUES (1, NULL), (2, {value}), (3, NULL)")
    with pytest.raises(SourceNotUsableError, match=rf"public\.t\.odd holds .*{named}") as caught:
        selected(connection, source.schema("t"))
    assert "sink.on_bad_value_in: {public.t: {odd: null}}" in caught.value.remedy


def test_rows_come_whole_however_small_the_buffer_is(source: LoggedDatabase, connection: Connection) -> None:
    source.execute(
        "CREATE TABLE public.t (id int PRIMARY KEY, note text, data bytea)",
        "INSERT INTO public.t SELECT i, repeat('ü', CASE WHEN i % 1000 = 0 THEN 700000 ELSE i % 50 END), "
        "CASE WHEN i % 3 = 0 THEN int4send(i) END FROM generate_series(1, 5000) i",
    )
    schema = source.schema("t")
    whole = selected(connection, schema)
    assert whole.num_rows == 5000
    assert pc.sum(pc.utf8_length(whole["note"])).as_py() == sum(
        700000 if i % 1000 == 0 else i % 50 for i in range(1, 5001)
    )
    for buffer_bytes in (1, 1 << 10, 1 << 20, 1 << 26):
        assert selected(connection, schema, buffer_bytes).equals(whole), buffer_bytes
    assert selected(connection, schema).column("id").num_chunks >= 1


def test_more_rows_than_one_batch_holds(source: LoggedDatabase, connection: Connection) -> None:
    source.execute(
        "CREATE TABLE public.t (id int PRIMARY KEY)", "INSERT INTO public.t SELECT generate_series(1, 200000)"
    )
    rows = selected(connection, source.schema("t"))
    assert rows["id"].to_pylist() == list(range(1, 200001))
    source.execute("TRUNCATE public.t")
    assert selected(connection, source.schema("t")).num_rows == 0


def test_bytes_that_are_no_utf8_are_refused_by_the_server(source: LoggedDatabase) -> None:
    name = f"{source.name}_ascii"
    source.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING SQL_ASCII LC_COLLATE 'C' LC_CTYPE 'C'")
    try:
        endpoint = parse_endpoint(f"{source.database.server.url}{name}")
        with contextlib.closing(source.database.server.connect(name)) as maker, maker.cursor() as cursor:
            cursor.execute("CREATE TABLE public.t (id int PRIMARY KEY, note text)")
            cursor.execute("INSERT INTO public.t VALUES (1, convert_from('\\xff', 'SQL_ASCII'))")
        source.execute("CREATE TABLE public.t (id int PRIMARY KEY, note text)")
        with (
            contextlib.closing(connect(endpoint, None)) as connection,
            pytest.raises(psycopg2.errors.CharacterNotInRepertoire),
        ):
            selected(connection, source.schema("t"))
    finally:
        source.execute(f"DROP DATABASE {name} WITH (FORCE)")
