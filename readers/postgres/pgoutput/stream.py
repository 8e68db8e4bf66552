"""The log as one stream of bytes: COPY of the slot's log up to a position. It does not advance the slot.

psycopg2 writes COPY's rows to a file, one call per row. They go through a BufferedWriter, so that Python is called once per
CHUNK_BYTES, in a separate thread, and wait in a queue of bounded length.
"""

import contextlib
import io
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

import psycopg2
import psycopg2.errors

from tidemark.readers.postgres.connect import (
    CORRECT,
    KEEP_MORE_LOG,
    Connection,
    error_code,
    error_text,
    is_removed_log,
    is_too_large,
    quote_identifier,
    quote_literal,
    removed_log,
)
from tidemark.readers.postgres.session import will_pass
from tidemark.readers.postgres.slot.log_source import ConnectionLostError, let_replicate
from tidemark.state.errors import LogPositionLostError, SourceNotUsableError, TidemarkError
from tidemark.state.position import WalPosition
from tidemark.state.remedies import START_OVER_NOW

CHUNK_BYTES = 1 << 20
WAITING_CHUNKS = 8

HEADER_BYTES = 19
SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""The signature, no flags, no header extension."""

_WATCH_CLIENT = "SET client_connection_check_interval = '2s'"
"""Lets the server stop decoding and free the slot when its client is gone."""
_OF_VALUES = ("22", "54")
"""Classes of errors: a character that UTF-8 lacks, a row that is too long."""
_IN_USE, _INVALIDATED, _MISSING, _DENIED = "55006", "55000", "42704", "42501"


def peek_query(slot: str, publication: str, stop: WalPosition, *, columns: str = "data") -> str:
    """Returns the query that reads the slot without advancing it. `columns`: among lsn, xid, data."""
    names = quote_identifier(publication)  # a list of identifiers, in one text
    return (
        f"SELECT {columns} FROM pg_catalog.pg_logical_slot_peek_binary_changes("
        f"{quote_literal(slot)}, '{stop}', NULL, 'proto_version', '1', 'publication_names', {quote_literal(names)})"
    )


class LogStream:
    """The result of `query` in COPY's binary form. Owns the connection. `verify` is called at the end of the data."""

    def __init__(self, connection: Connection, query: str, verify: Callable[[], object]) -> None:
        self._connection = connection
        self._sql = f"COPY ({query}) TO STDOUT (FORMAT binary)"
        self._verify = verify
        self._chunks: queue.Queue[bytes] = queue.Queue(WAITING_CHUNKS)
        self._chunk = memoryview(b"")
        self._error: BaseException | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._copy, name="log stream", daemon=True)
        self._thread.start()

    def receive(self, into: memoryview) -> int:
        """Receives at least one byte into `into`, or returns 0 at the end. Raises ConnectionLostError, TidemarkError."""
        if not self._chunk:
            self._chunk = memoryview(self._chunks.get())
            if not self._chunk:
                self._thread.join()
                if isinstance(self._error, psycopg2.Error):
                    raise meaning(self._error, self._connection) from self._error
                if self._error is not None:
                    raise self._error
                self._chunks.put(b"")
                return 0
        size = min(len(self._chunk), len(into))
        into[:size] = self._chunk[:size]
        self._chunk = self._chunk[size:]
        return size

    def close(self) -> None:
        """Ends the stream at any point, and closes its connection."""
        self._closed.set()
        if self._thread.is_alive() and not self._connection.closed:
            with contextlib.suppress(OSError), socket.socket(fileno=_duplicate(self._connection)) as server:
                server.shutdown(socket.SHUT_RDWR)  # wakes the thread, which nothing else can do in the middle of a COPY
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._chunks.get(timeout=0.05)
        self._connection.close()

    def _copy(self) -> None:
        try:
            with self._connection.cursor() as cursor, _buffered(_ChunkWriter(self)) as file:
                with contextlib.suppress(psycopg2.errors.InvalidParameterValue):  # the server does not run on Linux
                    cursor.execute(_WATCH_CLIENT)
                cursor.copy_expert(self._sql, file)
            self._verify()
        except BaseException as exc:  # noqa: BLE001  `receive` raises it
            self._error = exc
        finally:
            self._put(b"")

    def _put(self, chunk: bytes) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._chunks.put(chunk, timeout=1)
                return


class _ChunkWriter(io.RawIOBase):
    def __init__(self, stream: LogStream) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, chunk: Any, /) -> int:
        if self._stream._closed.is_set():
            raise ConnectionLostError("the stream was closed")
        self._stream._put(bytes(chunk))
        return len(chunk)


def _buffered(writer: _ChunkWriter) -> io.BufferedWriter:
    return io.BufferedWriter(writer, CHUNK_BYTES)


def _duplicate(connection: Connection) -> int:
    return socket.dup(connection.fileno())


def meaning(error: psycopg2.Error, connection: Connection) -> TidemarkError | ConnectionLostError:
    """Returns the error to raise for an error of a log query."""
    code, text = error_code(error), error_text(error)
    if is_removed_log(error):
        return ConnectionLostError(text, removed_log(error))
    if code == _IN_USE or will_pass(error, connection):
        return ConnectionLostError(text)
    if code == _INVALIDATED and "slot" in text:
        return LogPositionLostError(f"The source no longer has the log that the job needs: {text}.", KEEP_MORE_LOG)
    if code == _MISSING and "replication slot" in text:
        return LogPositionLostError(f"The source no longer has the job's slot: {text}.", START_OVER_NOW)
    if code == _MISSING:
        return LogPositionLostError(
            f"The publication did not exist when the log was written: {text}.",
            f"{START_OVER_NOW} Do not drop a publication that a job uses.",
        )
    if code == _DENIED:
        return SourceNotUsableError(f"The role may not read the log: {text}.", let_replicate(connection.info.user))
    if code is not None and (code.startswith(_OF_VALUES) or is_too_large(error)):
        return LogPositionLostError(
            f"The source can't show a value in its log, so nobody can read the log: {text}.",
            "Correct the value in the source. Otherwise its table is parked when its rows are read.",
        )
    return SourceNotUsableError(f"The source can't read its log: {text}.", CORRECT)
