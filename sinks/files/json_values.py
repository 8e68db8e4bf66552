"""Finds the values of rows in JSON Lines, as texts, without parsing them.

The sink writes each value in one form (`tidemark.sinks.rows.json_lines`): no spaces, and only the escapes that are needed. So
equal values have equal texts. A line in another form, such as one that somebody has changed, is brought into this one first.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.sinks.folded.hashing import cast_where_possible
from tidemark.sinks.folded.row_hashes import Texts
from tidemark.sinks.rows.json_lines import float_text
from tidemark.sinks.rows.text import JSON_ESCAPES
from tidemark.state.change_batch import CHANGE_TYPE_NAMES, ChangeType
from tidemark.state.kernel import Bytes, Int, Int64s, inner_kernel, kernel
from tidemark.state.table import TableSchema, arrow_type_of

BLOCK_BYTES = 8 << 20
MAX_LINE_BYTES = 32 << 20
MAX_REWRITTEN = 1024
_NEWLINE, _QUOTE, _BACKSLASH, _COMMA, _MINUS = (ord(c) for c in '\n"\\,-')
_OPEN, _CLOSE, _BRACE, _BEGIN, _SPACE = (ord(c) for c in "[]}{ ")
_ZERO, _ONE, _NINE, _UPPER_A, _UPPER_F = (ord(c) for c in "019AF")
_UNICODE, _SLASH, _NULL = (ord(c) for c in "u/n")


class NotALineError(ValueError):
    """A line is no JSON object."""


@dataclass(frozen=True, slots=True)
class LineValues:
    """The values of some lines: where the texts of each column begin and end. `words`: the bytes, eight at a time."""

    words: npt.NDArray[np.uint64]
    names: tuple[str, ...]
    starts: Int64s
    ends: Int64s

    def __len__(self) -> int:
        return int(self.starts.shape[1])

    def places(self, name: str) -> tuple[Int64s, Int64s] | None:
        """Returns where a column's texts begin and end; None if the lines do not have it."""
        if name not in self.names:
            return None
        column = self.names.index(name)
        return self.starts[column], self.ends[column]

    def column(self, name: str) -> Texts | None:
        """Returns a column; None if the lines do not have it."""
        places = self.places(name)
        if places is None:
            return None
        return Texts(self.words, *places, self.words.view(np.uint8)[places[0]] != _NULL)

    def texts(self, name: str) -> list[bytes]:
        """Returns a column's texts as they are, null for all if the lines do not have it."""
        places = self.places(name)
        if places is None:
            return [b"null"] * len(self)
        data = self.words.tobytes()
        return [data[start:end] for start, end in zip(*(place.tolist() for place in places), strict=True)]

    def integers(self, name: str) -> pa.Array:
        """Returns a column's integers, NULL for other texts."""
        places = self.places(name)
        if places is None:
            return pa.nulls(len(self), pa.int64())
        numbers, valid = np.zeros(len(self), np.int64), np.zeros(len(self), np.bool_)
        _integers(self.words.view(np.uint8), *places, numbers, valid)
        return pa.array(numbers, mask=~valid)

    def kinds(self) -> pa.Array:
        """Returns `_change_type` as ChangeType."""
        places = self.places("_change_type")
        if places is None:
            return pa.nulls(len(self), pa.int8())
        letters = self.words.view(np.uint8)[places[0] + 1]
        numbers = np.full(len(self), -1, np.int8)
        for kind, name in enumerate(CHANGE_TYPE_NAMES):
            if kind != ChangeType.UPDATE_PREIMAGE:  # the sink writes none
                numbers[letters == ord(name[0])] = kind
        return pa.array(numbers, mask=numbers < 0)

    def unchanged(self) -> pa.Array:
        return pa.array(
            [None if text == b"null" else json.loads(text) for text in self.texts("_unchanged")], pa.list_(pa.string())
        )

    def keys(self, schema: TableSchema, name: str) -> pa.Array:
        """Returns a column of the key: integers, decimals of integers, or texts as `folded.hashing.key_text` makes them."""
        kind = arrow_type_of(schema.column(name).arrow_type)
        if pa.types.is_integer(kind):
            return self.integers(name)
        texts = [_content(text) for text in self.texts(name)]
        if pa.types.is_decimal(kind) and kind.scale == 0:
            return cast_where_possible(pa.array(texts, pa.string()), kind)
        if pa.types.is_binary(kind):
            texts = [None if text is None else "0x" + base64.b64decode(text).hex() for text in texts]
        return pa.array(texts, pa.string())


def values_in(file: BinaryIO, schema: TableSchema) -> Iterator[LineValues]:
    """Yields the values of all lines, some lines at a time. Raises NotALineError."""
    rest = b""
    while block := file.read(BLOCK_BYTES):
        whole, newline, last = block.rpartition(b"\n")
        if newline:
            yield from values_of(rest + whole + newline, schema)
            rest = last
        else:
            rest += block
        if len(rest) > MAX_LINE_BYTES:
            raise NotALineError(f"a line has more than {MAX_LINE_BYTES >> 20} MiB")
    if rest:
        yield from values_of(rest + b"\n", schema)


def values_of(lines: "bytes | memoryview", schema: TableSchema) -> Iterator[LineValues]:
    """`lines`: whole ones of rows of the table. Raises NotALineError."""
    words = _in_words(lines)
    data = words.view(np.uint8)[: len(lines)]
    ends = np.flatnonzero(data == _NEWLINE).astype(np.int64)
    starts = np.concatenate(([0], ends[:-1] + 1)).astype(np.int64)
    written = ends > starts
    starts, ends = starts[written], ends[written]
    names, first, others, at_once = tuple[str, ...](), 0, 1, len(starts)
    while first < len(starts):
        values = _found(words, starts[first : first + at_once], ends[first : first + at_once], names)
        if len(values):
            yield values
            first, others, at_once = first + len(values), 1, len(starts)
            continue
        parsed = _parsed(data[starts[first] : ends[first]].tobytes())
        if tuple(parsed) != names:
            names = tuple(parsed)
            continue
        rewritten = []
        for start, end in zip(starts[first : first + others], ends[first : first + others], strict=True):
            parsed = _parsed(data[start:end].tobytes())
            if tuple(parsed) != names:
                break
            rewritten.append(_rewritten(parsed, schema))
        values = _of_rewritten(rewritten, names)
        yield values
        first, others, at_once = first + len(values), min(2 * others, MAX_REWRITTEN), MAX_REWRITTEN
    return


def _of_rewritten(lines: Sequence[bytes], names: tuple[str, ...]) -> LineValues:
    ends = np.cumsum([len(line) for line in lines]).astype(np.int64)
    values = _found(_in_words(b"".join(lines)), np.concatenate(([0], ends[:-1])).astype(np.int64), ends, names)
    if len(values) < len(lines):
        raise NotALineError("it has names that are there twice")
    return values


def _in_words(lines: "bytes | memoryview") -> npt.NDArray[np.uint64]:
    """Returns the bytes, filled up, and one word more."""
    words = np.zeros(len(lines) // 8 + 2, np.uint64)
    words.view(np.uint8)[: len(lines)] = np.frombuffer(lines, np.uint8)
    return words


def _found(words: npt.NDArray[np.uint64], starts: Int64s, ends: Int64s, names: tuple[str, ...]) -> LineValues:
    """Returns the values of the first lines that have these columns, in the sink's form."""
    found = np.zeros((2, len(names), len(starts)), np.int64)
    count = 0
    if names:
        before = [
            f"{',' if i else '{'}{json.dumps(name, ensure_ascii=False)}:".encode() for i, name in enumerate(names)
        ]
        sizes = np.cumsum([0, *map(len, before)]).astype(np.int64)
        count = _scan(words.view(np.uint8), starts, ends, np.array(list(b"".join(before)), np.uint8), sizes, found)
    return LineValues(words, names, *(np.ascontiguousarray(half[:, :count]) for half in found))


@kernel
def _scan(data: Bytes, starts: Int64s, ends: Int64s, names: Bytes, name_places: Int64s, found: Any) -> Int:
    """Returns the number of lines before the first one in another form."""
    for row in range(len(starts)):
        place, end = starts[row], ends[row]
        for column in range(len(name_places) - 1):
            for i in range(name_places[column], name_places[column + 1]):
                if data[place] != names[i]:
                    return row
                place += 1
            after = _value_end(data, place, end)
            if after < 0:
                return row
            found[0, column, row] = place
            found[1, column, row] = after
            place = after
        if place != end - 1 or data[place] != _BRACE:
            return row
    return len(starts)


@inner_kernel
def _value_end(data: Bytes, start: Int, end: Int) -> Int:
    """Returns where a value ends; -1 if it has another form than the sink's."""
    depth, place = 0, start
    while place < end:
        byte = data[place]
        if byte == _QUOTE:
            place = _text_end(data, place + 1, end)
            if place < 0:
                return -1
        elif byte == _OPEN:
            depth += 1
        elif byte == _CLOSE:
            depth -= 1
        elif byte <= _SPACE or byte == _BEGIN:
            return -1
        elif depth == 0 and byte in (_COMMA, _BRACE):
            return place if place > start else -1
        place += 1
    return -1


@inner_kernel
def _text_end(data: Bytes, place: Int, end: Int) -> Int:
    """Returns the place of the quote that ends a text; -1 if it has another form than the sink's."""
    while place < end:
        byte = data[place]
        if byte == _QUOTE:
            return place
        if byte == _BACKSLASH:
            place += 1
            if data[place] == _SLASH:
                return -1
            if data[place] == _UNICODE:  # the sink writes it for control characters only
                last = data[place + 4]
                is_digit = (_ZERO <= last <= _NINE) or (_UPPER_A <= last <= _UPPER_F)
                if data[place + 1] != _ZERO or data[place + 2] != _ZERO or data[place + 3] > _ONE or not is_digit:
                    return -1
        place += 1
    return -1


@kernel
def _integers(data: Bytes, starts: Int64s, ends: Int64s, numbers: Int64s, valid: Any) -> None:
    for row in range(len(starts)):
        place, end = starts[row], ends[row]
        is_negative = data[place] == _MINUS
        if is_negative:
            place += 1
        number, is_number = np.int64(0), place < end <= place + 19
        while place < end and is_number:
            is_number = _ZERO <= data[place] <= _NINE
            number = number * 10 - (np.int64(data[place]) - _ZERO)  # the least number has no positive counterpart
            place += 1
        numbers[row] = number if is_negative else -number
        valid[row] = is_number


def _content(text: bytes) -> str | None:
    """Returns a value's text without quotes and escapes."""
    if text == b"null":
        return None
    if text[:1] != b'"':
        return text.decode()
    return str(json.loads(text)) if b"\\" in text else text[1:-1].decode()


class _Number(str):
    """A number's text."""

    __slots__ = ()


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    except ValueError as error:
        raise NotALineError("it is no JSON") from error
    if not isinstance(row, dict):
        raise NotALineError("it is no object")
    return row


def _rewritten(row: dict[str, Any], schema: TableSchema) -> bytes:
    """Returns a line in the sink's form."""
    kinds = {column.name: arrow_type_of(column.arrow_type) for column in schema.captured}
    values = (f"{json.dumps(name, ensure_ascii=False)}:{_value(value, kinds.get(name))}" for name, value in row.items())
    return f"{{{','.join(values)}}}".encode()


def _value(value: Any, kind: pa.DataType | None) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case _Number():
            is_float = kind is not None and pa.types.is_floating(kind)
            return float_text(float(value), kind) if is_float else str(value)
        case str():
            return f'"{value.translate(_ESCAPES)}"'
        case list():
            of_element = kind.value_type if kind is not None and pa.types.is_list(kind) else None
            return f"[{','.join(_value(element, of_element) for element in value)}]"
        case _:  # an object, which the sink never writes
            return "object" + json.dumps(value).encode().hex()


_ESCAPES = {
    byte: f"\\u00{byte:02X}" if letter == 1 else f"\\{chr(letter)}"
    for byte, letter in enumerate(JSON_ESCAPES.tolist())
    if letter
}
