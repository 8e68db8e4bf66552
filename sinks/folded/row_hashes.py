"""Hashes of rows: 64 bits of the values of Arrow columns, bit by bit.

Equal values have equal hashes. -0 and 0 are two values, all NaN are one, and NULL, an empty text and an empty list are three.
Different rows have the same hash with a probability of 2**-64. Each comparison draws a `seed` of its own: what one does not
see by chance, the next one sees.

Each eight bytes are mixed into the hash of what came before, as XXH64 mixes them (https://xxhash.com), with one shift more.
Without it some rows have one hash with every seed. DuckDB's own hash is not taken: it is the same for texts that
differ in the highest bits of their bytes 8 and 16, and for NULL and an empty list.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.sinks.rows.fields import validity
from tidemark.state.kernel import Int, Int64s, inner_kernel, kernel

Hashes = npt.NDArray[np.uint64]
_Flags = npt.NDArray[np.bool_]

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_NULL = np.uint64(0x27D4EB2F165667C5)
_NAN32, _NAN64 = np.uint32(0x7FC00000), np.uint64(0x7FF8 << 48)


def hashes_of(columns: list[pa.Array], row_count: int, seed: int) -> Hashes:
    """Returns a hash of each row. `columns`: of canonical types (`tidemark.state.table.arrow_type_of`), each with `row_count`
    values."""
    hashes = np.full(row_count, seed, np.uint64)
    for column in columns:
        _take(hashes, column, np.uint64(seed))
    _finish(hashes)
    return hashes


@dataclass(frozen=True, slots=True)
class Texts:
    """A column of texts: where they begin and end in `words`, which has eight bytes each, and which are not NULL."""

    words: Hashes
    starts: Int64s
    ends: Int64s
    valid: _Flags


def hashes_of_texts(columns: Sequence[Texts | None], row_count: int, seed: int) -> Hashes:
    """Returns a hash of each row. None: a column that is NULL."""
    hashes = np.full(row_count, seed, np.uint64)
    nothing = np.zeros(row_count, np.bool_)
    for column in columns:
        if column is None:
            _take_words(hashes, np.zeros(row_count, np.uint64), nothing)
        else:
            _take_texts(hashes, column.starts, column.ends, column.words, column.valid)
    _finish(hashes)
    return hashes


def _take(hashes: Hashes, array: pa.Array, seed: np.uint64) -> None:
    """Mixes the values of a column into the hashes of its rows."""
    kind, valid = array.type, validity(array)
    if pa.types.is_list(kind):
        elements = array.flatten()
        of_elements = np.full(len(elements), seed ^ _P3, np.uint64)
        _take(of_elements, elements, seed)
        sizes = np.zeros(len(array), np.int64)
        sizes[valid] = np.asarray(array.value_lengths().drop_null())
        _take_lists(hashes, np.concatenate(([0], np.cumsum(sizes))), of_elements, valid)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        _, offsets, data = array.buffers()
        if len(array):
            places = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
            words = _in_words(data, places[0], places[-1])
            places -= places[0]
            _take_texts(hashes, places[:-1].copy(), places[1:].copy(), words, valid)
    else:
        for words in _words(array):
            _take_words(hashes, words, valid)


def _in_words(data: pa.Buffer | None, start: int, end: int) -> Hashes:
    """Returns the bytes from `start` to `end` as numbers of eight bytes, the last of them filled up, and one more."""
    words = np.zeros((end - start) // 8 + 2, np.uint64)
    if data is not None:
        words.view(np.uint8)[: end - start] = np.frombuffer(data, np.uint8)[start:end]
    return words


def _words(array: pa.Array) -> list[Hashes]:
    """Returns the values of a column of fixed width as one or two numbers of 64 bits."""
    kind, count = array.type, len(array)
    if pa.types.is_boolean(kind):
        bits = np.frombuffer(array.buffers()[1], np.uint8) if count else np.zeros(0, np.uint8)
        return [np.unpackbits(bits, count=array.offset + count, bitorder="little")[array.offset :].astype(np.uint64)]
    width = kind.bit_width // 8
    raw = np.zeros(0, np.uint8)
    if count:
        raw = np.frombuffer(array.buffers()[1], np.uint8)[array.offset * width : (array.offset + count) * width]
    if pa.types.is_decimal(kind):
        halves = raw.view(np.uint64).reshape(-1, 2)
        return [np.ascontiguousarray(halves[:, 0]), np.ascontiguousarray(halves[:, 1])]
    if pa.types.is_floating(kind) and width == 4:
        return [np.where(np.isnan(raw.view(np.float32)), _NAN32, raw.view(np.uint32)).astype(np.uint64)]
    if pa.types.is_floating(kind):
        return [np.where(np.isnan(raw.view(np.float64)), _NAN64, raw.view(np.uint64))]
    return [raw.view(f"i{width}").astype(np.int64).view(np.uint64)]


@inner_kernel
def _mixed(before: Int, word: Int) -> Int:
    lane = word * _P2
    lane = ((lane << np.uint64(31)) | (lane >> np.uint64(33))) * _P1
    both = before ^ lane
    both ^= both >> np.uint64(29)  # else a difference in the highest bit stays one, whatever the seed
    return ((both << np.uint64(27)) | (both >> np.uint64(37))) * _P1 + _P4


@inner_kernel
def _null(before: Int) -> Int:
    """Returns the hash after NULL. Which word would give the same one depends on the hash before, and so on the seed."""
    return _mixed(((before << np.uint64(32)) | (before >> np.uint64(32))) + _P3, _NULL)


@inner_kernel
def _word_at(words: Int, place: Int, shift: Int) -> Int:
    """Returns the eight bytes that begin `shift` bits after a word's begin."""
    if shift == 0:
        return words[place]
    return (words[place] >> shift) | (words[place + 1] << (np.uint64(64) - shift))


@kernel
def _take_words(hashes: Hashes, words: Hashes, valid: _Flags) -> None:
    for i in range(len(hashes)):
        hashes[i] = _mixed(hashes[i], words[i]) if valid[i] else _null(hashes[i])


@kernel
def _take_texts(hashes: Hashes, starts: Int64s, ends: Int64s, words: Hashes, valid: _Flags) -> None:
    for i in range(len(hashes)):
        if not valid[i]:
            hashes[i] = _null(hashes[i])
            continue
        start, size = starts[i], ends[i] - starts[i]
        mixed = _mixed(hashes[i], np.uint64(size))
        place, shift = start >> 3, np.uint64((start & 7) * 8)
        for _ in range(size >> 3):
            mixed = _mixed(mixed, _word_at(words, place, shift))
            place += 1
        if size & 7:
            rest = _word_at(words, place, shift) & ((np.uint64(1) << np.uint64((size & 7) * 8)) - np.uint64(1))
            mixed = _mixed(mixed, rest)
        hashes[i] = mixed


@kernel
def _take_lists(hashes: Hashes, offsets: Int64s, elements: Hashes, valid: _Flags) -> None:
    for i in range(len(hashes)):
        if not valid[i]:
            hashes[i] = _null(hashes[i])
            continue
        mixed = _mixed(hashes[i], np.uint64(offsets[i + 1] - offsets[i]))
        for k in range(offsets[i], offsets[i + 1]):
            mixed = _mixed(mixed, elements[k])
        hashes[i] = mixed


@kernel
def _finish(hashes: Hashes) -> None:
    for i in range(len(hashes)):
        mixed = hashes[i]
        mixed ^= mixed >> np.uint64(33)
        mixed *= _P2
        mixed ^= mixed >> np.uint64(29)
        mixed *= _P3
        hashes[i] = mixed ^ (mixed >> np.uint64(32))
