"""Times as they are printed and stored: in UTC, from microseconds since 1970."""

from datetime import datetime, timezone


def time_text(microseconds: int) -> str:
    """`2026-11-22 09:15:24`."""
    return _utc(microseconds).strftime("%Y-%m-%d %H:%M:%S")


def iso_time(microseconds: int) -> str:
    """`2026-11-22T09:15:24.120+00:00`."""
    return _utc(microseconds).isoformat(timespec="milliseconds")


def _utc(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6, timezone.utc)
