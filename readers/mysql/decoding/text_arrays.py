"""Converts text and bytes to Arrow arrays of variable length."""

import ipaddress

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.readers.gather import MAX_OFFSET
from tidemark.readers.mysql.decoding.charsets import UTF8, single_byte_table
from tidemark.readers.mysql.decoding.decimals import wide_decimal_text
from tidemark.readers.mysql.decoding.gather import copy_characters, copy_padded, measure_characters, time_text
from tidemark.readers.mysql.decoding.json_kernel import JsonStop, print_documents
from tidemark.readers.mysql.decoding.jsonb import json_text
from tidemark.readers.mysql.decoding.usual_codes import may_have_unusual_codes
from tidemark.readers.mysql.decoding.values import Values
from tidemark.state.errors import SchemaChangedError
from tidemark.state.kernel import Bytes, Int64s
from tidemark.state.remedies import START_OVER_NOW


def byte_strings(values: Values) -> pa.Array:
    return values.array(*values.gathered())


def padded_bytes(values: Values) -> pa.Array:
    """Converts BINARY(n). The log omits trailing zero bytes."""
    return values.array(*_padded(values, values.output.number))


def _padded(values: Values, size: int) -> tuple[npt.NDArray[np.int32], Bytes]:
    offsets = values.fixed_offsets(size)
    data = np.zeros(int(offsets[-1]), np.uint8)
    copy_padded(values.buf, values.lo, values.hi, values.rows, offsets, data)
    return offsets, data


def texts(values: Values) -> pa.Array:
    charset = str(values.output.charset)
    if charset == "ascii":
        offsets, data = values.gathered()
        return values.decoded() if (data & 0x80).any() else values.array(offsets, data)
    if charset in UTF8:
        array = values.array(*values.gathered())
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            return values.decoded()
        return array
    table = single_byte_table(charset)
    if table is None or (values.output.is_key and may_have_unusual_codes(charset)):
        return values.decoded()
    return _single_byte_texts(values, *table)


def ascii_texts(values: Values) -> pa.Array:
    """Converts what the server itself writes in ASCII."""
    offsets, data = values.gathered()
    if (data & 0x80).any():
        raise values.damaged()
    return values.array(offsets, data)


def _single_byte_texts(values: Values, width: Bytes, utf8: Bytes) -> pa.Array:
    offsets = np.empty(len(values.rows) + 1, np.int32)
    total = measure_characters(values.buf, values.lo, values.hi, values.rows, width, offsets)
    if total == -1:
        raise values.too_large()
    if total < 0:
        return values.decoded()
    data = np.empty(total, np.uint8)
    copy_characters(values.buf, values.lo, values.hi, values.rows, width, utf8, data)
    return values.array(offsets, data)


def times(values: Values) -> pa.Array:
    offsets = np.empty(len(values.rows) + 1, np.int32)
    data = np.empty(len(values.rows) * 17, np.uint8)
    size = time_text(values.lo, values.valid, values.rows, values.output.number, offsets, data)
    return values.array(offsets, data[:size])


def packed_decimals(values: Values) -> pa.Array:
    """Converts decimals of more than 38 digits from the log."""
    number = values.output.number
    starts = np.where(values.present() == 1, values.lo[values.rows], -1)
    offsets = np.empty(len(starts) + 1, np.int32)
    data = np.empty(len(starts) * 68, np.uint8)
    if wide_decimal_text(values.buf, starts, number >> 8, number & 255, offsets, data) >= 0:
        raise values.damaged()
    return values.array(offsets, data[: int(offsets[-1])])


def enum_labels(values: Values) -> pa.Array:
    """Converts ENUM ordinals. Ordinal 0 is the invalid value, which the server shows as ''."""
    ordinals = values.lo[values.rows]
    _check_max(values, ordinals, len(values.output.labels))
    return pa.array(["", *values.output.labels], pa.string()).take(_with_nulls(values, ordinals))


def set_labels(values: Values) -> pa.Array:
    labels = values.output.labels
    bits, indices = np.unique(values.lo[values.rows], return_inverse=True)
    if len(labels) < 64:
        _check_max(values, bits, (1 << len(labels)) - 1)
    joined = [",".join(label for i, label in enumerate(labels) if mask >> i & 1) for mask in bits.tolist()]
    return pa.array(joined, pa.string()).take(_with_nulls(values, indices.astype(np.int64)))


def _with_nulls(values: Values, indices: Int64s) -> pa.Array:
    return pa.array(indices, mask=values.present() == 0)


def _check_max(values: Values, numbers: Int64s, maximum: int) -> None:
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) <= maximum:
        raise SchemaChangedError(
            f"{values.table}.{values.output.name}: the log has a value without a label. The table was altered.",
            START_OVER_NOW,
        )


def json_texts(values: Values) -> pa.Array:
    """Converts MySQL's binary JSON to the text that the server prints."""
    offsets = np.zeros(len(values.rows) + 1, np.int32)
    data = np.empty(2 * int(values.hi[values.rows].sum()) + 1024, np.uint8)
    state = np.zeros(2, np.int64)
    while True:
        stop = print_documents(values.buf, values.lo, values.hi, values.valid, values.rows, offsets, data, state)
        index, end = int(state[0]), int(state[1])
        match stop:
            case JsonStop.DONE:
                break
            case JsonStop.NO_ROOM:
                data = np.concatenate((data[:end], np.empty(len(data) + 1024, np.uint8)))
            case JsonStop.HAND_BACK:
                text = np.frombuffer(_plain_json(values, int(values.rows[index])), np.uint8)
                if end + len(text) > len(data):
                    data = np.concatenate((data[:end], np.empty(len(data) + 2 * len(text), np.uint8)))
                if end + len(text) > MAX_OFFSET:
                    raise values.too_large()
                data[end : end + len(text)] = text
                state[:] = (index + 1, end + len(text))
                offsets[index + 1] = state[1]
            case JsonStop.TOO_LARGE:
                raise values.too_large()
            case _:
                raise values.damaged()
    array = values.array(offsets, data[: int(offsets[-1])])
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as exc:  # not UTF-8
        raise values.damaged() from exc
    return array


def _plain_json(values: Values, row: int) -> bytes:
    start, size = int(values.lo[row]), int(values.hi[row])
    try:
        return json_text(values.buf[start : start + size].tobytes()).encode()
    except ValueError as exc:
        raise values.damaged() from exc


def vectors(values: Values) -> pa.Array:
    offsets, data = values.gathered()
    if (offsets & 3).any():
        raise values.damaged()
    floats = pa.Array.from_buffers(pa.float32(), len(data) // 4, [None, pa.py_buffer(data)])
    return values.array(offsets >> 2, children=[floats])


_HEX = np.array([list(f"{byte:02x}".encode()) for byte in range(256)], np.uint8)
_DASHES = (8, 13, 18, 23)


def uuids(values: Values) -> pa.Array:
    """Converts MariaDB's UUIDs, stored in the order of their text (seen on 10.11 and 11.4). The log omits trailing zero
    bytes."""
    _, data = _padded(values, 16)
    digits = _HEX[data].reshape(-1, 32)
    text = np.full((len(digits), 36), ord("-"), np.uint8)
    text[:, [i for i in range(36) if i not in _DASHES]] = digits
    return values.array(values.fixed_offsets(36), text.reshape(-1))


def inet4_texts(values: Values) -> pa.Array:
    return values.texts(lambda value: str(ipaddress.IPv4Address(value.ljust(4, b"\0"))))


def inet6_texts(values: Values) -> pa.Array:
    return values.texts(lambda value: inet6_text(value.ljust(16, b"\0")))


def inet6_text(value: bytes) -> str:
    """The address as MariaDB prints it: the first longest run of zero groups, even a single one, becomes `::`; an embedded
    IPv4 address is printed as such."""
    groups = [int.from_bytes(value[i : i + 2], "big") for i in range(0, 16, 2)]
    start, length = 0, 0
    for i in range(8):
        run = 0
        while i + run < 8 and groups[i + run] == 0:
            run += 1
        if run > length:
            start, length = i, run
    if start == 0 and (length == 6 or (length == 5 and groups[5] == 0xFFFF)):
        mapped = "ffff:" if length == 5 else ""
        return f"::{mapped}{ipaddress.IPv4Address(value[12:])}"
    shown = [f"{group:x}" for group in groups]
    if not length:
        return ":".join(shown)
    return f"{':'.join(shown[:start])}::{':'.join(shown[start + length :])}"
