"""Texts back to bytes in a column's own character set, exactly undoing `charsets.decode_text`."""

import functools
from collections.abc import Callable, Iterator

from readers.mysql.charsets import GREATEST_CHARACTER_BYTES, decode_text

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
_GREATEST_LISTED = 3
"""Bytes of a character. More can't be listed: gb18030, which is no plain encoding of Unicode on the servers."""

_SINGLE_SHIFT_THREE = 0x8F
"""Begins a character of three bytes in EUC."""


@functools.cache
def encoder(charset: str) -> Encoder | None:
    """None where two byte strings are the same text, so that the bytes can't be told from it, or where that is not known.

    Encoders raise KeyError or UnicodeEncodeError for a text that the character set does not have.
    """
    codec = _UNICODE_CODECS.get(charset)
    if codec is not None:
        return functools.partial(_encode, codec)
    if GREATEST_CHARACTER_BYTES[charset] > _GREATEST_LISTED:
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
    """Every character, as decode_text knows it."""
    single = {}
    for byte in range(256):
        try:
            single[byte] = decode_text(charset, bytes([byte]))
        except UnicodeDecodeError:
            continue
    yield from ((text, bytes([byte])) for byte, text in single.items())
    greatest = GREATEST_CHARACTER_BYTES[charset]
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
