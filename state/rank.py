"""Ranks: bytes whose lexicographic order is a key's order on the server.

Every part of a composite key is encoded so that no encoding is a prefix of another, then they are joined.
Integers take eight bytes, big-endian, the sign bit flipped; byte strings (collation weights, binary values) are
escaped (00 → 00 FF) and closed by 00 00, as in FoundationDB's tuple layer.
https://github.com/apple/foundationdb/blob/main/design/tuple.md
"""

from collections.abc import Iterable

_SIGN = 1 << 63


def integer_rank(value: int, *, unsigned: bool) -> bytes:
    """Raises OverflowError for a value beyond 64 bits."""
    return (value if unsigned else value + _SIGN).to_bytes(8, "big")


def bytes_rank(value: bytes) -> bytes:
    return value.replace(b"\0", b"\0\xff") + b"\0\0"


def composite_rank(parts: Iterable[bytes]) -> bytes:
    return b"".join(parts)
