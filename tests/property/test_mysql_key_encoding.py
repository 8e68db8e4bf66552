"""Key encoding: bytes that order as the keys do, for every kind of key, from the log and from SELECTs."""

import re
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.readers.mysql.decoding.charsets import decode_text
from tidemark.readers.mysql.keys.collation_keys import padded
from tidemark.readers.mysql.keys.key_columns import KeyColumn, KeyKind, after_condition, range_condition
from tidemark.readers.mysql.keys.key_encoding import encode_text, encoded_keys, within
from tidemark.readers.mysql.keys.key_text import encoder
from tidemark.state.key_encoding import encode_bytes, encode_composite, encode_integer
from tidemark.state.split import Bound, KeyRange

UNITS = st.sampled_from([b"\0", b"\1", b"\x1f", b" ", b"!", b"a", b"\xff"])


def unasked(column: KeyColumn, values: Any) -> list[bytes]:
    raise AssertionError("only strings are asked for")


def sign(a: Any, b: Any) -> int:
    return int(a > b) - int(a < b)


@pytest.mark.pitfall(15)
@given(
    st.lists(UNITS, max_size=6),
    st.lists(UNITS, max_size=6),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from([1, 2, 3]),
)
def test_padded_weights_order_as_with_endless_spaces(
    a: list[bytes], b: list[bytes], more_a: int, more_b: int, size: int
) -> None:
    space = b" ".rjust(size, b"\2")
    collation_keys = [b"".join(unit.rjust(size, b"\2") for unit in units) for units in (a, b)]
    endless = [collation_key + space * (12 - len(collation_key) // size) for collation_key in collation_keys]
    written = [
        padded(collation_key + space * more, space)
        for collation_key, more in zip(collation_keys, (more_a, more_b), strict=True)
    ]
    assert sign(*written) == sign(*endless)


@given(st.lists(UNITS, max_size=4), st.lists(UNITS, max_size=4))
def test_no_padded_weight_is_the_beginning_of_another(a: list[bytes], b: list[bytes]) -> None:
    first, second = (encode_bytes(padded(b"".join(units), b" ")) for units in (a, b))
    assert first == second or not (first.startswith(second) or second.startswith(first))


MOMENTS = st.datetimes(datetime(1000, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999))
TIMES = st.integers(-838 * 3600 * 10**6, 838 * 3600 * 10**6).map(lambda us: timedelta(microseconds=us))


def time_text(value: timedelta) -> str:
    us = abs(value // timedelta(microseconds=1))
    seconds, fraction = divmod(us, 10**6)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}"
    return f"-{text}" if value < timedelta(0) else text


def decimal_text(value: Decimal) -> str:
    return f"{value:.4f}"


def narrow(low: int, high: int) -> st.SearchStrategy[Decimal]:
    return st.integers(low, high).map(lambda n: Decimal(n).scaleb(-4))


BIG = 10**20 - 1
ORDINALS = ("", "z", "a", "2", "1", "0")
INT64 = st.integers(-(2**63), 2**63 - 1)
KINDS: dict[str, tuple[KeyColumn, st.SearchStrategy[Any], Any, Any]] = {
    # column, values, what the server shows, the Arrow array
    "bigint": (KeyColumn("k", KeyKind.INTEGER), INT64, int, lambda v: pa.array(v, pa.int64())),
    "bigint unsigned": (
        KeyColumn("k", KeyKind.INTEGER, unsigned=True),
        st.integers(0, 2**64 - 1),
        int,
        lambda v: pa.array([Decimal(n) for n in v], pa.decimal128(20, 0)),
    ),
    "year": (KeyColumn("k", KeyKind.YEAR), st.integers(0, 2155), int, lambda v: pa.array(v, pa.int16())),
    "decimal": (
        KeyColumn("k", KeyKind.DECIMAL, precision=20, scale=4),
        narrow(-BIG, BIG),
        decimal_text,
        lambda v: pa.array(v, pa.decimal128(20, 4)),
    ),
    "wide decimal": (
        KeyColumn("k", KeyKind.DECIMAL, precision=65, scale=4),
        st.integers(-(10**27), 10**27).map(lambda n: Decimal(n).scaleb(-4)),
        decimal_text,
        lambda v: pa.array([decimal_text(n) for n in v]),
    ),
    "date": (
        KeyColumn("k", KeyKind.DATE),
        st.dates(date(1000, 1, 1)),
        date.isoformat,
        lambda v: pa.array(v, pa.date32()),
    ),
    "datetime": (
        KeyColumn("k", KeyKind.TEMPORAL),
        MOMENTS,
        lambda v: v.isoformat(" ", "microseconds"),
        lambda v: pa.array(v, pa.timestamp("us")),
    ),
    "time": (KeyColumn("k", KeyKind.TIME), TIMES, time_text, lambda v: pa.array([time_text(t) for t in v])),
    "varbinary": (
        KeyColumn("k", KeyKind.BYTES),
        st.lists(st.sampled_from([0, 1, 255]), max_size=4).map(bytes),
        lambda v: v.hex().upper(),
        lambda v: pa.array(v, pa.binary()),
    ),
    "float": (
        KeyColumn("k", KeyKind.FLOAT),
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        float,
        lambda v: pa.array(v, pa.float32()),
    ),
    "double": (
        KeyColumn("k", KeyKind.FLOAT),
        st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 5e-324, -5e-324]),
        float,
        lambda v: pa.array(v, pa.float64()),
    ),
    "enum": (
        KeyColumn("k", KeyKind.ORDINAL, texts=ORDINALS),
        st.integers(0, len(ORDINALS) - 1),
        int,
        lambda v: pa.array([ORDINALS[number] for number in v]),
    ),
}  # fmt: skip


@pytest.mark.pitfall(16)
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_one_value_has_one_rank_and_ranks_order_as_values(kind: str, data: st.DataObject) -> None:
    column, strategy, shown, array = KINDS[kind]
    values = data.draw(st.lists(strategy, min_size=1, max_size=8))
    found = encoded_keys([column], [array(values)], unasked)
    is_words = isinstance(found, np.ndarray)
    from_log = [int(word).to_bytes(8, "big") for word in found] if is_words else found.to_pylist()
    assert from_log == [encode_text(column, shown(value)) for value in values]
    for a, rank_a in zip(values, from_log, strict=True):
        for b, rank_b in zip(values, from_log, strict=True):
            assert sign(a, b) == sign(rank_a, rank_b)


@pytest.mark.pitfall(18)
@given(
    st.lists(st.tuples(*(KINDS[kind][1] for kind in ("bigint", "varbinary", "decimal"))), min_size=2, max_size=8),
    st.data(),
)
def test_composite_ranks_order_as_tuples(rows: list[Any], data: st.DataObject) -> None:
    kinds = [KINDS[kind] for kind in ("bigint", "varbinary", "decimal")]
    arrays = [array([row[i] for row in rows]) for i, (_, _, _, array) in enumerate(kinds)]
    found = encoded_keys([column for column, *_ in kinds], arrays, unasked)
    assert isinstance(found, pa.BinaryArray)
    for a, rank_a in zip(rows, found.to_pylist(), strict=True):
        assert rank_a == encode_composite(
            encode_text(c, shown(v)) for (c, _, shown, _), v in zip(kinds, a, strict=True)
        )
        for b, rank_b in zip(rows, found.to_pylist(), strict=True):
            assert sign(a, b) == sign(rank_a, rank_b)
    low, high = sorted(data.draw(st.tuples(st.sampled_from(rows), st.sampled_from(rows))))
    bounds = [Bound((), found[rows.index(row)].as_py().hex()) for row in (low, high)]
    assert within(found, KeyRange(*bounds)).tolist() == [low <= row < high for row in rows]
    assert within(found, KeyRange(None, bounds[1])).tolist() == [row < high for row in rows]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(-(2**63), 2**63 - 1))
def test_integers_are_within_a_range_as_their_numbers_are(values: list[int], bound: int) -> None:
    found = encoded_keys([KINDS["bigint"][0]], [pa.array(values, pa.int64())], unasked)
    place = Bound((str(bound),), encode_integer(bound, unsigned=False).hex())
    assert within(found, KeyRange(place, None)).tolist() == [value >= bound for value in values]


def test_slices_rank_as_what_they_show() -> None:
    for column, _, shown, array in KINDS.values():
        sample = {
            KeyKind.INTEGER: [5, 6, 7],
            KeyKind.YEAR: [2000, 2001, 2002],
            KeyKind.DECIMAL: [Decimal("1.5"), Decimal("2.5"), Decimal("3.5")],
            KeyKind.DATE: [date(2000, 1, n) for n in (1, 2, 3)],
            KeyKind.TEMPORAL: [datetime(2000, 1, n) for n in (1, 2, 3)],
            KeyKind.TIME: [timedelta(n) for n in (1, 2, 3)],
            KeyKind.BYTES: [b"a", b"b", b"c"],
            KeyKind.FLOAT: [-0.5, 0.0, 1.5],
            KeyKind.ORDINAL: [0, 1, 2],
        }[column.kind]
        whole, part = (encoded_keys([column], [a], unasked) for a in (array(sample), array(sample).slice(1)))
        if isinstance(whole, np.ndarray):
            assert whole[1:].tolist() == part.tolist()
        else:
            assert whole.to_pylist()[1:] == part.to_pylist()
        assert len(shown(sample[0]) if not isinstance(sample[0], int | float) else "x") > 0


def test_a_null_has_no_rank() -> None:
    for column, _, _, array in KINDS.values():
        empty = array([]).type
        with pytest.raises(ValueError, match="null"):
            encoded_keys([column], [pa.nulls(2, empty)], unasked)


@pytest.mark.parametrize("kind", ["date", "datetime"])
@pytest.mark.parametrize("text", ["0000-00-00", "2024-00-00", "2024-02-30"])
def test_dates_that_are_none_have_no_rank(kind: str, text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        encode_text(KINDS[kind][0], text if kind == "date" else f"{text} 00:00:00.000000")


@pytest.mark.pitfall(38)
@pytest.mark.parametrize(
    ("charset", "codec"),
    [
        ("ascii", "ascii"),
        ("latin1", "latin-1"),
        ("cp1251", "cp1251"),
        ("gbk", "gbk"),
        ("euckr", "cp949"),
        ("utf8mb4", "utf-8"),
        ("utf16", "utf-16-be"),
        ("utf16le", "utf-16-le"),
        ("utf32", "utf-32-be"),
    ],
)
def test_texts_encode_back_to_their_bytes(charset: str, codec: str) -> None:
    encode = encoder(charset)
    assert encode is not None
    for text in ("aZ ~1", ""):
        assert encode(text) == text.encode(codec)
        assert decode_text(charset, encode(text)) == text


def test_latin1_encodes_what_cp1252_leaves_open() -> None:
    encode = encoder("latin1")
    assert encode is not None
    assert encode("€\x81é") == b"\x80\x81\xe9"
    with pytest.raises(KeyError):
        encode("あ")


@pytest.mark.parametrize("charset", ["cp932", "sjis", "ujis", "eucjpms", "gb18030"])
def test_charsets_with_two_byte_strings_for_one_text_have_no_encoder(charset: str) -> None:
    """In sjis, for one, both 5C and 815F are a backslash on the server."""
    assert encoder(charset) is None


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_literal_of_a_float_is_a_double_of_the_same_value(value: float) -> None:
    column = KeyColumn("k", KeyKind.FLOAT)
    literal = column.literal(value)
    assert column.is_literal(literal)
    assert float(literal) == value
    assert column.literal(-0.0) == column.literal(0.0) == "0.0e0"


@given(st.integers(0, len(ORDINALS) - 1), st.sampled_from([">", ">=", "<"]))
def test_a_condition_names_all_numbers_on_its_side(number: int, operator: str) -> None:
    column = KeyColumn("k", KeyKind.ORDINAL, texts=ORDINALS)
    start = KeyRange(Bound((str(number),), "00"), None) if operator == ">=" else None
    condition = (
        after_condition([column], Bound((str(number),), "00"))
        if operator == ">"
        else range_condition([column], start or KeyRange(None, Bound((str(number),), "00")))
    )
    named = {int(digits) for digits in re.findall("[0-9]+", condition)}
    sides = {">": lambda n: n > number, ">=": lambda n: n >= number, "<": lambda n: n < number}
    assert named == set(filter(sides[operator], range(len(ORDINALS))))
    assert (condition == "FALSE") == (not named)
