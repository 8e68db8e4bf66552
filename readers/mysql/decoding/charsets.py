"""The servers' character sets: decodes a column's bytes with the server's own mapping.

The differences between Python's codecs and the servers' mappings are listed here and in charset_tables.py. A code that
the server can't convert (it shows `?`) is an error here.
"""

import functools
import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tidemark.readers.mysql.decoding.charset_tables import (
    BIG5_ETEN,
    EUC_IBM_FIRST,
    EUC_IBM_SECOND,
    EUC_NEC_FIRST,
    EUC_NEC_SECOND,
    EUC_NEC_THIRD,
    SWE7,
    UPPER_HALVES,
)

MAX_CHARACTER_BYTES = {
    **dict.fromkeys(("ascii", "swe7", *UPPER_HALVES), 1),
    **dict.fromkeys(("big5", "cp932", "euckr", "gb2312", "gbk", "sjis", "ucs2"), 2),
    **dict.fromkeys(("eucjpms", "ujis", "utf8", "utf8mb3"), 3),
    **dict.fromkeys(("gb18030", "utf16", "utf16le", "utf32", "utf8mb4"), 4),
}
"""The supported character sets, with the factor by which the server multiplies a declared length."""

UTF8 = frozenset({"utf8mb4", "utf8mb3", "utf8"})
_UNICODE = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}
_NO_CHARACTER = "\ufffd"


def decode_text(charset: str, value: bytes) -> str:
    """Decodes `value`. Raises UnicodeDecodeError if the bytes are invalid in `charset`, KeyError for an unknown charset."""
    if charset in UTF8:
        return value.decode("utf-8")
    if charset in _UNICODE:
        text = value.decode(_UNICODE[charset])
        if charset == "ucs2" and any(character > "\uffff" for character in text):
            raise UnicodeDecodeError(charset, value, 0, len(value), "surrogates, which ucs2 does not have")
        return text
    if charset in _MULTI_BYTE:
        characters = _characters(charset)
        return "".join([characters[code] for code in _MULTI_BYTE[charset][1].findall(value)])
    characters_of_bytes = _single_byte_characters(charset)
    text = "".join([characters_of_bytes[byte] for byte in value])
    if _NO_CHARACTER in text:
        raise UnicodeDecodeError(charset, value, 0, len(value), "a byte that the character set does not use")
    return text


def escaped_text(charset: str, value: bytes) -> str:
    """Returns a text for bytes of which some are invalid in `charset`. Each of those is written as \\xNN, and a backslash as
    two."""
    if charset in UTF8:
        return value.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    return "".join(_escaped_code(charset, code) for code in _codes(charset).findall(value))


def _codes(charset: str) -> re.Pattern[bytes]:
    """A pattern for single codes; a byte that begins none is alone."""
    if charset in _MULTI_BYTE:
        return _MULTI_BYTE[charset][1]
    units = {"ucs2": b"..", "utf16": _UTF16_BE, "utf16le": _UTF16_LE, "utf32": b"...."}.get(charset, b".")
    return re.compile(units + b"|.", re.S)


_UTF16_BE = b"[\xd8-\xdb].[\xdc-\xdf].|.."
_UTF16_LE = b".[\xd8-\xdb].[\xdc-\xdf]|.."


def _escaped_code(charset: str, code: bytes) -> str:
    try:
        return decode_text(charset, code).replace("\\", "\\\\")
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in code)


@functools.cache
def single_byte_table(charset: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]] | None:
    """The UTF-8 of each byte of a single-byte charset: lengths uint8[256] (0: no character) and bytes uint8[256, 4]. None for
    other charsets."""
    if MAX_CHARACTER_BYTES[charset] != 1:
        return None
    width = np.zeros(256, np.uint8)
    utf8 = np.zeros((256, 4), np.uint8)
    for byte, character in enumerate(_single_byte_characters(charset)):
        if character != _NO_CHARACTER:
            encoded = character.encode()
            width[byte] = len(encoded)
            utf8[byte, : len(encoded)] = list(encoded)
    return width, utf8


@functools.cache
def _single_byte_characters(charset: str) -> str:
    if charset == "swe7":
        return "".join(SWE7.get(byte, chr(byte)) for byte in range(128)) + _NO_CHARACTER * 128
    upper = _NO_CHARACTER * 128 if charset == "ascii" else UPPER_HALVES[charset]
    return "".join(map(chr, range(128))) + upper


# Python's codec, and a pattern for codes: whole codes, runs of ASCII, else single bytes, which the codec refuses.
_MULTI_BYTE = {
    charset: (codec, re.compile(rb"[\x00-\x7f]+|" + codes + rb"|.", re.S))
    for charset, codec, codes in (
        ("big5", "big5", rb"[\xa1-\xf9]."),
        ("cp932", "cp932", rb"[\x81-\x9f\xe0-\xfc]."),
        ("euckr", "cp949", rb"[\x81-\xfe]."),
        ("gb2312", "gb2312", rb"[\xa1-\xf7]."),
        ("gbk", "gbk", rb"[\x81-\xfe]."),
        ("gb18030", "gb18030", rb"[\x81-\xfe][0-9]..|[\x81-\xfe]."),
        ("sjis", "shift_jis", rb"[\x81-\x9f\xe0-\xfc]."),
        ("ujis", "euc_jp", rb"\x8f..|[\x8e\xa1-\xfe]."),
        ("eucjpms", "euc_jp", rb"\x8f..|[\x8e\xa1-\xfe]."),
    )
}


class _Characters(dict[bytes, str]):
    """Maps codes to characters. Filled on demand."""

    def __init__(self, charset: str) -> None:
        super().__init__(_exceptions(charset))
        self.codec = _MULTI_BYTE[charset][0]
        self.charset = charset

    def __missing__(self, code: bytes) -> str:
        text = code.decode(self.codec)
        if len(text) == 1:  # a run of ASCII is not cached: there are too many
            self[code] = text
        return text

    def __getitem__(self, code: bytes) -> str:
        text = super().__getitem__(code)
        if text == _NO_CHARACTER:
            raise UnicodeDecodeError(self.charset, code, 0, len(code), "a code without a character")
        return text


@functools.cache
def _characters(charset: str) -> _Characters:
    return _Characters(charset)


def _exceptions(charset: str) -> Iterator[tuple[bytes, str]]:
    """The codes that the servers map differently from Python's codec."""
    match charset:
        case "big5":
            for code in ("a15a", "a1c3", "a1c5", "a1fe", "a240", "a2cc", "a2ce"):
                yield bytes.fromhex(code), _NO_CHARACTER
            yield from _run("f9d6", BIG5_ETEN)
        case "sjis":
            yield b"\x81\x5f", "\\"
        case "gb18030":
            yield b"\xa8\xbc", "\u1e3f"
            yield b"\x81\x35\xf4\x37", "\ue7c7"
        case "ujis":
            yield b"\xa1\xc0", "\\"
            yield from _private_use()
        case "eucjpms":
            for first, characters in (
                ("a1c1", "\uff5e\u2225"),
                ("a1dd", "\uff0d"),
                ("a1f1", "\uffe0\uffe1"),
                ("a2cc", "\uffe2"),
                ("ada1", EUC_NEC_FIRST),
                ("adc0", EUC_NEC_SECOND),
                ("addf", EUC_NEC_THIRD),
                ("8fa2b7", "\uff5e"),
                ("8fa2c3", "\uffe4"),
                ("8ff3f3", EUC_IBM_FIRST),
                ("8ff4a1", EUC_IBM_SECOND),
            ):
                yield from _run(first, characters)
            yield from _private_use()


def _run(first: str, characters: str) -> Iterator[tuple[bytes, str]]:
    start = int(first, 16)
    for i, character in enumerate(characters):
        yield (start + i).to_bytes(len(first) // 2, "big"), character


def _private_use() -> Iterator[tuple[bytes, str]]:
    """The user-defined rows of EUC: ten of 94 codes in each of two planes, from U+E000."""
    character = 0xE000
    for prefix in (b"", b"\x8f"):
        for row in range(0xF5, 0xFF):
            for cell in range(0xA1, 0xFF):
                yield prefix + bytes((row, cell)), chr(character)
                character += 1
