"""Column types as the servers write them, and the canonical types they get."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.readers.mysql.schema.types import canonical_type, check_logged_form, parse_source_type
from tidemark.state.errors import UnsupportedTypeError
from tidemark.state.table import TableId, arrow_type_of

T = TableId("shop", "orders")

CANONICAL = [
    ("tinyint", "int8"),
    ("tinyint(1)", "int8"),
    ("tinyint(3) unsigned", "int16"),
    ("smallint", "int16"),
    ("smallint unsigned", "int32"),
    ("mediumint", "int32"),
    ("mediumint(8) unsigned zerofill", "int32"),
    ("int", "int32"),
    ("int(10) unsigned zerofill", "int64"),
    ("int(10) zerofill", "int64"),
    ("bigint", "int64"),
    ("bigint(20) unsigned", "decimal(20,0)"),
    ("decimal(12,2)", "decimal(12,2)"),
    ("decimal(12,2) unsigned zerofill", "decimal(12,2)"),
    ("decimal(10,0)", "decimal(10,0)"),
    ("decimal(38,38)", "decimal(38,38)"),
    ("decimal(39,0)", "string"),
    ("decimal(65,30)", "string"),
    ("float", "float32"),
    ("float(7,4) unsigned", "float32"),
    ("double", "float64"),
    ("bit(1)", "int64"),
    ("bit(63)", "int64"),
    ("bit(64)", "decimal(20,0)"),
    ("date", "date32"),
    ("datetime", "timestamp"),
    ("datetime(6)", "timestamp"),
    ("timestamp(3)", "timestamptz"),
    ("time(6)", "string"),
    ("year", "int16"),
    ("year(4)", "int16"),
    ("json", "string"),
    ("binary(16)", "binary"),
    ("varbinary(255)", "binary"),
    ("tinyblob", "binary"),
    ("longblob", "binary"),
    ("geometry", "binary"),
    ("geomcollection", "binary"),
    ("vector(2048)", "list<float32>"),
    ("uuid", "string"),
    ("inet4", "string"),
    ("inet6", "string"),
]


@pytest.mark.parametrize(("source_type", "expected"), CANONICAL)
def test_each_type_has_one_canonical_type(source_type: str, expected: str) -> None:
    assert canonical_type(T, "c", source_type, None) == expected
    arrow_type_of(expected)


@pytest.mark.parametrize("source_type", ["char(3)", "varchar(10)", "text", "longtext", "enum('a','b')", "set('a','b')"])
def test_text_and_labels_are_strings(source_type: str) -> None:
    assert canonical_type(T, "c", source_type, "utf8mb4") == "string"


@pytest.mark.parametrize(
    ("source_type", "charset", "reason"),
    [
        ("xmltype", None, "unknown"),
        ("int(3", None, "unknown"),
        ("year(2)", None, "two digits"),
        ("decimal(65,2) unsigned zerofill", None, "zeros"),
        ("enum('x',x'ff')", None, "character set binary"),
        ("varchar(10)", "no_such_charset", "no_such_charset"),
    ],
)
def test_what_cannot_be_carried_is_refused_with_column_and_remedy(
    source_type: str, charset: str | None, reason: str
) -> None:
    with pytest.raises(UnsupportedTypeError) as caught:
        canonical_type(T, "odd", source_type, charset)
    assert "odd of shop.orders" in caught.value.message
    assert reason in caught.value.message
    assert "exclude: [odd]" in caught.value.remedy
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    "source_type",
    [
        "text /*M!100301 COMPRESSED*/",
        "varchar(100) /*M!100301 COMPRESSED*/",
        "datetime /* mariadb-5.3 */",
        "timestamp /* 5.5 binary format */",
    ],
)
def test_what_cannot_even_be_passed_over_in_the_log_is_refused_also_when_left_out(source_type: str) -> None:
    for refusing in (
        lambda: canonical_type(T, "odd", source_type, "utf8mb4"),
        lambda: check_logged_form(T, "odd", source_type),
    ):
        with pytest.raises(UnsupportedTypeError, match=r"odd of shop\.orders") as caught:
            refusing()
        assert "exclude_tables" in caught.value.remedy
        assert "exclude: [" not in caught.value.remedy
    check_logged_form(T, "c", "geometry")
    check_logged_form(T, "c", "no such type")


@pytest.mark.pitfall(38)
def test_labels_with_quotes_commas_and_escapes() -> None:
    text = r"enum('a''b','c\\d','e\nf','g\0h','ü€','i\rj','m\"n','','(x),y')"
    labels = ("a'b", "c\\d", "e\nf", "g\0h", "ü€", "i\rj", 'm"n', "", "(x),y")
    assert parse_source_type(text).labels == labels


def test_a_label_that_only_hex_can_show_stays_as_it_is_written() -> None:
    assert parse_source_type("enum('x',x'ff')").labels == ("x", "x'ff'")


def written(label: str) -> str:
    """A label as both servers write it."""
    for plain, escaped in (("\\", "\\\\"), ("\0", "\\0"), ("\n", "\\n"), ("\r", "\\r"), ("'", "''")):
        label = label.replace(plain, escaped)
    return f"'{label}'"


@given(st.sampled_from(["enum", "set"]), st.lists(st.text("ab',\\\n\r\0()x é", max_size=6), min_size=1, max_size=5))
def test_labels_come_back_as_they_were_defined(base: str, labels: list[str]) -> None:
    parsed = parse_source_type(f"{base}({','.join(map(written, labels))})")
    assert (parsed.base, parsed.labels) == (base, tuple(labels))


@given(st.text(max_size=30))
def test_any_other_text_is_refused_or_parsed_but_breaks_nothing(text: str) -> None:
    try:
        parsed = parse_source_type(text)
    except ValueError:
        return
    assert parsed.base


@pytest.mark.parametrize("text", ["", "enum()", "enum('a'", "enum('a' 'b')", "set", "int(1,a)", "'x'"])
def test_broken_types_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a column type"):
        parse_source_type(text)


def test_unsigned_follows_from_zerofill() -> None:
    assert parse_source_type("int(10) zerofill").unsigned
    assert not parse_source_type("int(10)").unsigned
