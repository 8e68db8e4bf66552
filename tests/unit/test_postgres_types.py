"""The Arrow type that a PostgreSQL column travels in, and the expression that selects it."""

import pytest

from tidemark.readers.postgres.schema.types import BaseType, canonical_type, select_expression
from tidemark.state.errors import UnsupportedTypeError
from tidemark.state.table import Column, TableId, arrow_type_of

T = TableId("shop", "orders")


def numeric(precision: int, scale: int) -> BaseType:
    return BaseType("numeric", (precision << 16 | scale & 0x7FF) + 4)


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        (BaseType("bool", -1), "bool"),
        (BaseType("int2", -1), "int16"),
        (BaseType("int4", -1), "int32"),
        (BaseType("int8", -1), "int64"),
        (BaseType("oid", -1), "int64"),
        (BaseType("float4", -1), "float32"),
        (BaseType("float8", -1), "float64"),
        (BaseType("bytea", -1), "binary"),
        (BaseType("date", -1), "date32"),
        (BaseType("timestamp", 3), "timestamp"),
        (BaseType("timestamptz", -1), "timestamptz"),
        (numeric(12, 2), "decimal(12,2)"),
        (numeric(38, 38), "decimal(38,38)"),
        (numeric(39, 2), "string"),
        (numeric(2, 5), "string"),
        (numeric(5, -2), "string"),
        (BaseType("numeric", -1), "string"),
        (BaseType("varchar", 24), "string"),
        (BaseType("_int4", -1), "string"),
        (BaseType("", -1), "string"),
    ],
)
def test_each_type_has_one_canonical_type(base: BaseType, expected: str) -> None:
    assert canonical_type(T, "c", "its type", base) == expected
    arrow_type_of(expected)


@pytest.mark.parametrize("name", ["regclass", "_regtype", "aclitem"])
def test_types_whose_text_changes_without_a_row_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=r"shop\.orders: \{exclude: \[odd\]\}"):
        canonical_type(T, "odd", name, BaseType(name, -1))


@pytest.mark.parametrize(
    ("source_type", "arrow_type", "expected"),
    [
        ("integer", "int32", '"a""b"'),
        ("oid", "int64", '"a""b"::int8'),
        ("numeric(12,2)", "decimal(12,2)", '"a""b"'),
        ("text", "string", '"a""b"'),
        ("character varying(20)", "string", '"a""b"'),
        ("character(5)", "string", '"a""b"'),
        ("character varying(20)[]", "string", 'CASE num_nulls("a""b") WHEN 0 THEN concat("a""b") END'),
        ("character(5)[]", "string", 'CASE num_nulls("a""b") WHEN 0 THEN concat("a""b") END'),
        ("text[]", "string", 'CASE num_nulls("a""b") WHEN 0 THEN concat("a""b") END'),
        ("inet", "string", 'CASE num_nulls("a""b") WHEN 0 THEN concat("a""b") END'),
        ("public.text", "string", 'CASE num_nulls("a""b") WHEN 0 THEN concat("a""b") END'),
    ],
)
def test_what_is_selected(source_type: str, arrow_type: str, expected: str) -> None:
    assert select_expression(Column('a"b', source_type, arrow_type, nullable=True)) == expected
