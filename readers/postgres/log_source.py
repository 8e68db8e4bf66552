"""Where a log is read: what the reading asks of it."""

from collections.abc import Collection, Mapping
from typing import Protocol

from state.position import WalPosition

NEW_JOB = "Start the job anew with another checkpoint directory and an empty target."


class ConnectionLostError(Exception):
    """The stream broke; connecting again may help."""


class ByteStream(Protocol):
    def receive(self, into: memoryview) -> int:
        """At least one byte into `into`, or 0 at the end. Raises ConnectionLostError, TidemarkError."""

    def close(self) -> None:
        """Ends the stream, wherever it is, and its connection."""


class LogSource(Protocol):
    def open(self, start: WalPosition, stop: WalPosition) -> ByteStream:
        """What is in the log from a place at or before `start` up to `stop`, in COPY's binary form: one column, messages
        of pgoutput, always the same ones. Raises LogPositionLostError where the server no longer has `start`, or is
        another one."""

    def type_names(self, types: Collection[tuple[int, int]]) -> Mapping[tuple[int, int], str]:
        """The server's text of types, given by oid and modifier: format_type(), under a search_path of pg_catalog.
        The answer may have more than was asked for."""
