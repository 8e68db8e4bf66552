"""The shared parts of both oracles: reading bytes, and canonical values from their parts."""

import struct
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

from tidemark.readers.mysql.schema.types import SourceType
from tidemark.state.table import Column

CODECS = {
    "utf8mb4": "utf-8",
    "utf8mb3": "utf-8",
    "ascii": "ascii",
    "koi8r": "koi8-r",
    "gbk": "gbk",
}


class RefusedError(Exception):
    """The bytes do not have the form of the type, or their value can't be carried."""


@dataclass
class Reader:
    data: bytes
    at: int = 0

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise RefusedError
        self.at += size
        return self.data[self.at - size : self.at]

    def little(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def big(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")


def fitting(value: int, bits: int) -> int:
    """The value in the signed integer that the column travels in."""
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise RefusedError
    return value


def float_of(source: SourceType, reader: Reader) -> float:
    form, size = ("<f", 4) if source.base == "float" else ("<d", 8)
    value: float = struct.unpack(form, reader.take(size))[0]
    return value


def bits_of(value: int, bits: int) -> int | Decimal:
    if value >> bits:
        raise RefusedError
    return Decimal(value) if bits == 64 else value


def date_of(year: int, month: int, day: int) -> date | None:
    if year > 9999 or month > 12 or day > 31:
        raise RefusedError
    if 0 in {year, month, day}:
        return None
    try:
        return date(year, month, day)
    except ValueError:
        raise RefusedError from None


def datetime_of(day: date | None, hour: int, minute: int, second: int, micros: int) -> datetime | None:
    if hour > 23 or minute > 59 or second > 59 or micros > 999_999:
        raise RefusedError
    return None if day is None else datetime(day.year, day.month, day.day, hour, minute, second, micros)


def time_parts(text: str) -> tuple[int, int, int]:
    """(sign, hour << 12 | minute << 6 | second, microseconds)"""
    clock, _, fraction = text.removeprefix("-").partition(".")
    hour, minute, second = map(int, clock.split(":"))
    return -1 if text.startswith("-") else 1, hour << 12 | minute << 6 | second, int(fraction.ljust(6, "0") or 0)


def time_of(negative: bool, hour: int, minute: int, second: int, micros: int, source: SourceType) -> str:
    if hour > 838 or minute > 59 or second > 59 or micros > 999_999:
        raise RefusedError
    minus = "-" if negative and (hour or minute or second or micros) else ""
    fraction = f".{micros:06d}"[: digits(source) + 1] if digits(source) else ""
    return f"{minus}{hour:02d}:{minute:02d}:{second:02d}{fraction}"


def vector_of(content: bytes) -> list[float]:
    if len(content) % 4:
        raise RefusedError
    return list(struct.unpack(f"<{len(content) // 4}f", content))


def text_of(content: bytes, column: Column, charset: str | None = None) -> str | bytes:
    charset = charset or column.charset
    if charset is None:
        return content
    try:
        return content.decode(CODECS[charset])
    except UnicodeDecodeError:
        raise RefusedError from None


def digits(source: SourceType) -> int:
    return source.numbers[0] if source.numbers else 0
