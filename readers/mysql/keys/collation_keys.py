"""Collation keys: bytes that compare as the server compares the strings, equal if and only if the strings are equal.

The server computes them (WEIGHT_STRING). This module adds the padding: if a collation pads with spaces, a string compares
as if endless spaces followed it, so 'a' equals 'a ' and is greater than 'a' followed by a tab.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.readers.mysql.keys.key_columns import KeyColumn, text_literal
from tidemark.readers.mysql.keys.key_text import encoder
from tidemark.state.errors import SourceNotUsableError
from tidemark.state.key_encoding import encode_bytes

VALUES_A_QUERY = 500
CACHED_VALUES = 1 << 17
LEVELS = (1, 2, 3, 4)
"""MariaDB's multi-level collations write the levels one after the other without a separator, so we ask for each level by
itself. A level that the collation does not have repeats its last one."""

_LESS, _END, _GREATER = b"\0", b"\1", b"\2"
_RUN_BYTES = 4
_MAX_RUN_LENGTH = (1 << 8 * _RUN_BYTES) - 1


@dataclass(frozen=True, slots=True)
class Collation:
    """How this server computes a collation's keys. `levels`: suffixes of WEIGHT_STRING's argument, one per level. `spaces`:
    per level, the key of a space if the collation pads with spaces, else b""."""

    levels: tuple[str, ...]
    spaces: tuple[bytes, ...]

    def sql(self, value: str) -> list[str]:
        """The expressions to select. `encoded_key` takes their values."""
        return [f"WEIGHT_STRING({value}{level})" for level in self.levels]

    def encoded_key(self, collation_keys: Sequence[bytes]) -> bytes:
        return b"".join(
            encode_bytes(padded(collation_key, space) if space else collation_key)
            for collation_key, space in zip(collation_keys, self.spaces, strict=True)
        )


def padded(collation_key: bytes, space: bytes) -> bytes:
    """Bytes that order like `collation_key` followed by endless `space`s.

    Each run of spaces becomes one space and a note of what follows: a smaller unit (longer runs sort later), the end, or
    a greater unit (longer runs sort earlier). The end counts as an endless run.
    """
    size = len(space)
    if len(collation_key) % size:
        raise ValueError(f"a collation key of {len(collation_key)} bytes does not consist of units of {size}")
    end = len(collation_key)
    while end and collation_key[end - size : end] == space:
        end -= size
    if space not in collation_key[:end]:
        return collation_key[:end] + space + _END
    written = bytearray()
    at = 0
    while at < end:
        run_start = at
        while collation_key[at : at + size] == space:
            at += size
        unit = collation_key[at : at + size]
        run = (at - run_start) // size
        if run and unit < space:
            written += space + _LESS + run.to_bytes(_RUN_BYTES, "big")
        elif run:
            written += space + _GREATER + (_MAX_RUN_LENGTH - run).to_bytes(_RUN_BYTES, "big")
        written += unit
        at += size
    return bytes(written) + space + _END


class CollationKeys:
    """Encoded keys of strings, computed by the server. Caches the CACHED_VALUES that were used last.

    `query` runs one statement and returns its rows. `levels_apart`: True on MariaDB, see LEVELS.
    """

    def __init__(self, query: Callable[[str], Sequence[Sequence[Any]]], *, levels_apart: bool) -> None:
        self._query = query
        self._levels = tuple(f" LEVEL {level}" for level in LEVELS) if levels_apart else ("",)
        self._collations: dict[str, Collation] = {}
        self._encoded_keys: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def collation(self, column: KeyColumn) -> Collation:
        known = self._collations.get(column.collation)
        if known is None:
            known = self._collations[column.collation] = self._examine(column)
        return known

    def encoded_keys(self, column: KeyColumn, values: Sequence[str]) -> list[bytes]:
        """The encoded keys of distinct decoded values, in the same order."""
        name = column.collation
        missing = [value for value in values if (name, value) not in self._encoded_keys]
        for first in range(0, len(missing), VALUES_A_QUERY):
            self._ask(column, missing[first : first + VALUES_A_QUERY])
        found = []
        for value in values:
            self._encoded_keys.move_to_end((name, value))
            found.append(self._encoded_keys[name, value])
        while len(self._encoded_keys) > CACHED_VALUES:
            self._encoded_keys.popitem(last=False)
        return found

    def _ask(self, column: KeyColumn, values: Sequence[str]) -> None:
        collation = self.collation(column)
        encode = encoder(column.charset)
        if encode is None:
            raise ValueError(f"{column.charset} has no exact encoder")
        literals = [_collated(column, encode(value).hex()) for value in values]
        selected = ", ".join(sql for literal in literals for sql in collation.sql(literal))
        (collation_keys,) = self._query(f"SELECT {selected}")
        count = len(collation.levels)
        for i, value in enumerate(values):
            self._encoded_keys[column.collation, value] = collation.encoded_key(
                collation_keys[i * count : (i + 1) * count]
            )

    def _examine(self, column: KeyColumn) -> Collation:
        encode = encoder(column.charset)
        if encode is None:
            raise ValueError(f"{column.charset} has no exact encoder")
        letter, letter_space, space = (_collated(column, encode(text).hex()) for text in ("a", "a ", " "))
        levels = [f"WEIGHT_STRING({text}{level})" for level in self._levels for text in (letter_space, space)]
        ((pads, *collation_keys),) = self._query(f"SELECT {letter} = {letter_space}, {', '.join(levels)}")
        kept = len(self._levels) if len(set(collation_keys[::2])) > 1 else 1
        spaces = tuple(collation_keys[1::2][:kept])
        if pads and any(
            len(collation_key) != 2 * len(space)
            for collation_key, space in zip(collation_keys[::2], spaces, strict=False)
        ):
            raise SourceNotUsableError(
                f"Tidemark does not know how the server's collation {column.collation} compares strings.",
                "Name another split key (source.keys), and report this.",
            )
        return Collation(self._levels[:kept] if kept > 1 else ("",), spaces if pads else (b"",) * kept)


def _collated(column: KeyColumn, hexadecimal: str) -> str:
    return f"{text_literal(column.charset, hexadecimal)} COLLATE {column.collation}"
