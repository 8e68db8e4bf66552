"""Which types hold each value of another one, unchanged."""

from dataclasses import replace

import pytest

from tidemark.readers.mysql.schema import widening as mysql
from tidemark.readers.mysql.schema.types import parse_source_type
from tidemark.readers.postgres.schema import widening as postgres
from tidemark.state.table import Column

pytestmark = pytest.mark.pitfall(42)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ("varchar(10)", "varchar(20)", True),
        ("varchar(20)", "varchar(10)", False),
        ("varchar(10)", "text", True),
        ("varchar(10)", "tinytext", False),
        ("text", "varchar(100)", False),
        ("text", "longtext", True),
        ("mediumtext", "text", False),
        ("text", "blob", False),
        ("varbinary(3)", "blob", True),
        ("varbinary(3)", "text", False),
        ("binary(3)", "binary(4)", False),
        ("char(3)", "char(4)", True),
        ("char(3)", "varchar(4)", False),
        ("tinyint", "bigint", True),
        ("int(11)", "int", True),
        ("int", "int unsigned", False),
        ("int unsigned", "bigint", False),
        ("int unsigned", "bigint unsigned", True),
        ("int(5) unsigned zerofill", "int(9) unsigned zerofill", False),
        ("bigint", "int", False),
        ("int", "varchar(20)", False),
        ("float", "double", False),
        ("decimal(6,2)", "decimal(12,4)", True),
        ("decimal(6,2)", "decimal(6,4)", False),
        ("decimal(6,2)", "decimal(12,1)", False),
        ("decimal(38,2)", "decimal(40,2)", False),
        ("decimal(10,0)", "decimal(11,0)", True),
        ("datetime", "datetime(6)", True),
        ("datetime(6)", "datetime(3)", False),
        ("timestamp", "timestamp(6)", False),
        ("time", "time(3)", False),
        ("enum('a','b')", "enum('a','b','c')", True),
        ("enum('a','b')", "enum('b','a','c')", False),
        ("enum('a','b')", "enum('a')", False),
        ("enum('a','?')", "enum('a','?','c')", False),
        ("enum('a')", "set('a','b')", False),
        ("set('a')", "set('a','b')", True),
        ("bit(3)", "bit(4)", False),
        ("json", "longtext", False),
    ],
)
def test_mysql(before: str, now: str, expected: bool) -> None:
    assert mysql.is_wider(parse_source_type(before), parse_source_type(now)) is expected


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ("character varying(10)", "character varying(20)", True),
        ("character varying(20)", "character varying(10)", False),
        ("character varying", "character varying(10)", False),
        ("character varying(10)", "character varying", True),
        ("character varying(10)", "text", True),
        ("text", "character varying(10)", False),
        ("character(3)", "character(4)", False),
        ("numeric(6,2)", "numeric(12,2)", True),
        ("numeric(6,2)", "numeric(12,3)", False),
        ("numeric(6,2)", "numeric", False),
        ("numeric(6,2)", "numeric(40,2)", False),
        ("timestamp(0) without time zone", "timestamp(6) without time zone", True),
        ("timestamp(0) without time zone", "timestamp without time zone", True),
        ("timestamp without time zone", "timestamp(3) without time zone", False),
        ("timestamp(0) without time zone", "timestamp(6) with time zone", False),
        ("timestamp(0) with time zone", "timestamp with time zone", True),
        ("integer", "bigint", False),
        ("shop.mood", "shop.mood2", False),
        ("character varying(10)[]", "character varying(20)[]", False),
    ],
)
def test_postgres(before: str, now: str, expected: bool) -> None:
    assert postgres.is_wider(before, now) is expected


def test_what_else_may_differ() -> None:
    before = Column("s", "varchar(10)", "string", nullable=False, charset="latin1", collation="latin1_bin")
    now = replace(before, source_type="varchar(20)")
    assert mysql.widens(before, now)
    assert mysql.widens(before, replace(now, nullable=True))
    assert not mysql.widens(replace(before, nullable=True), now)
    for change in (
        {"charset": "utf8mb4"},
        {"collation": "latin1_swedish_ci"},
        {"generated": True},
        {"captured": False},
    ):
        assert not mysql.widens(before, replace(now, **change))  # type: ignore[arg-type]
    before = Column("s", "character varying(10)", "string", nullable=True, number=2, toastable=True)
    assert postgres.widens(before, replace(before, source_type="text", nullable=False))
    assert not postgres.widens(before, replace(before, source_type="text", number=3))
