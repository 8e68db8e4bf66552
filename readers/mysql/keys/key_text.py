"""Encodes text in a column's own character set: the exact inverse of `charsets.decode_text`."""

import functools
from collections.abc import Callable, Iterator

from tidemark.readers.mysql.decoding.charsets import MAX_CHARACTER_BYTES, decode_text

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

_SINGLE_SHIFT_THREE = 0x8F
"""The first byte of a three-byte character in EUC."""


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
    for character, encoded in _characters(charset):
        if table.setdefault(character, encoded) != encoded:
            return None
    return functools.partial(_look_up, table)


def _encode(codec: str, text: str) -> bytes:
    return text.encode(codec)


def _look_up(table: dict[str, bytes], text: str) -> bytes:
    return b"".join(map(table.__getitem__, text))


def _characters(charset: str) -> Iterator[tuple[str, bytes]]:
    """Every character that `decode_text` knows, with its bytes."""
    single = {}
    for byte in range(256):
        try:
            single[byte] = decode_text(charset, bytes([byte]))
        except UnicodeDecodeError:
            continue
    yield from ((text, bytes([byte])) for byte, text in single.items())
    greatest = MAX_CHARACTER_BYTES[charset]
    leads = [bytes([byte]) for byte in range(256) if byte not in single] if greatest >= 2 else []
    if greatest >= 3:
        leads += [bytes([_SINGLE_SHIFT_THREE, byte]) for byte in range(0xA1, 0xFF)]
    for lead in leads:
        for byte in range(256):
            encoded = lead + bytes([byte])
            try:
                text = decode_text(charset, encoded)
            except UnicodeDecodeError:
                continue
            if len(text) == 1:
                yield text, encoded
