"""Binary JSON to text: the compiled loop and the plain printer, against each other and against json.dumps."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.jsonb_writer import write_document
from tidemark.readers.mysql.decoding.columns import Output
from tidemark.readers.mysql.decoding.jsonb import json_text
from tidemark.readers.mysql.decoding.text_arrays import json_texts
from tidemark.readers.mysql.decoding.type_layouts import Conversion
from tidemark.readers.mysql.decoding.values import Values
from tidemark.state.errors import DamagedLogError
from tidemark.state.table import TableId

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.integers(-70000, 70000),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9).map(float),
    st.text('ab"\\\n\x00\x1f\x7fé😀/', max_size=200),
)
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=20), st.dictionaries(st.text("kéy\t", max_size=9), inner, max_size=20)
    ),
    max_leaves=30,
)


def compiled(contents: list[bytes | None]) -> list[str | None]:
    joined = b"".join(content or b"" for content in contents)
    sizes = np.array([len(content or b"") for content in contents], np.int64)
    values = Values(
        table=TableId("shop", "things"),
        output=Output("c", 0, pa.string(), Conversion.BINARY_JSON),
        buf=np.frombuffer(bytearray(joined), np.uint8),
        lo=np.cumsum(sizes) - sizes,
        hi=sizes,
        valid=np.array([content is not None for content in contents], np.uint8),
        rows=np.arange(len(contents)),
        zero_dates_null=True,
    )
    texts: list[str | None] = json_texts(values).to_pylist()
    return texts


def ordered(value: Any) -> Any:
    """Objects with their keys in the server's order."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        return {key: ordered(value[key]) for key in keys}
    return [ordered(item) for item in value] if isinstance(value, list) else value


@given(st.lists(documents, min_size=1, max_size=6))
def test_documents_print_as_they_are(values: list[Any]) -> None:
    texts = [json_text(write_document(value)) for value in values]
    for value, text in zip(values, texts, strict=True):
        assert repr(json.loads(text)) == repr(ordered(value))
    assert compiled([write_document(value) for value in values]) == texts


@given(st.lists(st.one_of(st.none(), documents), min_size=1, max_size=6))
def test_nulls_stand_between_documents(values: list[Any]) -> None:
    contents = [None if value is None else write_document(value) for value in values]
    assert compiled(contents) == [None if content is None else json_text(content) for content in contents]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_read_back(value: float) -> None:
    text = json_text(write_document(value))
    assert repr(float(text)) == repr(value)
    assert len(text.strip("-0").replace(".", "").partition("e")[0].strip("0")) <= 17
    assert compiled([write_document(value)]) == [text]


@pytest.mark.pitfall(88)
@given(documents, st.data())
def test_damaged_documents_are_refused_or_print_the_same(value: Any, data: st.DataObject) -> None:
    content = bytearray(write_document(value))
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(content[: data.draw(st.integers(1, len(content)))])
    try:
        expected = json_text(damaged)
    except ValueError:
        with pytest.raises(DamagedLogError):
            compiled([damaged])
    else:
        assert compiled([damaged]) == [expected]


def test_offsets_that_go_round_in_circles_are_refused() -> None:
    """An array of two entries that are both the array itself."""
    content = bytes.fromhex("02 0200 0a00 02 0000 02 0000".replace(" ", ""))
    with pytest.raises(ValueError, match=r"overlap|nested"):
        json_text(content)
    with pytest.raises(DamagedLogError):
        compiled([content])


def test_deep_documents() -> None:
    """The server allows a hundred levels."""
    value: Any = 1
    for _ in range(100):
        value = [value]
    assert compiled([write_document(value)]) == [json_text(write_document(value))]
    with pytest.raises(DamagedLogError):
        compiled([write_document([value])])


def test_large_documents() -> None:
    value = {"texts": ["x" * 30] * 3000, "number": 3_000_000_000, "small": -1, "long": "é" * 70_000}
    content = write_document(value)
    assert content[0] == 1
    assert json.loads(json_text(content)) == value
    assert compiled([content, content]) == [json_text(content)] * 2
