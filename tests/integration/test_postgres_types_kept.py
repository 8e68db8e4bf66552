"""PostgreSQL tables copied to PostgreSQL keep their types: the copy's values have the text of the source's, and its columns the
source's types. Copies that were made with text columns go on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_postgres_log_types import CASES, TYPES
from tests.support.epochs import run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database, fresh_database
from tidemark.state.errors import SinkError

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(37)]

KEPT = [
    "numeric",
    "numeric(39,1)",
    "json",
    "jsonb",
    "uuid",
    "inet",
    "cidr",
    "macaddr",
    "integer[]",
    "timestamp with time zone[]",
    "bytea[]",
    "double precision[]",
    "real[]",
    "int4range",
    "tstzrange",
    "int4multirange",
    "bit(3)",
    "bit varying",
    "money",
    "point",
    "tsvector",
    "pg_lsn",
    "interval",
    "time with time zone",
    "mood",
]
AS_TEXT = ["pair", "words", '"Odd Type"']
"""Types that the target may not have."""
NUMBERS = ("'NaN'", "'Infinity'", "'-Infinity'", "1e-1000", "1e1000", "-0.10", "1e16000 + 1e-16000", "12.300", "0")


def types_of(database: Database, table: str) -> dict[str, str]:
    return dict(
        database.query(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            f"WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped"
        )
    )


def texts_of(database: Database, table: str, key: str) -> list[tuple[str, ...]]:
    """Each column as its output function writes it."""
    columns = ", ".join(f"concat({name}), num_nulls({name})" for name in sorted(types_of(database, table)))
    found: list[tuple[str, ...]] = database.query(f"SELECT {columns} FROM {table} ORDER BY {key}")
    return found


@pytest.fixture
def target(postgres_database: Database) -> Iterator[Database]:
    with fresh_database(postgres_database.server) as database:
        yield database


def test_types_and_values_are_kept(postgres_database: Database, target: Database, tmp_path: Path) -> None:
    cases = [case for case in CASES if case.canonical != "binary"]
    columns = ", ".join(f"c{i} {case.type}" for i, case in enumerate(cases))
    postgres_database.execute(*TYPES, f"CREATE TABLE types (id int PRIMARY KEY, {columns})")
    longest = max(len(case.values) for case in cases)

    def insert(first: int) -> None:
        for i in range(longest):
            row = [case.values[i] if i < len(case.values) else "NULL" for case in cases]
            postgres_database.execute(f"INSERT INTO types VALUES ({first + i}, {', '.join(row)})")

    insert(0)
    sink = {"type": "mirror", "url": target.url, "table": "{table}"}
    path = write_job(tmp_path, source=source_of(postgres_database), sink=sink)
    run_epochs(path)
    insert(100)
    postgres_database.execute("UPDATE types SET id = -id WHERE id % 2 = 1", "DELETE FROM types WHERE id = 100")
    run_epochs(path)
    found = types_of(target, "types")
    for i, case in enumerate(cases):
        if case.type in KEPT:
            assert found[f"c{i}"] == case.type
        elif case.type in AS_TEXT:
            assert found[f"c{i}"] == "text"
    assert {case.type for case in cases} >= {*KEPT, *AS_TEXT}
    assert texts_of(target, "types", "id") == texts_of(postgres_database, "types", "id")


ALONE = [
    *(
        "boolean",
        "smallint",
        "integer",
        "bigint",
        "real",
        "double precision",
        "text",
        "bytea",
        "date",
        "uuid",
        "json",
        "jsonb",
    ),
    *(
        "numeric",
        "numeric(5,2)",
        "numeric(50,3)",
        "inet",
        "cidr",
        "macaddr",
        "macaddr8",
        "bit(3)",
        "bit varying(3)",
        "money",
    ),
    *("timestamp without time zone", "timestamp with time zone", "interval", "interval(3)", "time without time zone"),
    *(
        "time(3) with time zone",
        "tsvector",
        "tsquery",
        "point",
        "line",
        "lseg",
        "box",
        "path",
        "polygon",
        "circle",
        "pg_lsn",
    ),
    *("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange", "int4multirange", "datemultirange"),
]
"""Types that a copy keeps, as the server names them."""


def test_each_type_and_its_array_is_accepted(postgres_database: Database, target: Database, tmp_path: Path) -> None:
    types = {
        f"c{i}": name for i, name in enumerate([*ALONE, *(f"{name}[]" for name in ALONE), "character varying(3)[]"])
    }
    columns = ", ".join(f"{name} {sql_type}" for name, sql_type in types.items())
    postgres_database.execute(f"CREATE TABLE types (id int PRIMARY KEY, {columns})", "INSERT INTO types VALUES (1)")
    sink = {"type": "mirror", "url": target.url, "table": "{table}"}
    run_epochs(write_job(tmp_path, source=source_of(postgres_database), sink=sink))
    found = types_of(target, "types")
    assert {name: found[name] for name in types} == types


def test_keys_of_kept_types_and_numbers_of_all_sizes(
    postgres_database: Database, target: Database, tmp_path: Path
) -> None:
    """Keys can be equal that look different."""
    postgres_database.execute(
        "CREATE TABLE keys (address inet, size numeric, tags int[], n numeric, PRIMARY KEY (address, size, tags))",
        *(f"INSERT INTO keys VALUES ('10.0.0.{i}', {i}.0, '{{{i}}}', {n})" for i, n in enumerate(NUMBERS)),
    )
    sink = {"type": "mirror", "url": target.url, "table": "{table}"}
    path = write_job(tmp_path, source=source_of(postgres_database), sink=sink)
    run_epochs(path)
    postgres_database.execute(
        "UPDATE keys SET size = '3.000' WHERE size = 3",
        "UPDATE keys SET n = n + 1 WHERE size < 3",
        "DELETE FROM keys WHERE size = 4",
        "UPDATE keys SET tags = '[0:1]={7,NULL}' WHERE size = 5",
        *(f"INSERT INTO keys VALUES ('::{i}', {i}, '{{}}', {n})" for i, n in enumerate(NUMBERS)),
    )
    run_epochs(path)
    order = "address, size"
    assert types_of(target, "keys") == {"address": "inet", "size": "numeric", "tags": "integer[]", "n": "numeric"}
    assert texts_of(target, "keys", order) == texts_of(postgres_database, "keys", order)


def test_copy_with_text_columns_goes_on(postgres_database: Database, target: Database, tmp_path: Path) -> None:
    postgres_database.execute(
        "CREATE TABLE docs (id int PRIMARY KEY, doc jsonb, at inet, n numeric, long int[])",
        "INSERT INTO docs VALUES (1, '{\"a\": 1}', '::1', 'NaN', '{1,2}')",
    )
    target.execute("CREATE TABLE docs (id int PRIMARY KEY, doc text, at text, n text, long text)")
    sink = {"type": "mirror", "url": target.url, "table": "{table}"}
    path = write_job(tmp_path, source=source_of(postgres_database), sink=sink)
    run_epochs(path)
    postgres_database.execute(
        "UPDATE docs SET n = 'Infinity'", "INSERT INTO docs VALUES (2, '[]', '10.0.0.0/8', 1.50, '{}')"
    )
    run_epochs(path)
    assert texts_of(target, "docs", "id") == texts_of(postgres_database, "docs", "id")


def test_other_type_than_the_sources_is_refused(postgres_database: Database, target: Database, tmp_path: Path) -> None:
    postgres_database.execute("CREATE TABLE t (id int PRIMARY KEY, at inet, flags bit(3), doc json)")
    sink = {"type": "mirror", "url": target.url, "table": "{table}"}
    path = write_job(tmp_path, source=source_of(postgres_database), sink=sink)
    for column, kind in (("at", "cidr"), ("flags", "bit(2)"), ("doc", "jsonb")):
        types = {"at": "inet", "flags": "bit(3)", "doc": "json"} | {column: kind}
        target.execute(
            "DROP TABLE IF EXISTS t", f"CREATE TABLE t (id int PRIMARY KEY, {', '.join(map(' '.join, types.items()))})"
        )
        with pytest.raises(SinkError, match=rf"column {column} is .*, which can't hold every"):
            run_epochs(path)
