"""Reads SELECT results in the binary protocol from the connection's socket into record batches.

PyMySQL connects, authenticates and does TLS. It has no prepared statements; this module implements them.
https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_stmt_prepare.html
https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_stmt_execute_response.html
"""

import logging
import struct
from collections.abc import Generator
from typing import Any

import pyarrow as pa
import pymysql
from pymysql.constants import CLIENT, SERVER_STATUS

from tidemark.readers.bad_values import STOP, BadValueRule
from tidemark.readers.mysql.connect import Connection
from tidemark.readers.mysql.decoding.arrow import to_arrow
from tidemark.readers.mysql.decoding.columns import ColumnPlan
from tidemark.readers.mysql.schema.collations import charsets_by_collation
from tidemark.readers.mysql.snapshot.result_columns import (
    ResultColumn,
    check_result_columns,
    parse_result_column,
)
from tidemark.readers.mysql.snapshot.row_packets import RowPackets
from tidemark.state.errors import DamagedLogError

_COM_STMT_PREPARE = 0x16
_COM_STMT_EXECUTE = 0x17
_COM_STMT_CLOSE = 0x19

_REMEDY = "Connect to the server itself, not through a proxy."

_log = logging.getLogger(__name__)


def stream_select(
    connection: Connection,
    sql: str,
    plan: ColumnPlan,
    *,
    zero_dates_null: bool,
    rule: BadValueRule = STOP,
    buffer_bytes: int = 8 << 20,
) -> Generator[pa.RecordBatch]:
    """The rows of `sql`, a SELECT of the captured columns in order, in batches of their Arrow types.

    The server sends text in each column's own character set (character_set_results is NULL during the SELECT), and it is
    decoded like the log's. A conversion by the server would replace unknown characters by `?` without an error. A batch
    has what fits into `buffer_bytes`, and at least one row: the buffer grows for a larger row.

    The connection can be used again after the last batch, and after an error from the server (a pymysql error with its
    number). It is closed if the caller stops early or the bytes are damaged (DamagedLogError). Raises SchemaChangedError
    if the table no longer has the plan's columns.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET character_set_results = NULL")
    exchange = _Exchange(connection)
    try:
        charsets = charsets_by_collation(connection)
        check_result_columns(plan, exchange.prepare(sql), charsets)
        check_result_columns(plan, exchange.execute(), charsets)
        names = [output.name for output in plan.outputs]
        packets = RowPackets(connection, plan, buffer_bytes=buffer_bytes)
        for row_count in packets.batches():
            arrays = to_arrow(plan, packets.buf, packets.buffers, row_count, zero_dates_null=zero_dates_null, rule=rule)
            yield pa.RecordBatch.from_arrays(arrays, names=names)
        exchange.end(packets.last)
    finally:
        exchange.close()


class _Exchange:
    """One prepared statement on a connection. `in_step`: no response of the server is outstanding."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.raw: Any = connection  # PyMySQL publishes no types for its protocol level
        self.statement: int | None = None
        self.in_step = True

    def prepare(self, sql: str) -> list[ResultColumn]:
        self.in_step = False
        answer = self._ask(_COM_STMT_PREPARE, sql)
        _, self.statement, columns, parameters = struct.unpack_from("<BIHH", answer)
        for _ in range(parameters):
            self.raw._read_packet()
        if parameters:
            self._skip_end_of_columns()
        found = self._columns(columns)
        self.in_step = True
        return found

    def execute(self) -> list[ResultColumn]:
        """Executes the statement. Afterwards its rows are outstanding."""
        self.in_step = False
        answer = self._ask(_COM_STMT_EXECUTE, struct.pack("<IBI", self.statement, 0, 1))
        size = answer[0] if answer[0] < 251 else int.from_bytes(answer[1:3], "little")
        return self._columns(size)

    def end(self, last: bytes) -> None:
        """Ends the result. `last`: the packet after the rows, an end or an error."""
        self.in_step = True
        if last[0] == 0xFF:
            pymysql.err.raise_mysql_exception(last)
        warnings, status = _warnings_and_status(last, deprecate_eof=self._without_eof())
        if status & SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS:
            self.in_step = False
            raise DamagedLogError("A SELECT has a second result.", _REMEDY)
        if warnings:
            with self.connection.cursor() as cursor:
                cursor.execute("SHOW WARNINGS")
                # The text of a warning may contain values.
                codes = sorted({(str(row[0]), int(row[1])) for row in cursor.fetchall()})
            _log.warning("A SELECT had %d warnings: %s", warnings, ", ".join(f"{a} {b}" for a, b in codes))

    def close(self) -> None:
        if not self.in_step:
            self.raw._force_close()
        if not self.connection.open:
            return
        if self.statement is not None:
            self.raw._execute_command(_COM_STMT_CLOSE, struct.pack("<I", self.statement))
        with self.connection.cursor() as cursor:
            cursor.execute(f"SET character_set_results = {self.raw.charset}")

    def _ask(self, command: int, argument: str | bytes) -> bytes:
        self.raw._execute_command(command, argument)
        try:
            answer: bytes = self.raw._read_packet().get_all_data()
        except pymysql.MySQLError:
            self.in_step = self.connection.open  # PyMySQL closes connections that it can't use any more
            raise
        return answer

    def _columns(self, count: int) -> list[ResultColumn]:
        columns = [parse_result_column(self.raw._read_packet().get_all_data()) for _ in range(count)]
        if count:
            self._skip_end_of_columns()
        return columns

    def _skip_end_of_columns(self) -> None:
        if not self._without_eof():
            self.raw._read_packet()

    def _without_eof(self) -> bool:
        return bool(self.raw.client_flag & self.raw.server_capabilities & CLIENT.DEPRECATE_EOF)


def _warnings_and_status(packet: bytes, *, deprecate_eof: bool) -> tuple[int, int]:
    try:
        if not deprecate_eof:
            warnings, status = struct.unpack_from("<HH", packet, 1)
            return warnings, status
        at = 1
        for _ in range(2):  # affected rows, last insert id
            at += {252: 3, 253: 4, 254: 9}.get(packet[at], 1)
        status, warnings = struct.unpack_from("<HH", packet, at)
    except (IndexError, struct.error) as exc:
        raise DamagedLogError("The end of a result can't be read.", _REMEDY) from exc
    return warnings, status
