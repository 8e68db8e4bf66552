"""Whether a target's column can hold every value of a source's column."""

import pytest

from tidemark.sinks.mirror.postgres.types import postgres_value_range
from tidemark.sinks.mirror.value_ranges import (
    Bits,
    Booleans,
    Decimals,
    Duration,
    Integers,
    Text,
    Timestamps,
    holds,
    mysql_value_range,
)


@pytest.mark.parametrize(
    ("target", "source", "expected"),
    [
        ("bigint", "int unsigned", True),
        ("int", "int unsigned", False),
        ("bigint unsigned", "int", False),
        ("decimal(20,0)", "bigint unsigned", True),
        ("decimal(19,0)", "bigint unsigned", False),
        ("decimal(22,2)", "bigint unsigned", True),
        ("decimal(12,2)", "decimal(11,2)", True),
        ("decimal(12,2)", "decimal(12,3)", False),
        ("decimal(13,3)", "decimal(12,3)", True),
        ("decimal(12,3)", "decimal(12,2)", False),
        ("double", "float", True),
        ("float", "double", False),
        ("double", "int", False),
        ("float(7,2)", "float", False),
        ("float(7,2)", "float(7,2)", True),
        ("float", "float(7,2)", True),
        ("double(7,2)", "float(7,2)", False),
        ("double(10,3)", "double", False),
        ("double", "double(10,3)", True),
        ("float(53)", "double", True),
        ("bigint", "bit(63)", True),
        ("bigint", "bit(64)", False),
        ("bigint unsigned", "bit(64)", True),
        ("bit(8)", "bit(9)", False),
        ("smallint", "year", True),
        ("tinyint", "year", False),
        ("year", "smallint", False),
        ("varchar(10)", "varchar(10)", True),
        ("varchar(9)", "varchar(10)", False),
        ("varchar(10)", "char(10)", True),
        ("char(10)", "varchar(10)", False),
        ("char(10)", "char(5)", True),
        ("tinytext", "varchar(63)", True),
        ("tinytext", "varchar(64)", False),
        ("varchar(65535)", "text", True),
        ("varchar(255)", "text", False),
        ("mediumtext", "text", True),
        ("text", "mediumtext", False),
        ("varchar(5)", "enum('small','big')", True),
        ("varchar(4)", "enum('small','big')", False),
        ("varchar(10)", "set('small','big')", True),
        ("enum('small','big','it''s')", "enum('it''s','big')", True),
        ("enum('small')", "enum('small','big')", False),
        ("set('a')", "enum('a')", False),
        ("set('b','a')", "set('a','b')", False),
        ("set('a','c','b')", "set('a','b')", True),
        ("enum('b','a')", "enum('a','b')", True),
        ("json", "json", True),
        ("longtext", "json", True),
        ("text", "json", False),
        ("json", "longtext", False),
        ("varchar(36)", "uuid", True),
        ("varchar(17)", "time(6)", True),
        ("time(3)", "time(6)", False),
        ("time(6)", "time", True),
        ("varbinary(8)", "binary(8)", True),
        ("binary(8)", "varbinary(8)", False),
        ("binary(8)", "binary(4)", False),
        ("blob", "varbinary(65535)", True),
        ("blob", "mediumblob", False),
        ("longblob", "geometry", True),
        ("geometry", "point", True),
        ("point", "geometry", False),
        ("geometrycollection", "geomcollection", True),
        ("datetime(6)", "datetime", True),
        ("datetime", "datetime(1)", False),
        ("datetime(6)", "timestamp(6)", False),
        ("date", "datetime", False),
        ("datetime", "date", False),
        ("vector(3)", "vector(3)", True),
        ("vector(4)", "vector(3)", False),
        ("varbinary(12)", "vector(3)", True),
    ],
)
def test_mysql_types_hold_each_other(target: str, source: str, expected: bool) -> None:
    assert holds(mysql_value_range(target), mysql_value_range(source)) is expected


def test_mysql_types_in_all_their_spellings() -> None:
    assert mysql_value_range("INT(10) UNSIGNED ZEROFILL") == Integers(0, 2**32 - 1)
    assert mysql_value_range("varchar(100) /*M!100301 COMPRESSED*/") == Text(100)
    assert mysql_value_range("decimal(10,2) unsigned") == Decimals(10, 2)
    with pytest.raises(ValueError, match="not a known column type"):
        mysql_value_range("hologram(3)")


def test_postgres_modifiers() -> None:
    assert postgres_value_range("numeric", -1) == Decimals(None, None)
    assert postgres_value_range("numeric", (12 << 16 | 2) + 4) == Decimals(12, 2)
    assert postgres_value_range("numeric", (2 << 16 | (-3 & 0x7FF)) + 4) is None
    assert postgres_value_range("varchar", 14) == Text(10)
    assert postgres_value_range("timestamp", 3) == Timestamps(3, zoned=False)
    assert postgres_value_range("money", -1) is None


def test_intervals_without_all_fields_hold_no_durations() -> None:
    assert postgres_value_range("interval", -1) == Duration(6)
    assert postgres_value_range("interval", 0x7FFF << 16 | 3) == Duration(3)
    assert postgres_value_range("interval", 0x0400 << 16 | 0xFFFF) is None  # interval hour


def test_truths_fit_into_numbers_that_hold_0_and_1() -> None:
    assert holds(mysql_value_range("tinyint(1)"), Booleans())
    assert holds(Bits(1), Booleans())
    assert postgres_value_range("bool", -1) == Booleans()
    assert not holds(Booleans(), mysql_value_range("tinyint(1)"))
    assert not holds(Text(), Booleans())
