"""Tables, columns, keys and statistics, against what the servers themselves log."""

import contextlib
from collections.abc import Iterator

import pytest

from devtools.server import Server
from tests.support.logged_tables import logged
from tests.support.mysql_accounts import account, root_endpoint
from tests.support.servers import Database, FindServer, fresh_database, require_logged_generated_columns
from tidemark.conf.tables import parse_table_glob
from tidemark.readers.mysql.connect import Connection, connect
from tidemark.readers.mysql.schema.catalog import find_tables, load_schema, schema_of, split_key, table_statistics
from tidemark.readers.mysql.schema.table_facts import FEW_TABLES, read_tables
from tidemark.state.errors import SchemaChangedError, SourceNotUsableError
from tidemark.state.table import TableId

pytestmark = pytest.mark.integration

BOTH = {
    "plain": ["CREATE TABLE plain (id INT PRIMARY KEY, a INT)", "INSERT INTO plain VALUES (1, 2)"],
    "moved": [
        "CREATE TABLE moved (a INT, id INT PRIMARY KEY)",
        "ALTER TABLE moved ADD COLUMN first INT FIRST, ADD COLUMN middle INT AFTER a, ADD COLUMN last INT",
        "ALTER TABLE moved DROP COLUMN a",
        "INSERT INTO moved (id) VALUES (1)",
    ],
    "generated": [
        "CREATE TABLE `generated` (id INT PRIMARY KEY, v INT AS (id + 1) VIRTUAL, a INT, s INT AS (a * 2) STORED, "
        "t TEXT AS (CONCAT(a, 'x')) VIRTUAL)",
        "INSERT INTO `generated` (id, a) VALUES (1, 2)",
    ],
    "invisible": [
        "CREATE TABLE invisible (id INT PRIMARY KEY, a INT INVISIBLE DEFAULT 4, b INT)",
        "INSERT INTO invisible (id) VALUES (1)",
    ],
}
MYSQL = {
    "functional": [
        "CREATE TABLE functional (id INT PRIMARY KEY, a INT, KEY ((a + 1)), UNIQUE KEY ((CAST(a AS CHAR(9)))))",
        "ALTER TABLE functional ADD COLUMN b INT",
        "INSERT INTO functional VALUES (1, 2, 3)",
    ],
    "keyless": [
        "SET sql_generate_invisible_primary_key = ON",
        "CREATE TABLE keyless (a INT)",
        "INSERT INTO keyless (a) VALUES (1)",
    ],
}
MARIADB = {
    "hashed": [
        "CREATE TABLE hashed (id INT PRIMARY KEY, t TEXT, b BLOB, UNIQUE (t), UNIQUE (b))",
        "ALTER TABLE hashed ADD COLUMN z INT",
        "INSERT INTO hashed VALUES (1, 'a', 'b', 2)",
    ],
    "hashed_by_name": [
        "CREATE TABLE hashed_by_name (id INT PRIMARY KEY, a INT, b CHAR(3), UNIQUE (a) USING HASH, "
        "UNIQUE (b) USING BTREE)",
        "INSERT INTO hashed_by_name VALUES (1, 2, 'c')",
    ],
    "long_key": [
        "CREATE TABLE long_key (id INT PRIMARY KEY, a VARCHAR(3000), b VARCHAR(3000), UNIQUE (a, b))",
        "INSERT INTO long_key VALUES (1, '2', '3')",
    ],
    "no_longer_hashed": [
        "CREATE TABLE no_longer_hashed (id INT PRIMARY KEY, t TEXT, UNIQUE u (t), KEY (id) USING HASH)",
        "ALTER TABLE no_longer_hashed DROP INDEX u",
        "INSERT INTO no_longer_hashed VALUES (1, '2')",
    ],
    "period": [
        "CREATE TABLE period (id INT, s DATE, e DATE, PERIOD FOR p(s, e), PRIMARY KEY (id, p WITHOUT OVERLAPS))",
        "INSERT INTO period VALUES (1, '2020-01-01', '2020-02-01')",
    ],
}


@contextlib.contextmanager
def session(database: Database) -> Iterator[Connection]:
    with contextlib.closing(connect(root_endpoint(database.server), None)) as connection:
        yield connection


def globs(*texts: str) -> list:
    return [parse_table_glob(text) for text in texts]


@pytest.fixture(
    params=[("mysql", None), ("mariadb", None), ("mariadb", "11.8")], ids=lambda p: "-".join(filter(None, p))
)
def any_database(request: pytest.FixtureRequest, find_server: FindServer) -> Iterator[Database]:
    with fresh_database(find_server(request.param[0], request.param[1])) as database:
        yield database


@pytest.mark.pitfall(23)
def test_columns_are_those_of_the_logs_row_images(any_database: Database) -> None:
    tables = BOTH | (MYSQL if any_database.kind == "mysql" else MARIADB)
    with logged(any_database) as log, contextlib.closing(any_database.connect()) as connection:
        for statements in tables.values():
            for statement in statements:
                connection.cursor().execute(statement)
    with session(any_database) as connection:
        facts = read_tables(connection, [TableId(any_database.name, name) for name in tables])
    found = {table.name: [c.name for c in schema_of(f).columns] for table, f in facts.items()}
    assert found == log.columns


def test_all_kinds_of_generated_columns_are_captured_and_marked(any_database: Database) -> None:
    require_logged_generated_columns(any_database.server)
    any_database.execute(BOTH["generated"][0])
    with session(any_database) as connection:
        schema = load_schema(connection, TableId(any_database.name, "generated"))
    assert [(c.name, c.generated, c.captured) for c in schema.columns] == [
        ("id", False, True),
        ("v", True, True),
        ("a", False, True),
        ("s", True, True),
        ("t", True, True),
    ]


def test_a_generated_invisible_primary_key_is_the_key(mysql_database: Database) -> None:
    with contextlib.closing(mysql_database.connect()) as connection:
        for statement in MYSQL["keyless"]:
            connection.cursor().execute(statement)
    with session(mysql_database) as connection:
        schema = load_schema(connection, TableId(mysql_database.name, "keyless"))
    assert schema.key == ("my_row_id",)
    assert schema.column("my_row_id").arrow_type == "decimal(20,0)"


def test_charsets_nullability_and_types_come_from_the_server(source_database: Database) -> None:
    source_database.execute(
        "CREATE TABLE t (id BIGINT UNSIGNED NOT NULL, l VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_german1_ci, "
        "u TEXT CHARACTER SET utf8mb4, b BLOB, e ENUM('a''b','c,d','e\\\\f','ü') CHARACTER SET utf8mb4, "
        "d DECIMAL(65,30) NOT NULL, n DECIMAL(20,4), ts TIMESTAMP(6) NULL, PRIMARY KEY (id))"
    )
    with session(source_database) as connection:
        schema = load_schema(connection, TableId(source_database.name, "t"), version=3)
    assert schema.version == 3
    assert [(c.name, c.arrow_type, c.nullable, c.charset) for c in schema.columns] == [
        ("id", "decimal(20,0)", False, None),
        ("l", "string", True, "latin1"),
        ("u", "string", True, "utf8mb4"),
        ("b", "binary", True, None),
        ("e", "string", True, "utf8mb4"),
        ("d", "string", False, None),
        ("n", "decimal(20,4)", True, None),
        ("ts", "timestamptz", True, None),
    ]
    assert schema.column("l").collation == "latin1_german1_ci"


def test_keys_and_split_keys_of_real_indexes(source_database: Database) -> None:
    source_database.execute(
        "CREATE TABLE composite (b INT, a VARCHAR(20), c INT, PRIMARY KEY (a, b))",
        "CREATE TABLE partly (t TEXT, id INT, PRIMARY KEY (id, t(10)))",
        "CREATE TABLE `unique` (e BINARY(16) NOT NULL, x INT, n INT NOT NULL, UNIQUE (e), UNIQUE (n, x))",
    )
    with session(source_database) as connection:
        facts = read_tables(connection, [TableId(source_database.name, n) for n in ("composite", "partly", "unique")])
    composite, partly, unique = facts.values()
    assert schema_of(composite).key == ("a", "b")
    assert split_key(composite, schema_of(composite)) == ("a", "b")
    assert split_key(partly, schema_of(partly)) == ("id",)
    assert schema_of(unique).key == ()
    assert split_key(unique, schema_of(unique, key_override=("e",))) == ("e",)


def test_globs_find_base_tables_only(source_database: Database) -> None:
    name = source_database.name
    source_database.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY)",
        "CREATE TABLE Orders (id INT PRIMARY KEY)",
        "CREATE TABLE orders_old (id INT PRIMARY KEY)",
        "CREATE TABLE `we.ird` (id INT PRIMARY KEY)",
        "CREATE VIEW orders_view AS SELECT * FROM orders",
    )
    with session(source_database) as connection:
        found = find_tables(connection, globs(f"{name}.*"), globs(f"{name}.*_old"))
        assert found == [TableId(name, t) for t in ("Orders", "orders", "we.ird")]
        assert find_tables(connection, globs(f"{name}.`we.ird`", f"{name}.orders")) == [
            TableId(name, "orders"),
            TableId(name, "we.ird"),
        ]
        assert read_tables(connection, [TableId(name, "Orders")]).keys() == {TableId(name, "Orders")}
        everything = find_tables(connection, globs("*.*"))
        assert {t.database for t in everything}.isdisjoint({"mysql", "sys", "information_schema", "performance_schema"})
        assert set(found) < set(everything)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("{name}.orders_view", "not a table but a view"),
        ("{name}.nothing", "matches no table"),
        ("{name}.nothing*", "matches no table"),
        ("no_such_database.*", "matches no table"),
        ("mysql.user", "belongs to the server"),
        ("{name}.ORDERS", "matches no table"),
    ],
)
def test_names_that_are_no_tables_are_refused(source_database: Database, pattern: str, reason: str) -> None:
    source_database.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY)", "CREATE VIEW orders_view AS SELECT * FROM orders"
    )
    with session(source_database) as connection, pytest.raises(SourceNotUsableError, match=reason):
        find_tables(connection, globs(f"{source_database.name}.orders", pattern.format(name=source_database.name)))


def test_excluding_everything_is_refused(source_database: Database) -> None:
    source_database.execute("CREATE TABLE orders (id INT PRIMARY KEY)")
    everything = globs(f"{source_database.name}.*")
    with session(source_database) as connection, pytest.raises(SourceNotUsableError, match="excludes every table"):
        find_tables(connection, everything, everything)


def test_an_account_finds_only_what_it_may_read(source_database: Database) -> None:
    name = source_database.name
    source_database.execute("CREATE TABLE mine (id INT PRIMARY KEY)", "CREATE TABLE theirs (id INT PRIMARY KEY)")
    with (
        account(source_database.server, f"SELECT ON {name}.mine") as endpoint,
        contextlib.closing(connect(endpoint, None)) as connection,
    ):
        assert find_tables(connection, globs(f"{name}.*")) == [TableId(name, "mine")]
        with pytest.raises(SourceNotUsableError, match="theirs"):
            read_tables(connection, [TableId(name, "theirs")])


def test_many_tables_are_read_as_exactly_as_few(source_database: Database) -> None:
    count = FEW_TABLES + 5
    source_database.execute(
        *(f"CREATE TABLE t{i} (b{i} INT, a{i} INT UNIQUE, PRIMARY KEY (b{i}, a{i}))" for i in range(count))
    )
    source_database.execute(
        "CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES t1 (a1) ON DELETE CASCADE)"
    )
    ids = [TableId(source_database.name, f"t{i}") for i in range(count)] + [TableId(source_database.name, "child")]
    with session(source_database) as connection:
        many = read_tables(connection, ids)
        one_by_one = {table: read_tables(connection, [table])[table] for table in ids}
    assert list(many) == ids
    assert many == one_by_one
    assert [k.on_delete for k in many[ids[-1]].foreign_keys] == ["CASCADE"]


@pytest.mark.pitfall(82)
def test_catalog_queries_do_not_grow_with_the_number_of_tables(source_database: Database) -> None:
    source_database.execute(*(f"CREATE TABLE t{i} (id INT PRIMARY KEY)" for i in range(FEW_TABLES + 20)))
    with session(source_database) as connection:
        before = _questions(connection)
        ids = find_tables(connection, globs(f"{source_database.name}.*"))
        read_tables(connection, ids)
        assert _questions(connection) - before < 10


def _questions(connection: Connection) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Questions'")
        row = cursor.fetchone()
    assert row is not None
    return int(row[1])


def test_statistics_are_fresh(source_database: Database) -> None:
    table = TableId(source_database.name, "t")
    source_database.execute("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, a CHAR(200) NOT NULL)")
    with session(source_database) as connection:
        assert table_statistics(connection, table).row_estimate == 0
        source_database.execute(
            "INSERT INTO t (a) VALUES ('x'), ('y'), ('z'), ('w')",
            *["INSERT INTO t (a) SELECT a FROM t"] * 8,
            "ANALYZE TABLE t",
        )
        found = table_statistics(connection, table)
        assert found.row_estimate is not None
        assert 800 <= found.row_estimate <= 1300
        assert found.average_row_bytes is not None
        assert found.average_row_bytes >= 200
        source_database.execute("DROP TABLE t")
        with pytest.raises(SchemaChangedError, match="does not exist any more") as caught:
            table_statistics(connection, table)
        assert caught.value.table == table  # the others can be read


def test_lower_case_servers_show_how_a_name_is_spelt(find_server: FindServer) -> None:
    server: Server = find_server("mysql", lower_case_table_names=1)
    with fresh_database(server) as database:
        database.execute("CREATE TABLE Orders (id INT PRIMARY KEY)")
        with session(database) as connection:
            with pytest.raises(SourceNotUsableError) as caught:
                find_tables(connection, globs(f"{database.name}.Orders"))
            assert f"spells it {database.name}.orders" in caught.value.remedy
            assert find_tables(connection, globs(f"{database.name}.*")) == [TableId(database.name, "orders")]
