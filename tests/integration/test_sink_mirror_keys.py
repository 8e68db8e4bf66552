"""Keys of every type in a mirror: a delete hits its row and no other, and finds it by the index."""

import contextlib
import itertools
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from tests.support.change_parts import DELETE, INSERT, UPDATE, column, log_part, rows, snapshot_part
from tests.support.sink_state import SinkCase, make_case, mirror, sorted_rows, target_name  # noqa: F401  # fixtures
from tidemark.sinks.mirror.mysql.rows import MySqlTableRows
from tidemark.sinks.mirror.mysql.session import MySqlSession
from tidemark.sinks.mirror.target import TargetName
from tidemark.state.errors import SinkError
from tidemark.state.table import TableId, TableSchema

pytestmark = pytest.mark.integration

DAY = 86_400_000_000
KEYS: dict[str, tuple[str, str, list[Any]]] = {
    "bigint": ("bigint", "int64", [-(2**63), -1, 0, 2**63 - 1]),
    "unsigned": (
        "bigint unsigned",
        "decimal(20,0)",
        [Decimal(0), Decimal(2**53), Decimal(2**53 + 1), Decimal(2**64 - 1)],
    ),
    "decimal": (
        "decimal(30,10)",
        "decimal(30,10)",
        [Decimal("1E-10"), Decimal("2E-10"), Decimal(10**19), Decimal(10**19 + 1)],
    ),
    "wide decimal": ("decimal(65,0)", "string", ["9" * 40, "9" * 39 + "8", "0", "-1"]),
    "float": ("float", "float32", [0.1, 0.2, 16777216.0, 16777218.0]),
    "double": ("double", "float64", [0.1, 0.30000000000000004, 0.3, 1e300]),
    "varchar": ("varchar(50)", "string", ["a", "b", "it's \\", "😀"]),
    "char": ("char(10)", "string", ["", "a", "ab", "é"]),
    "varbinary": ("varbinary(20)", "binary", [b"", b"a", b"a\0", b"\xff'"]),
    "binary": ("binary(3)", "binary", [b"\0\0\0", b"a\0\0", b"a\0b", b"abc"]),
    "date": ("date", "date32", [-1, 0, 1, 20000]),
    "datetime": ("datetime(6)", "timestamp", [-1, 0, 1, DAY]),
    "timestamp": ("timestamp(6)", "timestamptz", [10**6, 10**6 + 1, DAY, DAY + 1]),
    "time": ("time(3)", "string", ["-00:00:00.001", "00:00:00.000", "838:59:59.000", "01:00:00.000"]),
    "year": ("year", "int16", [0, 1901, 1970, 2155]),
    "bit": ("bit(40)", "int64", [0, 1, 255, 2**40 - 1]),
    "enum": ("enum('b','a','1','2')", "string", ["b", "a", "1", "2"]),
    "set": ("set('x','y')", "string", ["", "x", "y", "x,y"]),
}


def table(name: str, key: tuple[str, ...] = ("k",)) -> TableSchema:
    source_type, arrow_type, _ = KEYS[name]
    columns = (
        column("k", source_type, arrow_type, key=True),
        column("n", "int", "int32", key="n" in key),
        column("v", "int", "int32"),
    )
    return TableSchema(TableId("shop", name), 1, columns, key)


@pytest.mark.parametrize("key", [("k",), ("n", "k")], ids=["single", "composite"])
def test_deletes_and_updates_hit_their_key_alone(mirror: SinkCase, key: tuple[str, ...]) -> None:  # noqa: F811
    mirror.sink.prepare(mirror.job, [table(name, key) for name in KEYS])
    for number, name in enumerate(KEYS):
        schema = table(name, key)
        schemas = {(schema.table, 1): schema}
        first, second, third, fourth = [(value, 7, 0) for value in KEYS[name][2]]
        mirror.write(snapshot_part(1, number, schema, [first, second, third, fourth]), schemas=schemas)
        changes = [(DELETE, first), (UPDATE, (*third[:2], 1)), (DELETE, fourth), (INSERT, (*fourth[:2], 2))]
        mirror.write(log_part(10 + number, (schema, changes)), schemas=schemas)
        assert mirror.rows(schema) == sorted_rows(schema, [second, (*third[:2], 1), (*fourth[:2], 2)]), name


class Recorder:
    """Sends and remembers statements."""

    def __init__(self, session: MySqlSession) -> None:
        self._session = session
        self.max_statement_bytes = session.max_statement_bytes
        self.statements: list[bytes] = []

    def send(self, sql: bytes) -> int:
        self.statements.append(sql)
        return self._session.send(sql)


@pytest.mark.pitfall(80)
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_deletes_find_their_rows_by_the_index(kind: str, request: pytest.FixtureRequest) -> None:
    """A list of keys that the optimizer can't use would read the whole table for each statement."""
    case = make_case(kind, request)
    with contextlib.closing(case.sink.connect()) as session:
        for name, (_, _, values) in KEYS.items():
            singles = [] if name in {"enum", "set", "year"} else [(("k",), [(value, 0, 0) for value in many(name)])]
            pairs = [(("n", "k"), [(value, n, 0) for n in range(400) for value in values])]
            for key, listed in singles or pairs:
                schema = table(name, key)
                session.create_table(session.dialect.create_table(TargetName(case.place.name, f"shop_{name}"), schema))
                recorder = Recorder(session)
                target = TargetName(case.place.name, f"shop_{name}")
                existing = session.inspect(target)
                assert existing is not None
                writer = MySqlTableRows(recorder, session.dialect, target, schema, existing)
                batch = rows(schema, [(INSERT, value) for value in listed])
                writer.insert(batch.select(["k", "n", "v"]))
                session.execute("COMMIT")
                session.query(f"ANALYZE TABLE {target_name(case, schema)}")
                writer.delete(batch.select(list(key)).slice(0, len(listed) // 20))
                explain = "EXPLAIN FORMAT=TRADITIONAL" if kind == "mysql" else "EXPLAIN"
                (plan,) = session.query(f"{explain} {recorder.statements[-1].decode()}")
                session.rollback()
                assert "range" in plan, (name, key, plan)
                assert "PRIMARY" in plan, (name, key, plan)


CHARSETS = ["latin1", "utf8mb4", "utf8mb3", "ascii", "gbk", "sjis", "cp1251", "ucs2", "utf16", "utf16le", "utf32"]


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_deletes_of_composite_keys_find_their_rows_in_every_charset(kind: str, request: pytest.FixtureRequest) -> None:
    """By the index, and also if a statement has one key. MariaDB compares lists of rows otherwise than their columns."""
    case = make_case(kind, request)
    kinds = [("int", "int32", None), ("enum('a','b')", "string", "latin1_swedish_ci"), ("date", "date32", None)]
    kinds += [("varchar(20)", "string", f"{charset}_general_ci") for charset in CHARSETS]
    kinds = [(a, b, c and MAIN_COLLATIONS.get(c, c)) for a, b, c in kinds]
    with contextlib.closing(case.sink.connect()) as session:
        for number, (first, second) in enumerate(
            [*zip(kinds, kinds[1:] + kinds[:1], strict=True), *itertools.product(kinds[:2], kinds)]
        ):
            columns = (
                *(column(name, a, b, key=True, collation=c) for name, (a, b, c) in (("a", first), ("b", second))),
                column("n", "int", "int32", key=True),
            )
            schema = TableSchema(TableId("shop", f"t{number}"), 1, columns, ("a", "b", "n"))
            target = TargetName(case.place.name, f"shop_t{number}")
            session.create_table(session.dialect.create_table(target, schema))
            recorder, existing = Recorder(session), session.inspect(target)
            assert existing is not None
            writer = MySqlTableRows(recorder, session.dialect, target, schema, existing)
            keys = [(_nth(first, i), _nth(second, i), i) for i in range(1500)]
            batch = rows(schema, [(INSERT, key) for key in keys]).select(["a", "b", "n"])
            writer.insert(batch)
            session.execute("COMMIT")
            session.query(f"ANALYZE TABLE {target_name(case, schema)}")
            for some in (batch.slice(7, 1), batch.slice(20, 30)):
                writer.delete(some)
                explain = "EXPLAIN FORMAT=TRADITIONAL" if kind == "mysql" else "EXPLAIN"
                session.rollback()
                (plan,) = session.query(f"{explain} {recorder.statements[-1].decode()}")
                assert "range" in plan, (first, second, plan)
                assert session.send(recorder.statements[-1]) == some.num_rows, (first, second)
                session.rollback()
            session.execute(f"DROP TABLE {target_name(case, schema)}")


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_the_greatest_value_of_a_float_with_digits_is_held(kind: str, request: pytest.FixtureRequest) -> None:
    case = make_case(kind, request)
    columns = (
        column("id", "int", "int32", key=True),
        column("v", "float(10,2)", "float32"),
        column("u", "double(20,4) unsigned", "float64"),
    )
    schema = TableSchema(TableId("shop", "floats"), 1, columns, ("id",))
    case.sink.prepare(case.job, [schema])
    values = [(1, 1e8, 1e16), (2, -1e8, 0.0), (3, 0.25, 0.5)]
    case.write(snapshot_part(1, 1, schema, values), schemas={(schema.table, 1): schema})
    assert case.rows(schema) == values


MAIN_COLLATIONS = {
    "latin1_general_ci": "latin1_swedish_ci",
    "gbk_general_ci": "gbk_chinese_ci",
    "sjis_general_ci": "sjis_japanese_ci",
}


def _nth(kind: tuple[str, str, str | None], i: int) -> Any:
    """The value of a type in the row `i`."""
    return {"int32": i, "date32": i % 90, "string": "ab"[i % 2] if kind[0].startswith("enum") else f"k{i % 500}"}[
        kind[1]
    ]


def test_keys_with_more_columns_than_the_target_can_find_rows_by_are_refused(mirror: SinkCase) -> None:  # noqa: F811
    """MariaDB ends with signal 11 when it looks for a range of a key of 32 columns, also for `UPDATE … WHERE` all are equal."""
    most = {"mysql": 16, "mariadb": 31, "postgres": 32}[mirror.kind]

    def wide(count: int) -> TableSchema:
        columns = tuple(column(f"c{i}", "int", "int32", key=True) for i in range(count))
        return TableSchema(TableId("shop", f"wide_{count}"), 1, columns, tuple(c.name for c in columns))

    schema = wide(most)
    schemas = {(schema.table, 1): schema}
    mirror.sink.prepare(mirror.job, [schema])
    keys: list[tuple[Any, ...]] = [(7,) * (most - 1) + (i,) for i in range(400)]
    mirror.write(snapshot_part(1, 1, schema, keys), schemas=schemas)
    mirror.write(log_part(2, (schema, [(DELETE, key) for key in keys[1:]])), schemas=schemas)
    assert mirror.rows(schema) == keys[:1]
    with pytest.raises(SinkError, match=f"Its key has {most + 1} columns, .* at most {most}"):
        mirror.sink.prepare(mirror.job, [wide(most + 1)])


def many(name: str) -> list[Any]:
    """Some hundred keys of a type."""
    source_type, arrow_type, _ = KEYS[name]
    makers: dict[str, Callable[[int], Any]] = {
        "decimal(20,0)": Decimal,
        "decimal(30,10)": lambda n: Decimal(n) / 1000,
        "string": (lambda n: f"00:{n // 60:02d}:{n % 60:02d}.000") if name == "time" else str,
        "float32": float,
        "float64": lambda n: n / 7,
        "binary": lambda n: f"{n:03d}".encode() if source_type == "binary(3)" else str(n).encode(),
        "timestamptz": lambda n: DAY + n,
    }
    return [makers.get(arrow_type, int)(n) for n in range(999)]


def test_keys_equal_by_case_or_padding_follow_the_source(mirror: SinkCase) -> None:  # noqa: F811
    """The source treats 'A' and 'a ' as one key: it never has both, but a row may change from one to the other."""
    schema = table("varchar")
    schemas = {(schema.table, 1): schema}
    mirror.sink.prepare(mirror.job, [schema])
    mirror.write(snapshot_part(1, 1, schema, [("A", 1, 0), ("b", 2, 0)]), schemas=schemas)
    there = [(DELETE, ("A", 1, 0)), (INSERT, ("a ", 1, 1)), (DELETE, ("b", 2, 0)), (INSERT, ("B", 2, 1))]
    mirror.write(log_part(2, (schema, there)), schemas=schemas)
    assert mirror.rows(schema) == [("B", 2, 1), ("a ", 1, 1)]
    back = [(DELETE, ("a ", 1, 1)), (INSERT, ("A", 1, 2)), (DELETE, ("A", 1, 2)), (INSERT, ("a", 1, 3))]
    mirror.write(log_part(3, (schema, back)), schemas=schemas)
    assert mirror.rows(schema) == [("B", 2, 1), ("a", 1, 3)]


@pytest.mark.pitfall(15)
@pytest.mark.parametrize(
    "collation", ["utf8mb4_0900_as_cs", "utf8mb4_bin", "utf8mb4_uca1400_nopad_as_cs", "latin1_general_cs"]
)
def test_keys_that_the_source_keeps_apart_stay_apart(mirror: SinkCase, collation: str) -> None:  # noqa: F811
    """Holds whether or not the target knows the collation. 0900 and nopad collations also tell 'a' from 'a '."""
    name = column("k", "varchar(20)", "string", key=True, collation=collation)
    schema = TableSchema(TableId("shop", collation), 1, (name, column("v", "int", "int32")), ("k",))
    values = [("a", 1), ("A", 2), ("á", 3), *([("a ", 4)] if "0900" in collation or "nopad" in collation else [])]
    mirror.sink.prepare(mirror.job, [schema])
    mirror.write(snapshot_part(1, 1, schema, values), schemas={(schema.table, 1): schema})
    mirror.write(log_part(2, (schema, [(DELETE, values[0])])), schemas={(schema.table, 1): schema})
    assert mirror.rows(schema) == sorted_rows(schema, values[1:])


@pytest.mark.pitfall(79)
def test_unique_values_may_change_places(mirror: SinkCase) -> None:  # noqa: F811
    """The target has a unique index of its own besides the key."""
    schema = TableSchema(
        TableId("shop", "seats"),
        1,
        (column("id", "int", "int32", key=True), column("seat", "varchar(5)", "string")),
        ("id",),
    )
    schemas = {(schema.table, 1): schema}
    mirror.sink.prepare(mirror.job, [schema])
    index = "CREATE UNIQUE INDEX one_each ON {} ({})"
    mirror.place.execute(index.format(target_name(mirror, schema), "seat"))
    mirror.write(snapshot_part(1, 1, schema, [(1, "A"), (2, "B"), (3, "C")]), schemas=schemas)
    swap = [(UPDATE, (1, None)), (UPDATE, (2, "A")), (UPDATE, (1, "B")), (DELETE, (3, "C")), (INSERT, (4, "C"))]
    mirror.write(log_part(2, (schema, swap)), schemas=schemas)
    assert mirror.rows(schema) == [(1, "B"), (2, "A"), (4, "C")]
