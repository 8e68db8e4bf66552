"""Ranks of key values, from the log's Arrow columns and from the server's own text: one value, one rank, on both ways.

See state/rank.py for their form. Numbers, dates, times of day and bytes are ranked here; the server is asked for
strings only (weights.py).
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

from readers.mysql.key_columns import KeyColumn, KeyKind
from state.rank import bytes_rank, integer_rank
from state.split import KeyRange

Words: TypeAlias = npt.NDArray[np.uint64]
Ranks: TypeAlias = "Words | pa.BinaryArray"
"""Numbers for a single column of KeyKind.INTEGER, else bytes."""

AskedRanks = Callable[[KeyColumn, Sequence[str]], list[bytes]]
"""Ranks of distinct strings, by the server."""

_SIGN = np.uint64(1 << 63)
_WIDE_DECIMAL_BYTES = 32
"""DECIMAL(65) needs 217 bits."""

_NO_SEPARATOR = pa.scalar(b"", pa.binary())
_EPOCH = datetime(1970, 1, 1)
_TIME = re.compile(r"(-?)(\d{2,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_MOMENT = re.compile(r"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")


def ranks(columns: Sequence[KeyColumn], values: Sequence[pa.Array], asked: AskedRanks) -> Ranks:
    """One for each row. Raises ValueError if a value is null."""
    if len(columns) == 1 and columns[0].kind is KeyKind.INTEGER:
        return words(columns[0], values[0])
    parts = [_ranks_of(column, array, asked) for column, array in zip(columns, values, strict=True)]
    joined: pa.BinaryArray = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, _NO_SEPARATOR)
    return joined


def within(found: Ranks, key_range: KeyRange) -> npt.NDArray[np.bool_]:
    """Which keys lie in [start, end)."""
    inside = np.ones(len(found), np.bool_)
    for bound, right in ((key_range.start, True), (key_range.end, False)):
        if bound is None:
            continue
        rank = bytes.fromhex(bound.rank)
        if isinstance(found, np.ndarray):
            at_or_after = found >= np.uint64(int.from_bytes(rank, "big"))
        else:
            at_or_after = pc.greater_equal(found, pa.scalar(rank, pa.binary())).to_numpy(zero_copy_only=False)
        inside &= at_or_after if right else ~at_or_after
    return inside


def rank_of_text(column: KeyColumn, selected: int | str) -> bytes:
    """Of a value that the server gave for `column.sql`; not for TEXT. Raises ValueError for a date that is none."""
    match column.kind:
        case KeyKind.INTEGER:
            return integer_rank(int(selected), unsigned=column.unsigned)
        case KeyKind.BYTES:
            return bytes_rank(bytes.fromhex(str(selected)))
        case KeyKind.DECIMAL if column.wide:
            return _wide_decimal(str(selected), column.scale)
        case KeyKind.DECIMAL:
            array = pa.array([str(selected)]).cast(pa.decimal128(38, column.scale))
            rank: bytes = _decimals(array)[0].as_py()
            return rank
        case KeyKind.YEAR:
            return integer_rank(int(selected), unsigned=False)
        case KeyKind.DATE:
            return integer_rank((date.fromisoformat(str(selected)) - _EPOCH.date()).days, unsigned=False)
        case KeyKind.MOMENT:
            return integer_rank(_microseconds(str(selected)), unsigned=False)
        case KeyKind.TIME | KeyKind.INET4 | KeyKind.INET6:
            return _PARSED[column.kind](str(selected))
        case KeyKind.TEXT:
            raise ValueError("strings are ranked by their weights")


def words(column: KeyColumn, values: pa.Array) -> Words:
    """Of an integer column: the eight bytes of its rank as a number."""
    if values.null_count:
        raise ValueError(f"{column.name} is null")
    if pa.types.is_decimal(values.type):  # BIGINT UNSIGNED, BIT(64): the low half of each value, the other one is zero
        low: Words = _halves(values)[:, 0].copy()
        return low
    numbers: Words = values.cast(pa.int64()).to_numpy().view(np.uint64)
    return numbers if column.unsigned else numbers ^ _SIGN


def _ranks_of(column: KeyColumn, values: pa.Array, asked: AskedRanks) -> pa.BinaryArray:
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
        case KeyKind.MOMENT:
            return _fixed((values.cast(pa.int64()).to_numpy().view(np.uint64) ^ _SIGN).astype(">u8"))
        case KeyKind.DECIMAL if not column.wide:
            return _decimals(values)
        case KeyKind.TEXT:
            return _distinct(values, lambda texts: asked(column, texts))
        case KeyKind.BYTES:
            return _distinct(values, lambda found: [bytes_rank(value) for value in found])
        case KeyKind.DECIMAL:
            return _distinct(values, lambda found: [_wide_decimal(value, column.scale) for value in found])
        case KeyKind.TIME | KeyKind.INET4 | KeyKind.INET6:
            return _distinct(values, lambda found: list(map(_PARSED[column.kind], found)))


def _distinct(values: pa.Array, rank_all: Callable[[list[Any]], list[bytes]]) -> pa.BinaryArray:
    encoded = values.dictionary_encode()
    return pa.array(rank_all(encoded.dictionary.to_pylist()), pa.binary()).take(encoded.indices)


def _fixed(rows: npt.NDArray[np.generic]) -> pa.BinaryArray:
    """Each row's bytes as one value. `rows` is (n,) or (n, m) and contiguous."""
    size = rows.nbytes // max(len(rows), 1)
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(size)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(rows.tobytes())]
    )


def _halves(values: pa.Array) -> Words:
    """(n, 2): low and high 64 bits of decimal128 values."""
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
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise ValueError(f"not a moment: {text!r}")
    whole = datetime(*(int(part) for part in match.groups()[:6])) - _EPOCH  # type: ignore[arg-type]  # six ints
    return (whole.days * 86400 + whole.seconds) * 1_000_000 + int((match[7] or "").ljust(6, "0"))


def _time(text: str) -> bytes:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"not a time: {text!r}")
    sign, hours, minutes, seconds, fraction = match.groups()
    whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    microseconds = whole * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return integer_rank(-microseconds if sign else microseconds, unsigned=False)


def _address(text: str) -> bytes:
    return bytes_rank(ipaddress.ip_address(text).packed)


_PARSED: dict[KeyKind, Callable[[str], bytes]] = {
    KeyKind.TIME: _time,
    KeyKind.INET4: _address,
    KeyKind.INET6: _address,
}
