"""Encodes text in a column's own character set: the exact inverse of `charsets.decode_text`."""

import functools
from collections.abc import Callable

from tidemark.readers.mysql.decoding.charsets import MAX_CHARACTER_BYTES
from tidemark.readers.mysql.decoding.usual_codes import characters_and_codes

Encoder = Callable[[str], bytes]

_UNICODE_CODECS = {
    "ascii": "ascii",
    "utf8": "utf-8",
    "utf8mb3": "utf-8",
    "utf8mb4": "utf-8",
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
}
_MAX_LISTED = 3
"""The maximum bytes of a character for which all characters can be listed. gb18030 has more, and on the servers it is not a
plain encoding of Unicode."""


@functools.cache
def encoder(charset: str) -> Encoder | None:
    """The encoder of a character set. None if two byte strings decode to the same text, or if this is unknown.

    Encoders raise KeyError or UnicodeEncodeError for text that the character set does not have.
    """
    codec = _UNICODE_CODECS.get(charset)
    if codec is not None:
        return functools.partial(_encode, codec)
    if MAX_CHARACTER_BYTES[charset] > _MAX_LISTED:
        return None
    table: dict[str, bytes] = {}
    for character, encoded in characters_and_codes(charset):
        if table.setdefault(character, encoded) != encoded:
            return None
    return functools.partial(_look_up, table)


def _encode(codec: str, text: str) -> bytes:
    return text.encode(codec)


def _look_up(table: dict[str, bytes], text: str) -> bytes:
    return b"".join(map(table.__getitem__, text))
