"""Split boundaries that somebody wrote into a plan: they are values, never SQL."""

import pytest

from tests.support.mysql_snapshot import SourceTable
from tests.support.postgres_log import LoggedDatabase, logged_postgres  # noqa: F401  a fixture
from tests.support.postgres_snapshot import NO_ANCHOR, SnapshotTable
from tests.support.servers import Database
from tidemark.readers.mysql.keys.key_columns import key_columns, range_condition
from tidemark.state.errors import CheckpointError
from tidemark.state.split import Bound, KeyRange

TYPES = {
    "i": ("BIGINT UNSIGNED", "3"),
    "b": ("BIT(9)", "3"),
    "y": ("YEAR", "'2024'"),
    "d": ("DECIMAL(9, 2)", "-3.50"),
    "da": ("DATE", "'2024-02-29'"),
    "dt": ("DATETIME(3)", "'2024-02-29 01:02:03.500'"),
    "ti": ("TIME(2)", "'-101:02:03.50'"),
    "s": ("VARCHAR(20) CHARACTER SET utf8mb4", "_utf8mb4 x'6162'"),
    "bin": ("VARBINARY(20)", "x'00FF'"),
    "e": ("ENUM('a', 'b', 'c')", "3"),
    "f": ("FLOAT", "-3.5e0"),
}
INJECTED = (
    "0 OR 1=1",
    "(SELECT 1)",
    "3 -- ",
    "3;",
    "'a' OR 'a'='a'",
    "'2024' OR ''=''",
    "x'61' OR 1",
    "_utf8mb4 x'61' OR 1",
    "_utf8mb4 x'6'",
    "_latin1 x'61'",
    "'2024-02-29' + INTERVAL SLEEP(9) SECOND",
    "NULL",
    "i",
    "",
    "3\n",
    "'\\'",
    "٣",
    "4 OR 1=1",
    "1e0 OR 1=1",
)


@pytest.fixture(params=["mysql", "mariadb"])
def table(request: pytest.FixtureRequest) -> SourceTable:
    database: Database = request.getfixturevalue(f"{request.param}_database")
    columns = ", ".join(f"{name} {kind} NOT NULL" for name, (kind, _) in TYPES.items())
    database.execute(f"CREATE TABLE t ({columns}, PRIMARY KEY (i), KEY (s))", f"INSERT INTO t VALUES ({VALUES})")
    return SourceTable(database)


VALUES = ", ".join(literal for _, literal in TYPES.values())


@pytest.mark.integration
@pytest.mark.pitfall(126)
def test_a_bound_of_a_plan_is_a_value_of_its_column(table: SourceTable) -> None:
    for name, (_, literal) in TYPES.items():
        keys = key_columns(table.schema, (name,))
        condition = range_condition(keys, KeyRange(Bound((literal,), "00"), None))
        assert table.database.query(f"SELECT COUNT(*) FROM t WHERE {condition}") == [(1,)], name
        for text in (*INJECTED, *(other for _, other in TYPES.values() if not _same_form(other, literal))):
            for key_range in (KeyRange(Bound((text,), "00"), None), KeyRange(None, Bound((text,), "00"))):
                with pytest.raises(CheckpointError, match=rf"not a value of {name}\.") as caught:
                    range_condition(keys, key_range)
                assert not text or f" {text} " not in str(caught.value)
    two = key_columns(table.schema, ("i", "s"))
    for few in (("3",), ("3", "_utf8mb4 x'61'", "4"), ("3", "4")):
        with pytest.raises(CheckpointError, match="not a value of i, s"):
            range_condition(two, KeyRange(Bound(few, "00"), None))


def _same_form(one: str, other: str) -> bool:
    return one == other or {one, other} == {"3", "-3.50"}  # a whole number is a decimal, too


@pytest.mark.integration
@pytest.mark.pitfall(126)
def test_a_plan_that_somebody_changed_reads_nothing(table: SourceTable) -> None:
    split = table.split(KeyRange(Bound(("9 OR SLEEP(0) = 0",), "0000000000000009"), None))
    with pytest.raises(CheckpointError, match="Find out who changed the checkpoint's files") as caught:
        table.read(split)
    assert "SLEEP" not in str(caught.value)


@pytest.mark.integration
@pytest.mark.pitfall(126)
def test_a_plan_that_somebody_changed_reads_nothing_of_postgresql(
    logged_postgres: LoggedDatabase,  # noqa: F811
) -> None:
    logged_postgres.database.execute("CREATE TABLE t (id bigint PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    table = SnapshotTable(logged_postgres)
    split = table.split(KeyRange(Bound(("9' OR true OR id::text = '",), "0000000000000009"), None))
    with table.reader() as reader, pytest.raises(CheckpointError, match="is not a value of id") as caught:
        reader.read(split, table.schema, NO_ANCHOR)
    assert "OR true" not in str(caught.value)
