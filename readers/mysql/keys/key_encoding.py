"""Encoded keys, from the log's Arrow columns and from the server's own text. Equal values have equal encodings.

state/key_encoding.py defines the form. Numbers, temporal values and bytes are encoded here; only strings need the server
(collation_keys.py).
"""

import ipaddress
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.readers.mysql.keys import uuid_order
from tidemark.readers.mysql.keys.key_columns import KeyColumn, KeyKind
from tidemark.state.key_encoding import encode_bytes, encode_integer
from tidemark.state.split import KeyRange

Words: TypeAlias = npt.NDArray[np.uint64]
EncodedKeys: TypeAlias = "Words | pa.BinaryArray"
"""Numbers for a single INTEGER column, else bytes."""

ServerEncodedKeys = Callable[[KeyColumn, Sequence[str]], list[bytes]]
"""Computes the encoded keys of distinct strings on the server."""

_SIGN = np.uint64(1 << 63)
_WIDE_DECIMAL_BYTES = 32
"""DECIMAL(65) needs 217 bits."""

_NO_SEPARATOR = pa.scalar(b"", pa.binary())
_EPOCH = datetime(1970, 1, 1)
_TIME = re.compile(r"(-?)(\d{2,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_TEMPORAL = re.compile(r"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")


def encoded_keys(columns: Sequence[KeyColumn], values: Sequence[pa.Array], on_server: ServerEncodedKeys) -> EncodedKeys:
    """The encoded key of each row. Raises ValueError if a value is null."""
    if len(columns) == 1 and columns[0].kind is KeyKind.INTEGER:
        return words(columns[0], values[0])
    parts = [_encoded_keys_of(column, array, on_server) for column, array in zip(columns, values, strict=True)]
    joined: pa.BinaryArray = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, _NO_SEPARATOR)
    return joined


def within(found: EncodedKeys, key_range: KeyRange) -> npt.NDArray[np.bool_]:
    """True for each key in [start, end)."""
    inside = np.ones(len(found), np.bool_)
    for bound, right in ((key_range.start, True), (key_range.end, False)):
        if bound is None:
            continue
        encoded_key = bytes.fromhex(bound.encoded_key)
        if isinstance(found, np.ndarray):
            at_or_after = found >= np.uint64(int.from_bytes(encoded_key, "big"))
        else:
            at_or_after = pc.greater_equal(found, pa.scalar(encoded_key, pa.binary())).to_numpy(zero_copy_only=False)
        inside &= at_or_after if right else ~at_or_after
    return inside


def encode_text(column: KeyColumn, selected: int | float | str) -> bytes:
    """The encoded key of a value that the server returned for `column.sql`; not for TEXT. Raises ValueError for a zero
    date."""
    match column.kind:
        case KeyKind.INTEGER:
            return encode_integer(int(selected), unsigned=column.unsigned)
        case KeyKind.BYTES:
            return encode_bytes(bytes.fromhex(str(selected)))
        case KeyKind.DECIMAL if column.wide:
            return _wide_decimal(str(selected), column.scale)
        case KeyKind.DECIMAL:
            array = pa.array([str(selected)]).cast(pa.decimal128(38, column.scale))
            encoded_key: bytes = _decimals(array)[0].as_py()
            return encoded_key
        case KeyKind.YEAR:
            return encode_integer(int(selected), unsigned=False)
        case KeyKind.ORDINAL:
            return encode_integer(int(selected), unsigned=True)
        case KeyKind.FLOAT:
            encoded_float: bytes = _floats(pa.array([float(selected)]))[0].as_py()
            return encoded_float
        case KeyKind.DATE:
            return encode_integer((date.fromisoformat(str(selected)) - _EPOCH.date()).days, unsigned=False)
        case KeyKind.TEMPORAL:
            return encode_integer(_microseconds(str(selected)), unsigned=False)
        case KeyKind.TIME | KeyKind.INET4 | KeyKind.INET6 | KeyKind.UUID:
            return _PARSED[column.kind](str(selected))
        case KeyKind.TEXT:
            raise ValueError("only the server can encode strings")


def words(column: KeyColumn, values: pa.Array) -> Words:
    """The encoded keys of an integer column, as 64-bit numbers."""
    if values.null_count:
        raise ValueError(f"{column.name} is null")
    if pa.types.is_decimal(values.type):  # BIGINT UNSIGNED, BIT(64): the low half of each value, the other one is zero
        low: Words = _halves(values)[:, 0].copy()
        return low
    numbers: Words = values.cast(pa.int64()).to_numpy().view(np.uint64)
    return numbers if column.unsigned else numbers ^ _SIGN


def _encoded_keys_of(column: KeyColumn, values: pa.Array, on_server: ServerEncodedKeys) -> pa.BinaryArray:
    if values.null_count:
        raise ValueError(f"{column.name} is null")
    match column.kind:
        case KeyKind.INTEGER:
            return _fixed(words(column, values).astype(">u8"))
        case KeyKind.YEAR:
            return _fixed((values.cast(pa.int64()).to_numpy().view(np.uint64) ^ _SIGN).astype(">u8"))
        case KeyKind.DATE:
            days = values.cast(pa.int32()).cast(pa.int64())
            return _fixed((days.to_numpy().view(np.uint64) ^ _SIGN).astype(">u8"))
        case KeyKind.TEMPORAL:
            return _fixed((values.cast(pa.int64()).to_numpy().view(np.uint64) ^ _SIGN).astype(">u8"))
        case KeyKind.DECIMAL if not column.wide:
            return _decimals(values)
        case KeyKind.FLOAT:
            return _floats(values)
        case KeyKind.ORDINAL:
            return _ordinals(column, values)
        case KeyKind.TEXT:
            return _distinct(values, lambda texts: on_server(column, texts))
        case KeyKind.BYTES:
            return _distinct(values, lambda found: [encode_bytes(value) for value in found])
        case KeyKind.DECIMAL:
            return _distinct(values, lambda found: [_wide_decimal(value, column.scale) for value in found])
        case KeyKind.TIME | KeyKind.INET4 | KeyKind.INET6 | KeyKind.UUID:
            return _distinct(values, lambda found: list(map(_PARSED[column.kind], found)))


def _distinct(values: pa.Array, encode_all: Callable[[list[Any]], list[bytes]]) -> pa.BinaryArray:
    encoded = values.dictionary_encode()
    return pa.array(encode_all(encoded.dictionary.to_pylist()), pa.binary()).take(encoded.indices)


def _fixed(rows: npt.NDArray[np.generic]) -> pa.BinaryArray:
    """A binary array with each row's bytes as one value. `rows` is (n,) or (n, m) and contiguous."""
    size = rows.nbytes // max(len(rows), 1)
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(size)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(rows.tobytes())]
    )


def _floats(values: pa.Array) -> pa.BinaryArray:
    """Encodes a FLOAT as the DOUBLE of the same value, with all bits of negative numbers flipped: IEEE 754 orders numbers of
    one sign as integers. -0.0 equals 0.0."""
    bits = (values.cast(pa.float64()).to_numpy() + 0.0).view(np.uint64)
    return _fixed(np.where(bits & _SIGN, ~bits, bits | _SIGN).astype(">u8"))


def _ordinals(column: KeyColumn, values: pa.Array) -> pa.BinaryArray:
    """Raises ValueError for a text that is none of the column's."""
    numbers = pc.index_in(values, pa.array(column.texts, pa.string()))
    if numbers.null_count:
        raise ValueError(f"{column.name} has a value that is none of its type's")
    return _fixed(numbers.to_numpy().astype(">u8"))


def _halves(values: pa.Array) -> Words:
    """The low and high 64 bits of decimal128 values, as (n, 2)."""
    data = np.frombuffer(values.buffers()[1], np.uint64) if len(values) else np.empty(0, np.uint64)
    return data.reshape(-1, 2)[values.offset : values.offset + len(values)]


def _decimals(values: pa.Array) -> pa.BinaryArray:
    halves = _halves(values)
    big_endian = np.empty((len(halves), 2), ">u8")
    big_endian[:, 0] = halves[:, 1] ^ _SIGN
    big_endian[:, 1] = halves[:, 0]
    return _fixed(big_endian)


def _wide_decimal(text: str, scale: int) -> bytes:
    whole, _, fraction = text.partition(".")
    number = int(whole + fraction.ljust(scale, "0"))
    return (number + (1 << 8 * _WIDE_DECIMAL_BYTES - 1)).to_bytes(_WIDE_DECIMAL_BYTES, "big")


def _microseconds(text: str) -> int:
    match = _TEMPORAL.fullmatch(text)
    if match is None:
        raise ValueError(f"not a datetime: {text!r}")
    whole = datetime(*(int(part) for part in match.groups()[:6])) - _EPOCH  # type: ignore[arg-type]  # six ints
    return (whole.days * 86400 + whole.seconds) * 1_000_000 + int((match[7] or "").ljust(6, "0"))


def _time(text: str) -> bytes:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"not a time: {text!r}")
    sign, hours, minutes, seconds, fraction = match.groups()
    whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    microseconds = whole * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return encode_integer(-microseconds if sign else microseconds, unsigned=False)


def _address(text: str) -> bytes:
    return encode_bytes(ipaddress.ip_address(text).packed)


_PARSED: dict[KeyKind, Callable[[str], bytes]] = {
    KeyKind.TIME: _time,
    KeyKind.INET4: _address,
    KeyKind.INET6: _address,
    KeyKind.UUID: uuid_order.encoded,
}
