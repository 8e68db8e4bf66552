"""The compiled row formats, compared with plain Python for any values, nulls and slices."""

import base64 as python_base64
import json
import math
import struct
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.sinks.mirror.postgres.rows import encoder
from tidemark.sinks.rows import postgres_binary
from tidemark.sinks.rows.fields import Fields, Frame, interleave, variable
from tidemark.sinks.rows.json_lines import json_rows
from tidemark.sinks.rows.text import (
    JSON_ESCAPES,
    SQL_ESCAPES,
    base64,
    decimal_text,
    escaped,
    exact_float_text,
    float_list_bytes,
    hexadecimal,
)

DIGITS = 10**38 - 1
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def fields_of(fields: Fields) -> list[bytes | None]:
    data = bytes(fields.data)
    found: list[bytes | None] = []
    for row, valid in enumerate(fields.valid):
        if fields.width is not None:
            found.append(data[row * fields.width : (row + 1) * fields.width] if valid else None)
        else:
            found.append(data[fields.offsets[row] : fields.offsets[row + 1]] if valid else None)
    return found


def cut(values: list[Any], kind: pa.DataType) -> pa.Array:
    """A sliced array: it does not begin at its buffers' beginning."""
    return pa.array([None, *values, values[0] if values else None], kind).slice(1, len(values))


def listed(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | values, max_size=20)


@given(listed(TEXTS))
def test_sql_strings_unescape_to_themselves(texts: list[str | None]) -> None:
    pairs = {b"\\0": b"\0", b"\\'": b"'", b"\\\\": b"\\"}
    for found, text in zip(fields_of(escaped(variable(cut(texts, pa.string())), SQL_ESCAPES)), texts, strict=True):
        if found is None or text is None:
            assert found is text
            continue
        plain, at = b"", 0
        while at < len(found):
            size = 2 if found[at : at + 1] == b"\\" else 1
            plain += pairs[found[at : at + 2]] if size == 2 else found[at : at + 1]
            assert found[at : at + 1] not in {b"'", b"\0"}
            at += size
        assert plain.decode() == text


@given(listed(TEXTS))
def test_json_strings_read_back(texts: list[str | None]) -> None:
    for found, text in zip(fields_of(escaped(variable(cut(texts, pa.string())), JSON_ESCAPES)), texts, strict=True):
        assert found is text if found is None else json.loads(b'"' + found + b'"') == text


@given(listed(st.binary(max_size=40)))
def test_binary_as_hexadecimal_and_base64(values: list[bytes | None]) -> None:
    fields = variable(cut(values, pa.binary()))
    for found, value in zip(fields_of(hexadecimal(fields)), values, strict=True):
        assert found == (None if value is None else value.hex().upper().encode())
    for found, value in zip(fields_of(base64(fields)), values, strict=True):
        assert found == (None if value is None else python_base64.b64encode(value))


@given(st.integers(0, 38).flatmap(lambda s: st.tuples(st.just(s), listed(st.integers(-DIGITS, DIGITS)))))
def test_decimals_in_plain_notation_and_as_postgres_numeric(case: tuple[int, list[int | None]]) -> None:
    scale, unscaled = case
    values = [None if n is None else Decimal(f"{n}E-{scale}") for n in unscaled]
    text = decimal_text(cut(values, pa.decimal128(38, scale)))
    for found, value in zip(fields_of(text), values, strict=True):
        assert found == (None if value is None else f"{value:f}".encode())
    for found, value in zip(fields_of(postgres_binary.numerics(text)), values, strict=True):
        assert value is None if found is None else numeric_of(found) == Fraction(value)
        if found is not None:
            assert int.from_bytes(found[6:8], "big") == scale


def numeric_of(data: bytes) -> Fraction:
    count, collation_key, sign, _ = struct.unpack(">hhHh", data[:8])
    digits = struct.unpack(f">{count}h", data[8:])
    assert not digits or (digits[0] and digits[-1]), "PostgreSQL strips zeros at both ends"
    total = sum((digit * Fraction(10000) ** (collation_key - i) for i, digit in enumerate(digits)), Fraction(0))
    return -total if sign == 0x4000 else total


@given(st.lists(st.text("0123456789", min_size=1, max_size=35), max_size=5), st.text("0123456789", max_size=30))
def test_numerics_from_long_texts(whole: list[str], fraction: str) -> None:
    texts = [f"-{w}.{fraction}" if fraction else w for w in whole]
    for found, text in zip(
        fields_of(postgres_binary.numerics(variable(pa.array(texts, pa.string())))), texts, strict=True
    ):
        assert found is not None
        assert numeric_of(found) == Fraction(text)


@pytest.mark.parametrize("text", ["", "-", "1e5", ".5", "1.2.3", "NaN", " 1", "1 ", "+1"])
def test_texts_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(postgres_binary.BadTextError) as caught:
        postgres_binary.numerics(variable(pa.array(["1", text])))
    assert caught.value.row == 1


@given(listed(st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_float32_literals_are_the_same_double(values: list[float | None]) -> None:
    for found, value in zip(exact_float_text(cut(values, pa.float32())).to_pylist(), values, strict=True):
        assert (
            found is None
            if value is None
            else (float(found), math.copysign(1, float(found)))
            == (
                value,
                math.copysign(1, value),
            )
        )
        assert found is None or "e" in found


@given(listed(st.floats(allow_nan=False, allow_infinity=False)))
def test_float64_literals_are_the_same_double(values: list[float | None]) -> None:
    for found, value in zip(exact_float_text(cut(values, pa.float64())).to_pylist(), values, strict=True):
        assert found is None if value is None else struct.pack("d", float(found)) == struct.pack("d", value)


@given(listed(st.lists(st.floats(width=32), max_size=5)))
def test_vectors_as_bytes_and_as_postgres_arrays(values: list[list[float] | None]) -> None:
    array = cut(values, pa.list_(pa.float32()))
    for found, value in zip(fields_of(float_list_bytes(array)), values, strict=True):
        assert found == (None if value is None else struct.pack(f"<{len(value)}f", *value))
    for found, value in zip(fields_of(postgres_binary.float_arrays(array)), values, strict=True):
        if value is None or found is None:
            assert found is value
        elif not value:
            assert found == struct.pack(">iiI", 0, 0, 700)
        else:
            body = b"".join(struct.pack(">if", 4, v) for v in value)
            assert found == struct.pack(">iiIii", 1, 0, 700, len(value), 1) + body


@given(listed(st.integers(-(2**63), 2**63 - 1)), listed(st.dates()), listed(st.datetimes()))
def test_integers_dates_and_timestamps_in_postgres_binary(
    numbers: list[int | None], days: list[date | None], moments: list[datetime | None]
) -> None:
    for found, number in zip(fields_of(encoder(pa.int64(), "int8")(cut(numbers, pa.int64()))), numbers, strict=True):
        assert found == (None if number is None else struct.pack(">q", number))
    for found, day in zip(fields_of(encoder(pa.date32(), "date")(cut(days, pa.date32()))), days, strict=True):
        assert found == (None if day is None else struct.pack(">i", (day - date(2000, 1, 1)).days))
    kind = pa.timestamp("us")
    for found, moment in zip(fields_of(encoder(kind, "timestamp")(cut(moments, kind))), moments, strict=True):
        since = None if moment is None else (moment - datetime(2000, 1, 1)) // timedelta(microseconds=1)
        assert found == (None if since is None else struct.pack(">q", since))


@given(st.lists(st.integers(-3_020_399_999_999, 3_020_399_999_999), max_size=20), st.integers(0, 6))
def test_times_as_intervals(microseconds: list[int], digits: int) -> None:
    cut_off = 10 ** (6 - digits)
    whole = [int(n / cut_off) * cut_off for n in microseconds]
    texts = [time_text(n, digits) for n in whole]
    for found, n in zip(
        fields_of(postgres_binary.intervals(variable(pa.array(texts, pa.string())))), whole, strict=True
    ):
        assert found == struct.pack(">qii", n, 0, 0)


def time_text(microseconds: int, digits: int) -> str:
    seconds, fraction = divmod(abs(microseconds), 10**6)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return ("-" if microseconds < 0 else "") + text + (f".{fraction:06d}"[: digits + 1] if digits else "")


@pytest.mark.parametrize(
    "text", ["", "1:00:00", "00:60:00", "00:00:00.", "00:00:00.1234567", "0000:00:00", "00:00", "a"]
)
def test_texts_that_are_no_times_are_refused(text: str) -> None:
    with pytest.raises(postgres_binary.BadTextError):
        postgres_binary.intervals(variable(pa.array([text])))


@given(listed(st.uuids()))
def test_uuids(values: list[Any]) -> None:
    texts = [None if value is None else str(value) for value in values]
    for found, value in zip(fields_of(postgres_binary.uuids(variable(cut(texts, pa.string())))), values, strict=True):
        assert found == (None if value is None else value.bytes)


@given(st.lists(st.tuples(st.none() | TEXTS, st.none() | st.binary(max_size=70), st.none() | st.integers(0, 255))))
def test_fields_are_woven_in_order(rows: list[tuple[str | None, bytes | None, int | None]]) -> None:
    texts, blobs, numbers = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    columns = [
        (variable(cut(texts, pa.string())), Frame(b"<", b">", b"<NULL>")),
        (variable(cut(blobs, pa.binary())), Frame(b"", b"", b"\xff\xff\xff\xff", sized=True)),
        (postgres_binary.integers(cut(numbers, pa.int64()), 2), Frame(b"|", b";", b"|;")),
    ]
    expected = [
        (b"<NULL>" if text is None else b"<" + text.encode() + b">")
        + (b"\xff\xff\xff\xff" if blob is None else struct.pack(">I", len(blob)) + blob)
        + (b"|;" if number is None else b"|" + struct.pack(">h", number) + b";")
        for text, blob, number in rows
    ]
    interleaved = interleave(columns)
    assert bytes(interleaved.data) == b"".join(expected)
    assert [int(end) for end in interleaved.ends] == [sum(map(len, expected[: i + 1])) for i in range(len(rows))]


def written_day(days: int) -> str:
    """The calendar repeats itself after 400 years, which have 146,097 days."""
    cycles, rest = divmod(days - (date(2000, 1, 1) - date(1970, 1, 1)).days, 146_097)
    day = date(2000, 1, 1) + timedelta(days=rest)
    year = day.year + 400 * cycles
    return f"{'-' if year < 0 else ''}{abs(year):04}-{day:%m-%d}"


@given(listed(st.integers(-2_440_588, 2**31 - 2)), listed(st.integers(-210_866_803_200_000_000, 2**63 - 10**7)))
@example([11_248_737, 11_248_738, None, 2**31 - 2], [971_890_963_199_999_999, None, 971_890_963_200_000_000])
def test_json_of_all_days_and_times_of_postgres(days: list[int | None], moments: list[int | None]) -> None:
    def written_time(moment: int) -> str:
        of_day, rest = divmod(moment, 86_400_000_000)
        return f"{written_day(of_day)}T{datetime(2000, 1, 1) + timedelta(microseconds=rest):%H:%M:%S.%f}"

    found = json_values(cut(days, pa.int32()).cast(pa.date32()))
    assert found == [None if day is None else written_day(day) for day in days]
    plain = cut(moments, pa.int64()).cast(pa.timestamp("us"))
    wanted = [None if moment is None else written_time(moment) for moment in moments]
    assert json_values(plain) == wanted
    assert json_values(plain.cast(pa.timestamp("us", tz="UTC"))) == [text and f"{text}Z" for text in wanted]


def json_values(array: pa.Array) -> list[Any]:
    rows = json_rows(pa.RecordBatch.from_arrays([array], names=["c"]))
    return [json.loads(line)["c"] for line in bytes(rows.data).decode().split("\n")[:-1]]


@given(
    listed(st.lists(st.none() | TEXTS, max_size=3)),
    listed(st.lists(st.none() | st.booleans(), max_size=3)),
    listed(st.lists(st.none() | st.dates(), max_size=3)),
    listed(st.lists(st.none() | st.binary(max_size=4), max_size=3)),
)
def test_json_of_lists(texts: Any, truths: Any, days: Any, blobs: Any) -> None:
    def written(value: Any) -> Any:
        if isinstance(value, bytes):
            return python_base64.b64encode(value).decode()
        return value.isoformat() if isinstance(value, date) else value

    for kind, values in ((pa.string(), texts), (pa.bool_(), truths), (pa.date32(), days), (pa.binary(), blobs)):
        batch = pa.RecordBatch.from_arrays([cut(values, pa.list_(kind))], names=["c"])
        found = [json.loads(line)["c"] for line in bytes(json_rows(batch).data).decode().split("\n")[:-1]]
        assert found == [None if value is None else [written(element) for element in value] for value in values]


@given(listed(st.floats()), listed(st.lists(st.floats(width=32), max_size=3)), listed(st.booleans()))
def test_json_of_floats_vectors_and_truth_values(
    floats: list[float | None], vectors: list[list[float] | None], truths: list[bool | None]
) -> None:
    words = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

    def read(value: Any) -> Any:
        return words.get(value, value) if isinstance(value, str) else float(value)

    for name, kind, values in (
        ("f", pa.float64(), floats),
        ("v", pa.list_(pa.float32()), vectors),
        ("t", pa.bool_(), truths),
    ):
        batch = pa.RecordBatch.from_arrays([cut(values, kind)], names=[name])
        lines = bytes(json_rows(batch).data).decode().split("\n")[:-1]
        for line, value in zip(lines, values, strict=True):
            found = json.loads(line)[name]
            if value is None or name == "t":
                assert found is value
            elif name == "f":
                assert struct.pack("d", read(found)) == struct.pack("d", value) or math.isnan(value)
            else:
                assert isinstance(value, list)
                assert struct.pack(f"{len(value)}f", *map(read, found)) == struct.pack(f"{len(value)}f", *value) or any(
                    map(math.isnan, value)
                )
