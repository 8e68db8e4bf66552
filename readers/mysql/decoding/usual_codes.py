"""Characters that have several codes in their charset, and which of these the server itself writes.

Four Japanese charsets and one Armenian one have them. Two keys that differ by such codes only are one text in every copy.
"""

import functools
from collections.abc import Iterator

from tidemark.readers.mysql.decoding.charsets import MAX_CHARACTER_BYTES, decode_text

_SINGLE_SHIFT_THREE = 0x8F
"""The first byte of a three-byte character in EUC."""
_NEC_SELECTED = (b"\xed", b"\xee")
"""The first bytes of IBM's extensions where NEC put them. The servers write the codes of IBM, or of JIS if it has one."""
_DOUBLED = frozenset({"armscii8", "cp932", "eucjpms", "sjis", "ujis"})


def has_unusual_code(charset: str, value: bytes, text: str) -> bool:
    """Returns whether `value`, which decodes to `text`, is another code of it than the server's own."""
    return charset in _DOUBLED and b"".join(map(_usual_codes(charset).__getitem__, text)) != value


def may_have_unusual_codes(charset: str) -> bool:
    """Returns whether some characters of the charset have several codes."""
    return charset in _DOUBLED


@functools.cache
def _usual_codes(charset: str) -> dict[str, bytes]:
    """Returns the code that the server writes for each character (`CONVERT(… USING charset)`)."""
    usual: dict[str, bytes] = {}
    for character, code in characters_and_codes(charset):
        usual[character] = min(usual.get(character, code), code, key=lambda code: _rank(charset, code))
    return usual


def _rank(charset: str, code: bytes) -> tuple[bool, bytes]:
    match charset:
        case "cp932":
            return code[:1] in _NEC_SELECTED, code
        case "sjis":
            return len(code) == 1 and code == b"\\", code
        case _:
            return code[0] == _SINGLE_SHIFT_THREE and len(code) == MAX_CHARACTER_BYTES["ujis"], code


def characters_and_codes(charset: str) -> Iterator[tuple[str, bytes]]:
    """Yields every character that `decode_text` knows, with its code: several times if it has several codes. For
    charsets with at most three bytes a character."""
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
