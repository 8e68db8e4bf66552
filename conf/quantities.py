"""Reads sizes (`64MiB`), intervals (`30s`) and durations (`10m`) of the job file."""

import re
from dataclasses import dataclass
from fractions import Fraction

BYTES_PER_UNIT = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
SECONDS_PER_UNIT = {"ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600)}

SIZE_FORM = "a size like 64MiB or 1.5GB, or a number of bytes"
TRIGGER_FORM = "once, or an interval like 1s, 30s, 5m, 1h"
DURATION_FORM = "a duration like 90s, 10m, 1h, or 0"

_QUANTITY = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)")


@dataclass(frozen=True, slots=True)
class Once:
    """Read up to the end that the log has at the start of the run, then exit."""

    def __str__(self) -> str:
        return "once"


@dataclass(frozen=True, slots=True)
class Every:
    """Run until stopped, with an epoch every ``interval_seconds``."""

    interval_seconds: float

    def __str__(self) -> str:
        return _duration(self.interval_seconds)


Trigger = Once | Every


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time."""

    seconds: float

    def __str__(self) -> str:
        return _duration(self.seconds) if self.seconds else "0"


def parse_size_bytes(written: str | int) -> int:
    """Reads ``64MiB``, ``1.5 GB`` or ``1048576`` as bytes, at least one. Raises ValueError with what is allowed."""
    if isinstance(written, bool) or not isinstance(written, str | int):
        raise ValueError(f"must be {SIZE_FORM}")  # noqa: TRY004 - pydantic collects ValueErrors
    number, unit = (Fraction(written), "") if isinstance(written, int) else _split(written, SIZE_FORM)
    if unit not in BYTES_PER_UNIT:
        raise ValueError(f"must be {SIZE_FORM}. {_unit_hint(unit, [known for known in BYTES_PER_UNIT if known])}")
    size_bytes = number * BYTES_PER_UNIT[unit]
    if size_bytes.denominator != 1 or size_bytes < 1:
        raise ValueError("must be a whole number of bytes, at least 1")
    return int(size_bytes)


def format_size_bytes(size_bytes: int) -> str:
    """Returns the shortest form without a fraction that ``parse_size_bytes`` reads back."""
    for unit in ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "KB"):
        if size_bytes and size_bytes % BYTES_PER_UNIT[unit] == 0:
            return f"{size_bytes // BYTES_PER_UNIT[unit]}{unit}"
    return f"{size_bytes}B"


def parse_trigger(written: str) -> Trigger:
    """Reads ``once`` or an interval of at least a millisecond. Raises ValueError with what is allowed."""
    if not isinstance(written, str):
        hint = f". Write the unit: {written}s" if type(written) in (int, float) else ""
        raise ValueError(f"must be {TRIGGER_FORM}{hint}")  # noqa: TRY004 - pydantic collects ValueErrors
    if written == "once":
        return Once()
    number, unit = _split(written, TRIGGER_FORM)
    if unit not in SECONDS_PER_UNIT:
        raise ValueError(f"must be {TRIGGER_FORM}. {_unit_hint(unit, list(SECONDS_PER_UNIT))}")
    milliseconds = number * SECONDS_PER_UNIT[unit] * 1000
    if milliseconds.denominator != 1 or milliseconds < 1:
        raise ValueError("must be a whole number of milliseconds, at least 1")
    return Every(interval_seconds=int(milliseconds) / 1000)


def parse_duration(written: str | int) -> Duration:
    """Reads ``90s``, ``10m``, or 0. Raises ValueError with what is allowed."""
    if written in (0, "0") and not isinstance(written, bool):
        return Duration(0.0)
    if not isinstance(written, str):
        hint = f". Write the unit: {written}s" if type(written) in (int, float) else ""
        raise ValueError(f"must be {DURATION_FORM}{hint}")  # noqa: TRY004 - pydantic collects ValueErrors
    number, unit = _split(written, DURATION_FORM)
    if unit not in SECONDS_PER_UNIT:
        raise ValueError(f"must be {DURATION_FORM}. {_unit_hint(unit, list(SECONDS_PER_UNIT))}")
    milliseconds = number * SECONDS_PER_UNIT[unit] * 1000
    if milliseconds.denominator != 1:
        raise ValueError("must be a whole number of milliseconds")
    return Duration(int(milliseconds) / 1000)


def _duration(seconds: float) -> str:
    milliseconds = round(seconds * 1000)
    for unit in ("h", "m", "s"):
        in_unit, rest = divmod(milliseconds, int(SECONDS_PER_UNIT[unit] * 1000))
        if in_unit and not rest:
            return f"{in_unit}{unit}"
    return f"{milliseconds}ms"


def _split(written: str, form: str) -> tuple[Fraction, str]:
    match = _QUANTITY.fullmatch(written)
    if match is None:
        raise ValueError(f"must be {form}")
    return Fraction(match[1]), match[2]


def _unit_hint(unit: str, units: list[str]) -> str:
    if not unit:
        return f"Units: {', '.join(units)}"
    near = [known for known in units if known.lower() in (unit.lower(), unit.lower() + "ib", unit.lower() + "b")]
    meant = f"Did you mean '{near[-1]}'? " if near else ""
    return f"'{unit}' is not a unit. {meant}Units: {', '.join(units)}"
