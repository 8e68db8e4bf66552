"""Split keys on real servers: boundaries tile a table by its index, and encoded keys order as the server does."""

import contextlib
import itertools
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pymysql
import pytest

from tests.support.key_values import KEY_VALUES, MARIADB_KEY_VALUES, KeyValues
from tests.support.servers import Database
from tidemark.conf.endpoint import parse_endpoint
from tidemark.readers.mysql.connect import Flavour, connect
from tidemark.readers.mysql.keys.key_columns import can_split_by, key_column, key_columns, range_condition
from tidemark.readers.mysql.keys.key_encoding import within
from tidemark.readers.mysql.keys.split_keys import MySqlKeys
from tidemark.readers.mysql.keys.uuid_order import orders_as_known
from tidemark.readers.mysql.schema.catalog import load_schema, split_key
from tidemark.readers.mysql.schema.table_facts import read_tables
from tidemark.readers.mysql.session import SqlSession
from tidemark.state.key_encoding import encode_integer
from tidemark.state.split import Bound, KeyRange
from tidemark.state.table import Column, TableId, TableSchema

pytestmark = pytest.mark.integration

MYSQL_COLLATIONS = [
    "utf8mb4_0900_ai_ci",
    "utf8mb4_0900_as_cs",
    "utf8mb4_0900_bin",
    "utf8mb4_ja_0900_as_cs_ks",
    "utf8mb4_general_ci",
    "utf8mb4_unicode_ci",
    "utf8mb4_unicode_520_ci",
    "utf8mb4_bin",
    "utf8mb3_general_ci",
    "latin1_swedish_ci",
    "latin1_german2_ci",
    "latin1_bin",
    "cp1251_general_ci",
    "euckr_korean_ci",
    "gbk_chinese_ci",
    "ucs2_unicode_ci",
    "utf16_general_ci",
    "utf16le_bin",
    "utf32_unicode_ci",
    "ascii_general_ci",
]
MARIADB_COLLATIONS = [
    "utf8mb4_uca1400_ai_ci",
    "utf8mb4_uca1400_as_cs",
    "utf8mb4_uca1400_as_ci",
    "utf8mb4_uca1400_ai_cs",
    "utf8mb4_uca1400_nopad_ai_ci",
    "utf8mb4_uca1400_nopad_as_cs",
    "utf8mb4_uca1400_swedish_ai_ci",
    "utf8mb4_general_ci",
    "utf8mb4_general_nopad_ci",
    "utf8mb4_unicode_ci",
    "utf8mb4_unicode_nopad_ci",
    "utf8mb4_bin",
    "utf8mb4_nopad_bin",
    "utf8mb4_thai_520_w2",
    "latin1_swedish_ci",
    "latin1_swedish_nopad_ci",
    "gbk_chinese_nopad_ci",
    "ucs2_general_ci",
    "utf32_general_ci",
]
LETTERS = [
    *"aAbBcChHlLsSzZáàâäÄßñÑœæÆĳıİiIžçÇéÉöÖoüÜűŐ",
    *" \t\0\x01\x1f!-'_~0129\x7f\x80\xa0  ",
    *"\u0301\u0308\u200b\u200d\u00ad\ufdfa\u0e40\u0e01\u0e33あアｱがー漢字亜\uac00\u1100\u1161😀𝒜ﬁ½“€",
]


@dataclass
class Keyed:
    """A table of a test, and the MysqlKeys under test on it."""

    database: Database
    schema: TableSchema
    columns: tuple[str, ...]
    session: SqlSession

    @property
    def keys(self) -> MySqlKeys:
        return MySqlKeys(self.session, {self.schema.table: self.schema})

    def bounds(self, rows: int, count: int = 100_000) -> list[Bound]:
        return list(
            self.keys.next_bounds(self.schema.table, self.columns, after=None, until=None, rows=rows, count=count)
        )

    def condition(self, key_range: KeyRange) -> str:
        return range_condition(key_columns(self.schema, self.columns), key_range)

    def count(self, key_range: KeyRange) -> int:
        condition = self.condition(key_range)
        found: int = self.database.query(f"SELECT COUNT(*) FROM {self.schema.table.name} WHERE {condition}")[0][0]
        return found

    def counts(self, bounds: list[Bound]) -> list[int]:
        """Rows in each split between the boundaries, the open ones at both ends included."""
        return [self.count(KeyRange(a, b)) for a, b in zip([None, *bounds], [*bounds, None], strict=True)]

    def encoded_keys(self, **values: pa.Array) -> list[bytes]:
        return self.ranks_of(pa.RecordBatch.from_pydict(values))

    def ranks_of(self, batch: pa.RecordBatch) -> list[bytes]:
        found = self.keys.encoded_keys(self.schema, self.columns, batch)
        if isinstance(found, np.ndarray):
            return [int(word).to_bytes(8, "big") for word in found]
        return found.to_pylist()


@contextlib.contextmanager
def keyed(database: Database, ddl: str, columns: tuple[str, ...] | None = None) -> Iterator[Keyed]:
    """Makes table t, and splits it by its key or by `columns`."""
    database.execute("DROP TABLE IF EXISTS t", f"CREATE TABLE t ({ddl})")
    endpoint = parse_endpoint(database.url)
    session = SqlSession(lambda: connect(endpoint, None))
    table = TableId(database.name, "t")
    with contextlib.closing(connect(endpoint, None)) as connection:
        facts = read_tables(connection, [table])[table]
        schema = load_schema(connection, table)
    flavour: Flavour = "mariadb" if database.kind == "mariadb" else "mysql"

    def usable(column: Column) -> bool:
        return can_split_by(column, flavour)

    try:
        yield Keyed(database, schema, split_key(facts, schema, usable) if columns is None else columns, session)
    finally:
        session.close()


def insert(database: Database, sql: str, rows: list[tuple[Any, ...]]) -> None:
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.executemany(sql, rows)


def some_strings(count: int) -> list[str]:
    chance = random.Random(5)
    found = {"", " ", "a", "a ", "A", "a\t", "B", "b", "é", "e\u0301", "ß", "ss", "SS"}
    while len(found) < count:
        text = "".join(chance.choices(LETTERS, k=chance.choice([1, 1, 2, 2, 3, 4, 6])))
        found |= {text, text + " ", text + " \t", text.upper(), text + "  " + text[:1]}
    return sorted(found)


@pytest.mark.pitfall(14)
@pytest.mark.pitfall(15)
@pytest.mark.parametrize(
    "collation", [f"mysql {c}" for c in MYSQL_COLLATIONS] + [f"mariadb {c}" for c in MARIADB_COLLATIONS]
)
def test_rank_order_is_the_servers_order_and_equal_ranks_are_its_equality(
    collation: str, request: pytest.FixtureRequest
) -> None:
    kind, name = collation.split()
    database: Database = request.getfixturevalue(f"{kind}_database")
    charset = name.split("_")[0]
    ddl = f"s VARCHAR(40) CHARACTER SET {charset} COLLATE {name} NOT NULL, n INT NOT NULL, PRIMARY KEY (s, n)"
    with keyed(database, ddl) as t:
        assert t.columns == ("s", "n")
        t.columns = ("s",)
        back = f"CONVERT(CONVERT(_utf8mb4 %s USING {charset}) USING utf8mb4) = _utf8mb4 %s COLLATE utf8mb4_bin"
        insert(
            database,
            f"INSERT INTO t SELECT %s, %s FROM DUAL WHERE {back} AND LENGTH(_utf8mb4 %s) = "
            f"LENGTH(CONVERT(CONVERT(_utf8mb4 %s USING {charset}) USING utf8mb4))",
            [(text, i, text, text, text, text) for i, text in enumerate(some_strings(180))],
        )
        texts = [row[0] for row in database.query("SELECT s FROM t ORDER BY s")]
        assert len(texts) > 20

        from_log = t.encoded_keys(s=pa.array(texts))
        assert from_log == sorted(from_log)
        chance = random.Random(3)
        pairs = [*zip(range(len(texts) - 1), range(1, len(texts)), strict=True)]
        pairs += [(chance.randrange(len(texts)), chance.randrange(len(texts))) for _ in range(300)]
        literal = f"CONVERT(_utf8mb4 x'{{}}' USING {charset}) COLLATE {name}"
        shown = [literal.format(text.encode().hex()) for text in texts]
        compared = ", ".join(f"({shown[a]} > {shown[b]}) - ({shown[a]} < {shown[b]})" for a, b in pairs)
        for (a, b), answer in zip(pairs, database.query(f"SELECT {compared}")[0], strict=True):
            assert (from_log[a] > from_log[b]) - (from_log[a] < from_log[b]) == answer, (texts[a], texts[b])

        bounds = t.bounds(rows=1)
        assert [bytes.fromhex(bound.encoded_key) for bound in bounds] == sorted(set(from_log))[1:]
        sizes = t.counts(bounds[::7])
        starts = [0, *(from_log.index(bytes.fromhex(b.encoded_key)) for b in bounds[::7]), len(texts)]
        assert sizes == [b - a for a, b in itertools.pairwise(starts)]


def check_type(database: Database, key: KeyValues) -> None:
    with keyed(database, f"k {key.sql_type} NOT NULL PRIMARY KEY, v INT") as t:
        assert t.columns == ("k",)
        database.execute("INSERT INTO t (k) VALUES " + ", ".join(f"({text})" for text in key.values))
        bounds = t.bounds(rows=1)
        assert len(bounds) == len(key.values) - 1
        assert t.counts(bounds) == [1] * len(key.values)
        encoded_keys = [bytes.fromhex(bound.encoded_key) for bound in bounds]
        assert encoded_keys == sorted(set(encoded_keys))
        assert t.keys.describe(t.schema.table, t.columns).greatest == bounds[-1]
        from_log = t.encoded_keys(k=key.array)
        assert from_log[1:] == encoded_keys
        assert from_log[0] < encoded_keys[0]


@pytest.mark.pitfall(16)
@pytest.mark.pitfall(17)
@pytest.mark.pitfall(22)
@pytest.mark.parametrize("key", KEY_VALUES, ids=[key.sql_type for key in KEY_VALUES])
def test_bounds_of_every_type_are_exact_on_mysql(key: KeyValues, mysql_database: Database) -> None:
    check_type(mysql_database, key)


@pytest.mark.pitfall(16)
@pytest.mark.pitfall(17)
@pytest.mark.pitfall(22)
@pytest.mark.parametrize(
    "key", [*KEY_VALUES, *MARIADB_KEY_VALUES], ids=[key.sql_type for key in [*KEY_VALUES, *MARIADB_KEY_VALUES]]
)
def test_bounds_of_every_type_are_exact_on_mariadb(key: KeyValues, mariadb_database: Database) -> None:
    check_type(mariadb_database, key)


READ_BY_RANGE = {
    "bigint unsigned": lambda i: 2**63 + i,
    "decimal(30,4)": lambda i: f"{i}.1234",
    "date": lambda i: date(2000, 1, 1) + timedelta(days=i),
    "datetime(6)": lambda i: datetime(2000, 1, 1) + timedelta(seconds=i),
    "timestamp": lambda i: datetime(2000, 1, 1) + timedelta(seconds=i),
    "time(3)": lambda i: timedelta(seconds=i - 300),
    "bit(64)": lambda i: i,
    "binary(8)": lambda i: i.to_bytes(8, "big"),
    "varbinary(20)": lambda i: str(i).encode(),
    "varchar(20) collate utf8mb4_bin": lambda i: f"k{i:06}",
    "varchar(20) collate utf8mb4_unicode_ci": lambda i: f"k{i:06}",
    "varchar(20) character set latin1": lambda i: f"k{i:06}",
    "char(20) character set gbk": lambda i: f"k{i:06}",
    "varchar(20) character set utf16": lambda i: f"k{i:06}",
    "float": lambda i: i / 10,
    "double": lambda i: i / 10,
}


def explained(database: Database, sql: str) -> dict[str, Any]:
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {'FORMAT=TRADITIONAL ' if database.kind == 'mysql' else ''}{sql}")
        names = [column[0].lower() for column in cursor.description]
        return dict(zip(names, cursor.fetchone(), strict=True))


@pytest.mark.parametrize("server", ["mysql", "mariadb"])
def test_ranges_of_every_type_are_read_by_the_index(server: str, request: pytest.FixtureRequest) -> None:
    database: Database = request.getfixturevalue(f"{server}_database")
    for sql_type, value in READ_BY_RANGE.items():
        with keyed(database, f"k {sql_type} NOT NULL PRIMARY KEY, v VARCHAR(100)") as t:
            insert(database, "INSERT INTO t VALUES (%s, %s)", [(value(i), "x" * 50) for i in range(600)])
            database.query("ANALYZE TABLE t")
            bounds = t.bounds(rows=50)
            assert len(bounds) == 11, sql_type
            assert t.counts(bounds[::4]) == [50, 200, 200, 150], sql_type
            plan = explained(database, f"SELECT k, v FROM t WHERE {t.condition(KeyRange(*bounds[3:5]))}")
            assert (plan["type"], plan["key"]) == ("range", "PRIMARY"), (sql_type, plan)


@pytest.mark.parametrize("sql_type", ["ENUM('c','b','a','2','1','0')", "SET('c','1','0')"])
@pytest.mark.parametrize("server", ["mysql", "mariadb"])
def test_ranges_of_numbered_values_are_read_by_the_index(
    server: str, sql_type: str, request: pytest.FixtureRequest
) -> None:
    """The number 0 of an ENUM is the invalid value."""
    database: Database = request.getfixturevalue(f"{server}_database")
    with keyed(database, f"k {sql_type} NOT NULL, id INT NOT NULL, v VARCHAR(100), PRIMARY KEY (k, id)") as t:
        assert t.columns == ("k", "id")
        insert(database, "INSERT INTO t VALUES (%s, %s, %s)", [(i % 7, i, "x" * 50) for i in range(700)])
        database.query("ANALYZE TABLE t")
        bounds = t.bounds(rows=30)
        assert t.counts(bounds) == [30] * 23 + [10]
        for key_range in (KeyRange(None, bounds[0]), KeyRange(*bounds[8:10]), KeyRange(bounds[-1], None)):
            plan = explained(database, f"SELECT k, id, v FROM t WHERE {t.condition(key_range)}")
            assert (plan["type"], plan["key"]) == ("range", "PRIMARY"), plan
            assert int(plan["rows"]) < 100, plan
        rows = database.query("SELECT k, id FROM t ORDER BY k, id")
        batch = pa.RecordBatch.from_pydict(
            {"k": pa.array([row[0] for row in rows]), "id": pa.array([row[1] for row in rows], pa.int32())}
        )
        from_log = t.ranks_of(batch)
        assert from_log == sorted(set(from_log))
        assert t.keys.bounds_of(t.schema.table, t.columns, batch.slice(30, 1)) == bounds[:1]


def test_types_that_copies_order_differently_only_begin_a_split_key(source_database: Database) -> None:
    """A copy is replaced range by range only if it has the order of the split key."""
    with keyed(source_database, "a INT NOT NULL, k ENUM('x') NOT NULL, b INT NOT NULL, PRIMARY KEY (a, k, b)") as t:
        assert t.columns == ("a",)


COMPOSITE = "a INT NOT NULL, b VARCHAR(20) NOT NULL, c DATETIME(3) NOT NULL, v VARCHAR(50), PRIMARY KEY (a, b, c)"


@pytest.mark.pitfall(18)
@pytest.mark.parametrize("server", ["mysql", "mariadb"])
def test_composite_keys_are_cut_by_all_columns_and_read_by_the_index(
    server: str, request: pytest.FixtureRequest
) -> None:
    database: Database = request.getfixturevalue(f"{server}_database")
    with keyed(database, COMPOSITE) as t:
        rows = [
            (a, f"k{b}", datetime(2024, 1, 1) + timedelta(hours=c), "x" * 40)
            for a in (-3, 0, 7)
            for b in range(25)
            for c in range(20)
        ]
        insert(database, "INSERT INTO t VALUES (%s, %s, %s, %s)", rows)
        database.query("ANALYZE TABLE t")
        bounds = t.bounds(rows=111)
        assert t.counts(bounds) == [111] * 13 + [57]
        for key_range in (KeyRange(bounds[2], bounds[3]), KeyRange(bounds[0], bounds[1])):
            plan = explained(database, f"SELECT * FROM t WHERE {t.condition(key_range)}")
            assert (plan["type"], plan["key"]) == ("range", "PRIMARY")
            assert int(plan["rows"]) < 250
        batch = pa.RecordBatch.from_pydict(
            {
                "a": pa.array([row[0] for row in rows], pa.int32()),
                "b": pa.array([row[1] for row in rows]),
                "c": pa.array([row[2] for row in rows], pa.timestamp("us")),
            }
        )
        encoded_keys = t.keys.encoded_keys(t.schema, t.columns, batch)
        pieces = [within(encoded_keys, KeyRange(a, b)) for a, b in zip([None, *bounds], [*bounds, None], strict=True)]
        assert [int(piece.sum()) for piece in pieces] == [111] * 13 + [57]
        assert np.array_equal(sum(piece.astype(int) for piece in pieces), np.ones(len(rows)))


@pytest.mark.parametrize("server", ["mysql", "mariadb"])
def test_many_rows_with_one_bound_value_stay_in_one_piece(server: str, request: pytest.FixtureRequest) -> None:
    database: Database = request.getfixturevalue(f"{server}_database")
    with keyed(
        database, "a VARCHAR(10) COLLATE utf8mb4_general_ci NOT NULL, b INT NOT NULL, PRIMARY KEY (a, b)", ("a",)
    ) as t:
        values = ["a", "A", "b", "b ", "c", "d", "é", "E"]
        sizes = [30, 25, 1, 1, 60, 2, 3, 40]
        rows = [
            (text, i)
            for n, (text, size) in enumerate(zip(values, sizes, strict=True))
            for i in range(n * 100, n * 100 + size)
        ]
        insert(database, "INSERT INTO t VALUES (%s, %s)", rows)
        for wanted in (1, 2, 10, 55, 56, 200):
            bounds = t.bounds(rows=wanted)
            counts = t.counts(bounds)
            assert sum(counts) == len(rows)
            assert all(count >= wanted for count in counts[:-1])
        assert t.counts(t.bounds(rows=1)) == [55, 2, 60, 2, 43]
        assert t.counts(t.bounds(rows=3)) == [55, 62, 45]


def test_a_key_of_as_many_columns_as_the_server_allows(source_database: Database) -> None:
    """MariaDB ends with signal 11 for a range of 32 columns of an index."""
    count = 16 if source_database.kind == "mysql" else 32
    names = [f"c{i}" for i in range(count)]
    with keyed(
        source_database, f"{', '.join(f'{n} INT NOT NULL' for n in names)}, PRIMARY KEY ({', '.join(names)})"
    ) as t:
        insert(
            source_database,
            f"INSERT INTO t VALUES ({', '.join(['%s'] * count)})",
            [(7,) * (count - 2) + (i, i) for i in range(100)],
        )
        assert t.columns == tuple(names[:31])
        assert t.counts(t.bounds(rows=10)) == [10] * 10


def test_bounds_stop_before_until_and_start_after(source_database: Database) -> None:
    with keyed(source_database, "id BIGINT NOT NULL PRIMARY KEY") as t:
        insert(source_database, "INSERT INTO t VALUES (%s)", [(i,) for i in range(100)])

        def bounds(after: int | None, until: int | None, rows: int, count: int) -> list[str]:
            ends = [
                None if n is None else Bound((str(n),), encode_integer(n, unsigned=False).hex()) for n in (after, until)
            ]
            found = t.keys.next_bounds(t.schema.table, ("id",), after=ends[0], until=ends[1], rows=rows, count=count)
            return [bound.literals[0] for bound in found]

        assert bounds(None, None, 40, 5) == ["40", "80"]
        assert bounds(40, 90, 20, 5) == ["60", "80"]
        assert bounds(40, 80, 20, 5) == ["60"]
        assert bounds(-5, None, 99, 1) == ["99"]
        assert bounds(None, None, 100, 1) == []
        assert bounds(None, None, 1, 3) == ["1", "2", "3"]
        assert bounds(200, None, 1, 3) == []


def test_statistics_name_the_ends_of_an_integer_key(source_database: Database) -> None:
    with keyed(source_database, "id BIGINT UNSIGNED NOT NULL PRIMARY KEY, v VARCHAR(100)") as t:
        empty = t.keys.describe(t.schema.table, ("id",))
        assert (empty.greatest, empty.integers) == (None, None)
        rows = [(2**64 - 1 - i, "x" * 90) for i in range(500)]
        insert(source_database, "INSERT INTO t VALUES (%s, %s)", rows)
        source_database.query("ANALYZE TABLE t")
        found = t.keys.describe(t.schema.table, ("id",))
        assert found.integers is not None
        assert (found.integers.least, found.integers.greatest) == (2**64 - 500, 2**64 - 1)
        assert found.integers.unsigned
        assert found.greatest == Bound((str(2**64 - 1),), "f" * 16)
        assert found.row_estimate is not None
        assert 300 < found.row_estimate < 800
        assert found.average_row_bytes is not None


def test_part_of_a_key_is_not_a_unique_integer(source_database: Database) -> None:
    with keyed(source_database, "a INT NOT NULL, b INT NOT NULL, PRIMARY KEY (a, b)", ("a",)) as t:
        insert(source_database, "INSERT INTO t VALUES (%s, %s)", [(1, 1), (1, 2)])
        assert t.keys.describe(t.schema.table, ("a",)).integers is None
        assert t.encoded_keys(a=pa.array([1, -1], pa.int32())) == [
            encode_integer(1, unsigned=False),
            encode_integer(-1, unsigned=False),
        ]


@pytest.mark.parametrize(
    "ddl",
    [
        "k ENUM('','a') NOT NULL PRIMARY KEY",
        "k ENUM('a','😀') NOT NULL PRIMARY KEY",
        f"k ENUM({', '.join(repr(f'v{i}') for i in range(256))}) NOT NULL PRIMARY KEY",
        f"k SET({', '.join(repr(f'v{i}') for i in range(9))}) NOT NULL PRIMARY KEY",
        "k SET('','a') NOT NULL PRIMARY KEY",
        "k FLOAT(7, 4) NOT NULL PRIMARY KEY",
        "k DOUBLE(9, 2) NOT NULL PRIMARY KEY",
        "k VARCHAR(20) CHARACTER SET big5 NOT NULL PRIMARY KEY",
        "k VARCHAR(20) CHARACTER SET cp1250 COLLATE cp1250_czech_cs NOT NULL PRIMARY KEY",
        "k VARCHAR(20) CHARACTER SET sjis NOT NULL PRIMARY KEY",
        "k TEXT NOT NULL, PRIMARY KEY (k(10))",
    ],
)
def test_columns_whose_order_is_not_known_exactly_do_not_cut(ddl: str, source_database: Database) -> None:
    with keyed(source_database, ddl) as t:
        assert t.columns == ()


HOSTILE = [
    "",
    "\0",
    "\t",
    "\x01",
    "\u0301",
    "a",
    "a\t",
    "a\0",
    "a\u0301",
    "e\u200d",
    "\u00ad",
    "b",
    "\u0301b",
    "A\x1f",
    "あ",
]


@pytest.mark.parametrize("collation", ["utf8mb4_uca1400_nopad_as_ci", "utf8mb4_nopad_bin", "utf8mb4_general_nopad_ci"])
def test_no_row_is_lost_of_a_char_key_that_mariadb_does_not_pad(collation: str, mariadb_database: Database) -> None:
    """Its index has other neighbours than SQL: a row may be neither before a value nor at or after it."""
    with keyed(mariadb_database, f"k CHAR(8) COLLATE {collation} NOT NULL, n INT NOT NULL, PRIMARY KEY (k, n)") as t:
        insert(mariadb_database, "INSERT INTO t VALUES (%s, %s)", [(text, i) for i, text in enumerate(HOSTILE)])
        counts = t.counts(t.bounds(rows=1)) if t.columns else [t.count(KeyRange(None, None))]
        assert sum(counts) == len(HOSTILE)
    with keyed(mariadb_database, f"k VARCHAR(8) COLLATE {collation} NOT NULL, n INT NOT NULL, PRIMARY KEY (k, n)") as t:
        assert t.columns == ("k", "n")


def test_bounds_of_uuids_tile_a_table_in_the_order_of_its_index(mariadb_database: Database) -> None:
    """SQL's comparison is no total order once values of versions 4 and 7 meet, and another one than the index's."""
    chance = random.Random(7)
    some = [0, 1, 0x10, 0x4F, 0x5F, 0x60, 0x7F, 0x80, 0x81, 0xBF, 0xFF]
    texts = {str(uuid.UUID(bytes=bytes(chance.choices(some, k=16)))) for _ in range(300)}
    texts |= {
        str(uuid.UUID(int=chance.getrandbits(128), version=version)) for version in (1, 3, 4, 5) for _ in range(50)
    }
    with keyed(mariadb_database, "k UUID NOT NULL PRIMARY KEY, v VARCHAR(100) DEFAULT 'some text'") as t:
        assert t.columns == ("k",)
        with contextlib.closing(mariadb_database.connect()) as connection:
            assert orders_as_known(connection, t.schema.table, "k")
            assert not orders_as_known(connection, t.schema.table, "v")
        insert(mariadb_database, "INSERT IGNORE INTO t (k) VALUES (%s)", [(text,) for text in sorted(texts)])
        mariadb_database.query("ANALYZE TABLE t")
        known = [row[0] for row in mariadb_database.query("SELECT k FROM t FORCE INDEX (PRIMARY) ORDER BY k")]
        assert len(known) > 300
        from_log = t.encoded_keys(k=pa.array(known))
        assert from_log == sorted(set(from_log))
        bounds = t.bounds(rows=1)
        assert [bytes.fromhex(bound.encoded_key) for bound in bounds] == from_log[1:]
        assert t.keys.describe(t.schema.table, t.columns).greatest == bounds[-1]
        assert t.counts(bounds[::5]) == [1, *[5] * (len(bounds[::5]) - 1), len(known) - 1 - 5 * (len(bounds[::5]) - 1)]
        for key_range in (KeyRange(bounds[100], bounds[120]), KeyRange(None, bounds[9]), KeyRange(bounds[-9], None)):
            plan = explained(mariadb_database, f"SELECT k, v FROM t WHERE {t.condition(key_range)}")
            assert (plan["type"], plan["key"]) == ("range", "PRIMARY"), plan
            assert int(plan["rows"]) < 60


def test_a_uuid_that_mariadb_refuses_as_a_text_is_another_one_as_bytes(mariadb_database: Database) -> None:
    """Its record looks like that of a swapped one, so the server shows what it would be if its fields were swapped."""
    given = uuid.UUID("22000000-0000-9000-8000-000000000001")
    mariadb_database.execute("CREATE TABLE t (k UUID PRIMARY KEY)", f"INSERT INTO t VALUES (x'{given.hex}')")
    ((shown,),) = mariadb_database.query("SELECT k FROM t")
    assert shown == "00000001-0000-8000-9000-220000000000"
    assert mariadb_database.query(f"SELECT k FROM t WHERE k = '{shown}'") == []
    with pytest.raises(pymysql.MySQLError, match="Incorrect uuid"):
        mariadb_database.execute(f"INSERT INTO t VALUES ('{given}')")


@pytest.mark.parametrize("kind", ["enum('')", "float(7,4)", "json", "text", "geometry"])
def test_key_column_is_none_for_what_can_not_cut(kind: str, source_database: Database) -> None:
    with keyed(source_database, f"id INT PRIMARY KEY, k {kind}") as t:
        assert key_column(t.schema.column("k")) is None


def test_char_columns_rank_alike_by_bound_and_by_log(source_database: Database) -> None:
    with keyed(source_database, "k CHAR(6) NOT NULL PRIMARY KEY") as t:
        insert(source_database, "INSERT INTO t VALUES (%s)", [("a",), ("b  ",), ("abcdef",), ("",), ("ü",)])
        texts = [row[0] for row in source_database.query("SELECT k FROM t ORDER BY k")]
        assert t.encoded_keys(k=pa.array(texts))[1:] == [bytes.fromhex(bound.encoded_key) for bound in t.bounds(rows=1)]


def test_a_killed_connection_is_replaced(source_database: Database) -> None:
    with keyed(source_database, "id INT NOT NULL PRIMARY KEY") as t:
        insert(source_database, "INSERT INTO t VALUES (%s)", [(i,) for i in range(10)])
        assert len(t.bounds(rows=3)) == 3
        ((session,),) = t.session.query("SELECT CONNECTION_ID()")
        source_database.execute(f"KILL {session}")
        assert len(t.bounds(rows=3)) == 3
