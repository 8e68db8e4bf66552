"""The interface between the log reader and the log."""

from collections.abc import Collection, Mapping
from typing import Protocol

from tidemark.readers.postgres.connect import quote_identifier
from tidemark.state.errors import LogPositionLostError
from tidemark.state.position import WalPosition


def let_replicate(role: str) -> str:
    """Returns the remedy for a role that may not use replication slots."""
    quoted = quote_identifier(role)
    return f"ALTER ROLE {quoted} REPLICATION (on Amazon RDS: GRANT rds_replication TO {quoted})."


class ConnectionLostError(Exception):
    """The stream broke. A new connection may help. `lost`: the error to raise if it breaks so again and again, None if the
    source is out of reach then."""

    def __init__(self, text: str, lost: LogPositionLostError | None = None) -> None:
        super().__init__(text, lost)
        self.text, self.lost = text, lost

    def __str__(self) -> str:
        return self.text


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

    def type_names(self, types: Collection[tuple[int, int]], stop: WalPosition) -> Mapping[tuple[int, int], str]:
        """Returns the server's text of types, given by oid and modifier: format_type() under search_path pg_catalog. The
        answer may hold more types. The server's catalog has all that the log up to `stop` did."""
