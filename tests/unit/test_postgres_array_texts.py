"""The compiled loop that makes lists of the texts of arrays, compared with array_out in plain Python."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.readers.bad_values import STOP, BadValueRule
from tidemark.readers.postgres.array_texts import ArrayTexts, lists
from tidemark.state.errors import BadValueError, DamagedLogError
from tidemark.state.table import Column, TableId, TableSchema

NULL_FOR_BAD = BadValueRule(default="null")
ELEMENTS = st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
SPECIAL = st.sampled_from(["NULL", "null", "", '"', "\\", ",", "{}", " ", "a b", '\\"', "é😀"])


def read(arrow_type: str, *texts: str | None, rule: BadValueRule = NULL_FOR_BAD) -> list[Any]:
    column = Column("c", "the source's type", arrow_type, nullable=True)
    encoded = [(text or "").encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)]).astype(np.int32)
    data = np.frombuffer(b"".join(encoded), np.uint8).copy()
    valid = np.array([text is not None for text in texts], np.uint8)
    schema = TableSchema(TableId("s", "t"), 1, (column,), ())
    found = lists(schema, column, ArrayTexts(offsets, data, valid), rule)
    found.validate(full=True)
    assert found.type == schema.arrow_schema().field("c").type
    values: list[Any] = found.to_pylist()
    return values


def array_out(elements: list[str | None]) -> str:
    """Quotes as array_out of PostgreSQL's arrayfuncs.c does."""

    def quoted(text: str) -> str:
        needs = not text or text.upper() == "NULL" or any(c in '"\\{},' or c.isspace() for c in text)
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' if needs else text

    return "{" + ",".join("NULL" if element is None else quoted(element) for element in elements) + "}"


@given(st.lists(st.none() | st.lists(ELEMENTS | SPECIAL, max_size=5), max_size=8))
def test_any_texts_become_themselves(values: list[list[str | None] | None]) -> None:
    assert read("list<string>", *[None if value is None else array_out(value) for value in values]) == values


@given(st.lists(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=5), max_size=8))
def test_any_numbers_become_themselves(values: list[list[int | None]]) -> None:
    texts = [array_out([None if v is None else str(v) for v in value]) for value in values]
    assert read("list<int64>", *texts) == values


def test_arrays_that_are_no_list_are_bad_values() -> None:
    shaped = ["{{1,2},{3,4}}", "[0:1]={1,2}", "[2:2][1:1]={{7}}", "{{}}"]
    assert read("list<int32>", "{1}", *shaped, "{2}", None, "{}") == [[1], *[None] * len(shaped), [2], None, []]
    with pytest.raises(
        BadValueError, match="an array of several dimensions, or one whose first index is not 1"
    ) as caught:
        read("list<int32>", "{1}", "{{1}}", rule=STOP)
    assert "source.columns: {s.t: {as_text: [c]}}" in caught.value.message


@pytest.mark.parametrize(
    ("arrow_type", "text", "why"),
    [
        ("list<decimal(5,2)>", "{1.00,NaN}", "holds NaN"),
        ("list<date32>", "{2024-02-29,infinity}", "holds infinity"),
        ("list<timestamp>", '{-infinity,"2024-02-29 12:00:00"}', "holds infinity"),
    ],
)
def test_one_element_that_does_not_fit_makes_the_array_a_bad_value(arrow_type: str, text: str, why: str) -> None:
    assert read(arrow_type, "{}", text, "{NULL}") == [[], None, [None]]
    with pytest.raises(BadValueError, match=f"has an element that {why}"):
        read(arrow_type, text, rule=STOP)


def test_bytes_and_truth() -> None:
    assert read("list<binary>", r'{"\\x00ff","\\x",NULL}', None, "{}") == [[b"\0\xff", b"", None], None, []]
    assert read("list<bool>", "{t,f,NULL}") == [[True, False, None]]


@pytest.mark.parametrize("text", ["", "{", "a", "{a", "{a,}", "{,}", '{a"b}', '{"a}', '{"a\\}', '{"a"b}', "{a}}", "a}"])
def test_texts_that_no_server_sends_stop_the_job(text: str) -> None:
    with pytest.raises(DamagedLogError):
        read("list<string>", "{x}", text)


def test_texts_that_are_not_utf_8() -> None:
    column = Column("c", "text[]", "list<string>", nullable=True)
    schema = TableSchema(TableId("s", "t"), 1, (column,), ())
    texts = ArrayTexts(
        np.array([0, 3, 7], np.int32), np.frombuffer(b"{a}{\xff\xfe}", np.uint8).copy(), np.ones(2, np.uint8)
    )
    with pytest.raises(BadValueError, match="has an element that holds bytes that are not UTF-8"):
        lists(schema, column, texts, STOP)
    assert lists(schema, column, texts, NULL_FOR_BAD).equals(pa.array([["a"], None]))
