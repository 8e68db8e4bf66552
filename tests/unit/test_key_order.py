"""Which facts make which order of keys (docs/adr/0055)."""

from decimal import Decimal
from typing import Any

import pytest

from tidemark.state.copied_range import CopiedRange, EncodedText
from tidemark.state.errors import CheckpointError
from tidemark.state.key_order import (
    BYTES,
    CODE_POINTS,
    DECIMALS,
    INTEGERS,
    NUMERIC,
    UUIDS,
    orders_of_mysql,
    orders_of_postgres,
    source_order,
    text_order,
)
from tidemark.state.split import Bound, KeyRange
from tidemark.state.table import Column

DATABASE = {"datlocprovider": "c", "datcollate": "en_US.utf8", "datctype": "en_US.utf8", "datcollversion": "2.36"}
DEFAULT = {"collprovider": "d", "collisdeterministic": True}
ICU = {"collprovider": "i", "collisdeterministic": True, "colllocale": "und", "collversion": "153.120"}


def column(source_type: str, arrow_type: str, collation: str | None = None, *, made: bool = False) -> Column:
    return Column("k", source_type, arrow_type, nullable=False, collation=collation, made=made)


def order(
    collation: dict[str, Any], version: str | None = "153.120", encoding: str = "UTF8", **database: Any
) -> str | None:
    return text_order(encoding, collation, DATABASE | database, version, "2.36")


def test_another_kind_of_source_is_an_error_and_not_taken_for_mysql() -> None:
    kind: Any = "journal"
    with pytest.raises(AssertionError):
        source_order(column("int", "int32"), kind)
    with pytest.raises(AssertionError):
        CopiedRange.of(("k",), (INTEGERS,), KeyRange(Bound(("1",), "00"), None), kind)


def test_texts_of_postgres_are_ordered_by_library_locale_and_version() -> None:
    known = {
        order(DEFAULT),
        order(DEFAULT, datcollate="de_DE.utf8"),
        order(DEFAULT, datctype="C"),
        order(DEFAULT, encoding="LATIN1"),
        order(DEFAULT, datlocprovider="i", datlocale="und", datcollversion="2.36"),
        order(DEFAULT, datlocprovider="i", datlocale="und", daticurules="&a < b", datcollversion="2.36"),
        order(ICU),
        order(ICU | {"colllocale": "sv"}),
        order(ICU | {"collversion": "154"}, "154"),
    }
    assert len(known - {None}) == 9, "each is another order"
    assert order(ICU) == order({**ICU, "colllocale": None, "colliculocale": "und"}), "the name in PostgreSQL 15"


@pytest.mark.parametrize(
    "facts",
    [
        {"collprovider": "c", "collcollate": "C"},
        {"collprovider": "c", "collcollate": "POSIX"},
        {"collprovider": "b", "colllocale": "C.UTF-8"},
        {"collprovider": "b", "colllocale": "PG_UNICODE_FAST"},
    ],
)
def test_texts_of_postgres_by_code_points(facts: dict[str, Any]) -> None:
    facts = {"collisdeterministic": True, **facts}
    assert order(facts, None) == CODE_POINTS
    assert order(facts, None, "LATIN1") is None
    assert order(facts | {"collisdeterministic": False}, None) is None


def test_an_order_that_is_not_certain_has_no_name() -> None:
    assert order(ICU, None) is None
    assert order(ICU, "154") is None, "indexes were built with another version"
    assert order(DEFAULT, datcollversion=None) is None
    assert text_order("UTF8", DEFAULT, DATABASE | {"datcollate": "C.UTF-8", "datcollversion": None}, None, None) is None
    assert text_order("UTF8", DEFAULT, {"datcollate": "en_US.utf8"}, None, None) is None, "PostgreSQL 14"
    assert text_order("UTF8", DEFAULT, {"datcollate": "C"}, None, None) == CODE_POINTS
    assert order(ICU | {"collisdeterministic": False}) is None
    assert order({"collprovider": "b", "collisdeterministic": True, "colllocale": "new"}, None) is None


@pytest.mark.parametrize(
    ("source_type", "arrow_type", "expected"),
    [
        ("bigint", "int64", INTEGERS),
        ("numeric(9,0)", "decimal(9,0)", NUMERIC),
        ("numeric", "string", NUMERIC),
        ("uuid", "string", UUIDS),
        ("bytea", "binary", BYTES),
        ("timestamp(3) with time zone", "timestamptz", "timestamp of PostgreSQL"),
        ("text", "string", None),
        ("character(3)", "string", None),
        ("public.price", "decimal(9,0)", None),
        ("interval", "string", None),
    ],
)
def test_columns_of_postgres(source_type: str, arrow_type: str, expected: str | None) -> None:
    assert source_order(column(source_type, arrow_type), "postgresql") == expected
    assert source_order(column(source_type, arrow_type, made=True), "postgresql") is None


@pytest.mark.parametrize(
    ("source_type", "arrow_type", "collation", "expected"),
    [
        ("bigint unsigned", "decimal(20,0)", None, INTEGERS),
        ("decimal(9,2)", "decimal(9,2)", None, DECIMALS),
        ("decimal(65,0)", "string", None, DECIMALS),
        ("year", "int32", None, None),
        ("double", "float64", None, None),
        ("time(3)", "string", None, None),
        ("binary(3)", "binary", None, BYTES),
        ("datetime(6)", "timestamp", None, "datetime of MySQL"),
        ("varchar(9)", "string", "utf8mb4_0900_ai_ci", "varchar of mysql by utf8mb4_0900_ai_ci"),
        ("char(9)", "string", "latin1_swedish_ci", "char of mysql by latin1_swedish_ci"),
        ("varchar(9)", "string", "ucs2_general_mysql500_ci", None),
        ("enum('a')", "string", "utf8mb4_bin", None),
    ],
)
def test_columns_of_mysql(source_type: str, arrow_type: str, collation: str | None, expected: str | None) -> None:
    assert source_order(column(source_type, arrow_type, collation), "mysql") == expected
    base = source_type.split("(")[0].split()[0]
    assert expected is None or expected in orders_of_mysql("mysql", base, collation)
    assert (
        "(" not in source_type
        or base not in {"char", "varchar"}
        or expected not in orders_of_mysql("mariadb", base, collation)
    )


def test_texts_by_code_points_in_mysql() -> None:
    assert {CODE_POINTS, UUIDS} <= orders_of_mysql("mysql", "varchar", "utf8mb4_0900_bin")
    assert {CODE_POINTS, UUIDS} <= orders_of_mysql("mariadb", "varchar", "utf8mb4_nopad_bin")
    for base, collation in (("varchar", "utf8mb4_bin"), ("char", "utf8mb4_0900_bin"), ("varchar", "latin1_nopad_bin")):
        assert CODE_POINTS not in orders_of_mysql("mysql", base, collation), "spaces are padded, or other bytes"
    assert {CODE_POINTS, UUIDS} == orders_of_postgres("text", CODE_POINTS)
    assert not orders_of_postgres("text", None) | orders_of_postgres("bpchar", CODE_POINTS)


def test_bounds_are_parsed() -> None:
    """Plans are files: nothing of them becomes a part of a statement."""
    found = CopiedRange.of(
        ("a", "b", "c", "d", "e"),
        (INTEGERS, DECIMALS, BYTES, "x", "y"),
        KeyRange(Bound(("-1", "1.50", "x'00FF'", "_utf8mb4 x'C3A4'", "'2024-02-29 00:00:00.5'"), ""), None),
        "mysql",
    )
    assert found.start == (-1, Decimal("1.50"), b"\0\xff", EncodedText("utf8mb4", b"\xc3\xa4"), "2024-02-29 00:00:00.5")
    assert (found.end, found.integers) == (None, None)
    bound = Bound(("7", "\\x00ff", "o'b\\"), "")
    of_postgres = CopiedRange.of(("a", "b", "c"), (INTEGERS, BYTES, "x"), KeyRange(None, bound), "postgresql")
    assert of_postgres.end == (7, b"\0\xff", EncodedText("utf8mb4", b"o'b\\"))
    for text in ("1 OR 1", "x'0'", "'a'", "_utf8mb4 x'00' OR TRUE", "''", "NULL"):
        with pytest.raises(CheckpointError, match="a split boundary that is no key"):
            CopiedRange.of(("a",), ("x",), KeyRange(Bound((text,), ""), None), "mariadb")
