"""The interface between the log reader and the log."""

from collections.abc import Collection, Mapping
from typing import Protocol

from tidemark.state.position import WalPosition

LET_REPLICATE = "ALTER ROLE <role> REPLICATION. The page Permissions of Tidemark's documentation has all grants."


class ConnectionLostError(Exception):
    """The stream broke. A new connection may help."""


class ByteStream(Protocol):
    def receive(self, into: memoryview) -> int:
        """Receives at least one byte into `into`, or returns 0 at the end. Raises ConnectionLostError, TidemarkError."""

    def close(self) -> None:
        """Ends the stream at any point, and closes its connection."""


class LogSource(Protocol):
    def open(self, start: WalPosition, stop: WalPosition) -> ByteStream:
        """Streams the log from a position at or before `start` up to `stop`, in COPY's binary form: one column, the
        messages of pgoutput. Repeated calls give the same messages. Raises LogPositionLostError if the server no longer
        has `start`, or if it is another server."""

    def type_names(self, types: Collection[tuple[int, int]]) -> Mapping[tuple[int, int], str]:
        """Returns the server's text of types, given by oid and modifier: format_type() under search_path pg_catalog. The
        answer may hold more types."""
