"""Ranges of a source's key in a copy that has the same order of keys (state/key_order.py)."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

from typing_extensions import assert_never

from tidemark.state.errors import CheckpointError
from tidemark.state.integer_range import IntegerRange, range_condition
from tidemark.state.key_order import BYTES, INTEGERS, SourceKind
from tidemark.state.remedies import RESTORE_CHECKPOINT
from tidemark.state.split import Bound, KeyRange


@dataclass(frozen=True, slots=True)
class EncodedText:
    """A text as the source has it: its bytes in a character set, named as in MySQL."""

    charset: str
    data: bytes


KeyValue: TypeAlias = int | Decimal | bytes | str | EncodedText
"""A str is a date or a time, without quotes."""

_INTEGER = re.compile(r"-?\d+")
_NUMBER = re.compile(r"-?\d+\.\d+")
_HEXADECIMAL = re.compile(r"(?:_([a-z0-9]+) )?x'((?:[0-9A-Fa-f]{2})*)'")
_TIME = re.compile(r"'([0-9 :.-]+)'")


@dataclass(frozen=True, slots=True)
class CopiedRange:
    """The keys in [start, end) of columns, compared one column after the other; None is unbounded. `orders`: those of the
    columns in the source; None for one that is not certain any more."""

    columns: tuple[str, ...]
    orders: tuple[str | None, ...]
    start: tuple[KeyValue, ...] | None
    end: tuple[KeyValue, ...] | None

    @classmethod
    def of(
        cls, columns: tuple[str, ...], orders: tuple[str | None, ...], key_range: KeyRange, kind: SourceKind
    ) -> "CopiedRange":
        """`kind`: of the source. Raises CheckpointError for a bound that is no key."""
        start, end = (
            None if bound is None else _values(bound, orders, kind) for bound in (key_range.start, key_range.end)
        )
        return cls(columns, orders, start, end)

    @classmethod
    def of_integers(cls, keys: IntegerRange) -> "CopiedRange":
        return cls(keys.columns, (INTEGERS,) * len(keys.columns), keys.start, keys.end)

    @property
    def integers(self) -> IntegerRange | None:
        """The range as one of integers, None if it is none."""
        if any(order != INTEGERS for order in self.orders):
            return None
        start, end = (
            None if values is None else tuple(value for value in values if isinstance(value, int))
            for values in (self.start, self.end)
        )
        return IntegerRange(self.columns, start, end)

    def condition(
        self,
        expression_of: Callable[[str], str],
        literal_of: Callable[[KeyValue], str],
        *,
        by_rows: bool = False,
    ) -> str:
        """As `IntegerRange.condition`. `literal_of`: of a value, compared by the column's own order."""
        start, end = (
            None if values is None else [literal_of(value) for value in values] for values in (self.start, self.end)
        )
        return range_condition([expression_of(name) for name in self.columns], start, end, by_rows=by_rows)


def _values(bound: Bound, orders: Sequence[str | None], kind: SourceKind) -> tuple[KeyValue, ...]:
    try:
        return tuple(_value(text, order, kind) for text, order in zip(bound.literals, orders, strict=True))
    except ValueError as exc:
        raise CheckpointError(
            f"The checkpoint has a split boundary that is no key: {exc}.",
            f"Find out who changed the checkpoint's files. {RESTORE_CHECKPOINT}",
        ) from exc


def _value(text: str, order: str | None, kind: SourceKind) -> KeyValue:
    match kind:
        case "mysql" | "mariadb":
            return _mysql_value(text, order)
        case "postgresql":
            return _postgres_value(text, order)
        case _:
            assert_never(kind)


def _postgres_value(text: str, order: str | None) -> KeyValue:
    if order == INTEGERS:
        return int(text)
    if order == BYTES:
        return bytes.fromhex(text.removeprefix("\\x"))
    return EncodedText("utf8mb4", text.encode())


def _mysql_value(text: str, order: str | None) -> KeyValue:
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return Decimal(text)
    if (found := _HEXADECIMAL.fullmatch(text)) is not None:
        data = bytes.fromhex(found[2])
        return data if found[1] is None else EncodedText(found[1], data)
    if (found := _TIME.fullmatch(text)) is not None:
        return found[1]
    raise ValueError("a text that is no literal")
