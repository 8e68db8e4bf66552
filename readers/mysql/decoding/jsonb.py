"""Prints MySQL's binary JSON as the server does.

https://dev.mysql.com/doc/dev/mysql-server/latest/json__binary_8h.html; the text as Json_wrapper::to_string makes it.
"""

import base64
import math
import struct

from tidemark.readers.mysql.decoding.field_types import FieldType

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY = range(4)
_LITERAL, _INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(4, 13)
_OPAQUE = 15
_LITERALS = {0: "null", 1: "true", 2: "false"}
_NUMBERS = {_INT16: "<h", _UINT16: "<H", _INT32: "<i", _UINT32: "<I", _INT64: "<q", _UINT64: "<Q", _DOUBLE: "<d"}
_FIXED_DIGITS = 15
_BASE64_LINE = 76
MAX_DEPTH = 100  # the server's own limit
_ESCAPES = {
    **{code: f"\\u{code:04x}" for code in range(0x20)},
    **{ord(c): f"\\{e}" for c, e in (('"', '"'), ("\\", "\\"), ("\b", "b"), ("\f", "f"), ("\n", "n"), ("\r", "r"))},
    ord("\t"): "\\t",
}


def json_text(value: bytes) -> str:
    """The text of a document. Raises ValueError (UnicodeDecodeError is one) if the bytes are not a JSON document."""
    if not value:  # ALTER TABLE and INSERT IGNORE leave this in a NOT NULL column
        return "null"
    printer = _Printer(len(value))
    try:
        printer.value(value[0], value, 1, 0)
    except (IndexError, struct.error) as exc:
        raise ValueError(f"cut short: {exc}") from exc
    return "".join(printer.parts)


class _Printer:
    """`budget`: bytes of the document that are not yet used. Values and texts of a document do not overlap, so their count and
    lengths add up to less than its size. In a damaged document offsets may form a cycle."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.parts: list[str] = []

    def value(self, kind: int, data: bytes, at: int, depth: int) -> None:
        """Prints the value of type `kind` at data[at:]."""
        self._spend(1)
        match kind:
            case 0 | 1 | 2 | 3:
                self._container(kind, data[at:], depth + 1)
            case 4:
                self.parts.append(_literal(data[at]))
            case 12:
                start, size = _size(data, at)
                self._string(_slice(data, start, size))
            case 15:
                start, size = _size(data, at + 1)
                self._spend(size)
                self.parts.append(_opaque(data[at], _slice(data, start, size)))
            case 11:
                self.parts.append(double_text(struct.unpack_from("<d", data, at)[0]))
            case _ if kind in _NUMBERS:
                self.parts.append(str(struct.unpack_from(_NUMBERS[kind], data, at)[0]))
            case _:
                raise ValueError(f"JSON type {kind}")

    def _container(self, kind: int, data: bytes, depth: int) -> None:
        """Prints a container. Offsets count from its start. A value that fits into an offset field is stored in the field."""
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        large = kind in {_LARGE_OBJECT, _LARGE_ARRAY}
        is_object = kind in {_SMALL_OBJECT, _LARGE_OBJECT}
        width, number = (4, "<I") if large else (2, "<H")
        count, size = struct.unpack_from(number, data, 0)[0], struct.unpack_from(number, data, width)[0]
        data = _slice(data, 0, size)
        keys = 2 * width
        values = keys + (count * (width + 2) if is_object else 0)
        inlined = {_LITERAL, _INT16, _UINT16, _INT32, _UINT32} if large else {_LITERAL, _INT16, _UINT16}
        if values + count * (width + 1) > size:
            raise ValueError("more entries than room")
        self.parts.append("{" if is_object else "[")
        for i in range(count):
            if i:
                self.parts.append(", ")
            if is_object:
                entry = keys + i * (width + 2)
                start = struct.unpack_from(number, data, entry)[0]
                self._string(_slice(data, start, struct.unpack_from("<H", data, entry + width)[0]))
                self.parts.append(": ")
            entry = values + i * (width + 1)
            at = entry + 1 if data[entry] in inlined else struct.unpack_from(number, data, entry + 1)[0]
            self.value(data[entry], data, at, depth)
        self.parts.append("}" if is_object else "]")

    def _string(self, content: bytes) -> None:
        self._spend(len(content))
        self.parts.append(quoted(content.decode("utf-8")))

    def _spend(self, size: int) -> None:
        self.budget -= size
        if self.budget < 0:
            raise ValueError("values overlap")


def _slice(data: bytes, start: int, size: int) -> bytes:
    if start + size > len(data):
        raise ValueError("cut short")
    return data[start : start + size]


def _size(data: bytes, at: int) -> tuple[int, int]:
    """(start of the bytes, their count). The length has seven bits per byte, the lowest first."""
    size = 0
    for i in range(5):
        byte = data[at + i]
        size |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return at + i + 1, size
    raise ValueError("a length of more than five bytes")


def _literal(code: int) -> str:
    if code not in _LITERALS:
        raise ValueError(f"JSON literal {code}")
    return _LITERALS[code]


def quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def double_text(value: float) -> str:
    """The shortest digits that read back as `value`; with an exponent where there are fifteen zeros or more after the
    point, or more than fifteen digits before it and none after it. (my_gcvt in the server's dtoa.cc)"""
    if not math.isfinite(value):
        raise ValueError("a double that is not a number")
    minus = "-" if math.copysign(1, value) < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    if not exponent and whole != "0" and fraction != "0":
        return minus + mantissa
    point = len(whole) + int(exponent or 0)  # digits before the decimal point
    digits = (whole + fraction).strip("0") or "0"
    point -= len(whole + fraction) - len((whole + fraction).lstrip("0")) if digits != "0" else 0
    if point <= -_FIXED_DIGITS or (point > _FIXED_DIGITS and point >= len(digits)):
        tail = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{minus}{digits[0]}{tail}e{point - 1}"
    if point <= 0:
        return f"{minus}0.{'0' * -point}{digits}"
    return f"{minus}{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}"


def _opaque(kind: int, data: bytes) -> str:
    match kind:
        case FieldType.NEWDECIMAL:
            return packed_decimal_text(data[2:], data[0], data[1])
        case FieldType.DATE | FieldType.DATETIME | FieldType.TIMESTAMP | FieldType.TIME:
            return f'"{_temporal_text(kind, struct.unpack("<q", data)[0])}"'
        case _:
            encoded = base64.b64encode(data).decode()
            lines = [encoded[i : i + _BASE64_LINE] for i in range(0, len(encoded), _BASE64_LINE)]
            return quoted(f"base64:type{kind}:" + "\n".join(lines))


def packed_decimal_text(data: bytes, precision: int, scale: int) -> str:
    """The text of a packed decimal; decimals.py describes the form."""
    whole = precision - scale
    groups = [whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9]
    if len(data) != sum((digits + 1) // 2 if digits < 9 else 4 for digits in groups) or not data:
        raise ValueError("a decimal of another length")
    negative = data[0] < 0x80
    data = bytes([data[0] ^ 0x80]) + data[1:]
    if negative:
        data = bytes(byte ^ 0xFF for byte in data)
    text, at = "", 0
    for digits in groups:
        size = (digits + 1) // 2 if digits < 9 else 4
        if digits:
            text += f"{int.from_bytes(data[at : at + size], 'big'):0{digits}d}"
        at += size
    if len(text) != precision:
        raise ValueError("a decimal of more digits")
    number = text[:whole].lstrip("0") or "0"
    fraction = f".{text[whole:]}" if scale else ""
    return f"{'-' if negative else ''}{number}{fraction}"


def _temporal_text(kind: int, packed: int) -> str:
    sign = "-" if packed < 0 else ""
    packed = abs(packed)
    micros, clock, date = packed & 0xFFFFFF, packed >> 24 & 0x1FFFF, packed >> 41
    time = f"{clock >> 6 & 63:02d}:{clock & 63:02d}.{micros:06d}"
    if kind == FieldType.TIME:
        return f"{sign}{packed >> 36:02d}:{time}"
    day = f"{(date >> 5) // 13:04d}-{(date >> 5) % 13:02d}-{date & 31:02d}"
    return day if kind == FieldType.DATE else f"{day} {clock >> 12:02d}:{time}"
