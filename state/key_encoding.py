"""Key encodings: bytes whose lexicographic order is the server's order of keys.

Each part of a composite key is encoded so that no encoding is a prefix of another; the encodings are then concatenated.
Integers are eight bytes, big-endian, with the sign bit flipped. Byte strings (collation keys, binary values) are escaped
(00 → 00 FF) and end with 00 00, as in FoundationDB's tuple layer.
https://github.com/apple/foundationdb/blob/main/design/tuple.md
"""

from collections.abc import Iterable

_SIGN = 1 << 63


def encode_integer(value: int, *, unsigned: bool) -> bytes:
    """Raises OverflowError for a value beyond 64 bits."""
    return (value if unsigned else value + _SIGN).to_bytes(8, "big")


def encode_bytes(value: bytes) -> bytes:
    return value.replace(b"\0", b"\0\xff") + b"\0\0"


def encode_composite(parts: Iterable[bytes]) -> bytes:
    return b"".join(parts)
