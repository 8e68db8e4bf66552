"""Binary JSON as the server writes it, and its text, both in plain Python: for documents of dicts, lists, strings, integers,
doubles, booleans and None. Keys are ordered by length, then by bytes."""

import struct
from typing import Any

_LITERALS = {None: 0, True: 1, False: 2}


def write_document(value: Any) -> bytes:
    kind, content = _value(value)
    return bytes((kind,)) + content


def _value(value: Any) -> tuple[int, bytes]:
    """(type, bytes)"""
    match value:
        case None | True | False:
            return 4, bytes((_LITERALS[value],))
        case int():
            for kind, form, least, greatest in (
                (5, "<h", -(1 << 15), 1 << 15),
                (6, "<H", 0, 1 << 16),
                (7, "<i", -(1 << 31), 1 << 31),
                (8, "<I", 0, 1 << 32),
                (9, "<q", -(1 << 63), 1 << 63),
                (10, "<Q", 0, 1 << 64),
            ):
                if least <= value < greatest:
                    return kind, struct.pack(form, value)
            raise ValueError(value)
        case float():
            return 11, struct.pack("<d", value)
        case str():
            encoded = value.encode()
            return 12, _size(len(encoded)) + encoded
        case dict() | list():
            is_object = isinstance(value, dict)
            for large in (False, True):
                content = _container(value, large=large)
                if large or len(content) < 1 << 16:
                    return (0 if is_object else 2) + large, content
    raise TypeError(value)


def _size(size: int) -> bytes:
    out = b""
    while size > 127:
        out += bytes((size & 127 | 128,))
        size >>= 7
    return out + bytes((size,))


def _container(value: dict[str, Any] | list[Any], *, large: bool) -> bytes:
    width = 4 if large else 2
    keys: list[bytes] = []
    items: list[Any] = list(value)
    if isinstance(value, dict):
        ordered = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        keys, items = [key.encode() for key in ordered], [value[key] for key in ordered]
    at = 2 * width + len(keys) * (width + 2) + len(items) * (width + 1)
    key_entries = b""
    for key in keys:
        key_entries += _number(at, width) + len(key).to_bytes(2, "little")
        at += len(key)
    entries, contents = b"", b""
    for item in items:
        kind, content = _value(item)
        if kind in ({4, 5, 6, 7, 8} if large else {4, 5, 6}):
            entries += bytes((kind,)) + content.ljust(width, b"\0")
        else:
            entries += bytes((kind,)) + _number(at, width)
            contents += content
            at += len(content)
    return _number(len(items), width) + _number(at, width) + key_entries + entries + b"".join(keys) + contents


def _number(value: int, width: int) -> bytes:
    """A number in two or four bytes, cut off if it does not fit: then the container is written again with four."""
    return (value % (1 << 8 * width)).to_bytes(width, "little")
