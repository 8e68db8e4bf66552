"""Turns errors of a MySQL or MariaDB target into SinkErrors: whether the work may be tried again, or what to do."""

import ssl

import pymysql
from pymysql.constants import CR, ER

from tidemark.conf.redaction import redact
from tidemark.conf.row_values import without_mysql_values
from tidemark.sinks.mirror.target import ACCEPTS_WRITES, GONE, OWN_COLUMNS
from tidemark.sinks.sink import ReadOnlyError, SinkBusyError
from tidemark.state.errors import RefusedRowsError, SinkError
from tidemark.state.remedies import ANOTHER_KEY

_TRANSIENT = frozenset(
    {
        CR.CR_CONN_HOST_ERROR,
        CR.CR_CONNECTION_ERROR,
        CR.CR_SERVER_GONE_ERROR,
        CR.CR_SERVER_LOST,
        ER.CON_COUNT_ERROR,
        ER.TOO_MANY_USER_CONNECTIONS,
        ER.USER_LIMIT_REACHED,
        ER.SERVER_SHUTDOWN,
        ER.NORMAL_SHUTDOWN,
        ER.NET_READ_ERROR,
        ER.NET_READ_INTERRUPTED,
        ER.NET_ERROR_ON_WRITE,
        ER.NET_WRITE_INTERRUPTED,
        ER.LOCK_DEADLOCK,
        ER.LOCK_WAIT_TIMEOUT,
        ER.CHECKREAD,  # MariaDB with innodb_snapshot_isolation: the record has changed since
        ER.QUERY_INTERRUPTED,
        ER.ABORTING_CONNECTION,
        ER.NEW_ABORTING_CONNECTION,
        1927,  # MariaDB: the connection was killed
        3168,  # the server is not available
        3169,  # the session was killed
        4031,  # disconnected because of inactivity
        3100,  # group replication: the member could not commit, and rolled back
        3101,  # group replication: the group rolled the transaction back
    }
)
_ABOUT_ROWS = frozenset(
    {
        ER.DUP_ENTRY,
        ER.DATA_TOO_LONG,
        ER.WARN_DATA_OUT_OF_RANGE,
        ER.WARN_DATA_TRUNCATED,
        ER.TRUNCATED_WRONG_VALUE_FOR_FIELD,
        ER.TRUNCATED_WRONG_VALUE,
        ER.BAD_NULL_ERROR,
        ER.NO_REFERENCED_ROW_2,
        ER.ROW_IS_REFERENCED_2,
        ER.TOO_BIG_ROWSIZE,
        ER.NO_DEFAULT_FOR_FIELD,
        1526,  # no partition of the copy is for the value
        1690,  # a number out of range in a generated column of the copy
        ER.DIVISION_BY_ZERO,  # the same
        ER.CANT_CREATE_GEOMETRY_OBJECT,
        1644,  # SIGNAL in a trigger of the copy
        3140,  # not JSON to this server
        3157,  # JSON that is nested too deeply
        3819,  # a CHECK of the target's table
        4025,  # the same on MariaDB
        # CREATE TABLE
        ER.TOO_MANY_FIELDS,
        ER.TOO_MANY_KEY_PARTS,
        ER.TOO_LONG_KEY,
        ER.TOO_BIG_FIELDLENGTH,
        ER.TOO_BIG_SCALE,
        ER.TOO_BIG_PRECISION,
        ER.DUP_FIELDNAME,
        ER.DUPLICATED_VALUE_IN_TYPE,
        ER.WRONG_COLUMN_NAME,
        ER.WRONG_TABLE_NAME,
        ER.INVALID_CHARACTER_STRING,
    }
)
"""The target does not take a row of ours: a value, or a constraint of its table. Or it can't have such a table."""
_READ_ONLY = frozenset({ER.OPTION_PREVENTS_STATEMENT, 1792, 1836})
_SSL_CONNECTION_ERROR = 2026
_CONNECTION_LOST = frozenset({0, 1927, 3169, 4031, CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST})

_NO_RIGHT = (
    "Give the account of sink.url the privileges: SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER and DROP on the target "
    "database; for copies of PostgreSQL tables CREATE TEMPORARY TABLES too."
)
_TOO_WIDE = "Exclude columns (source.columns), or create the table yourself with types that hold the same values."
_EXPIRED = (
    "Give the account another password, and write it in sink.url: ALTER USER <account> IDENTIFIED BY '<password>'. Then run "
    "the job again: it continues."
)
_FULL = "Give the target's server more space, then start the job again."

_REMEDIES: dict[int, str] = {
    ER.ACCESS_DENIED_ERROR: "Check user and password in sink.url, and that the account may log in from driver and executors. "
    "If the account or the server requires encryption, add sink.tls.",
    ER.DBACCESS_DENIED_ERROR: _NO_RIGHT,
    ER.TABLEACCESS_DENIED_ERROR: _NO_RIGHT,
    ER.COLUMNACCESS_DENIED_ERROR: _NO_RIGHT,
    ER.SPECIFIC_ACCESS_DENIED_ERROR: _NO_RIGHT,
    ER.BAD_DB_ERROR: "Create that database, or correct sink.url.",
    ER.NO_SUCH_TABLE: GONE,
    ER.DUP_ENTRY: "The table has rows that this job did not write, or a unique index that the copy violates until it has "
    "caught up with its first snapshot: empty the table, or drop that index until then.",
    ER.DATA_TOO_LONG: OWN_COLUMNS,
    ER.WARN_DATA_OUT_OF_RANGE: OWN_COLUMNS,
    ER.WARN_DATA_TRUNCATED: OWN_COLUMNS,
    ER.TRUNCATED_WRONG_VALUE_FOR_FIELD: OWN_COLUMNS,
    ER.TRUNCATED_WRONG_VALUE: OWN_COLUMNS,
    ER.BAD_NULL_ERROR: OWN_COLUMNS,
    ER.TOO_BIG_SCALE: "Exclude that column (source.columns): MySQL has at most 30 decimals.",
    ER.TOO_BIG_ROWSIZE: _TOO_WIDE,
    ER.TOO_LONG_KEY: f"{ANOTHER_KEY} Or create its copy yourself with a shorter key that holds the same values.",
    ER.TOO_BIG_FIELDLENGTH: _TOO_WIDE,
    ER.DUPLICATED_VALUE_IN_TYPE: "Exclude that column (source.columns), or create the copy yourself with VARCHAR in its place.",
    ER.RECORD_FILE_FULL: _FULL,
    ER.DISK_FULL: _FULL,
    1820: _EXPIRED,
    1862: _EXPIRED,
    3159: "The server accepts only encrypted connections: add sink.tls.",
}
_TLS = (
    "Give the authority that signed the server's certificate as sink.tls.ca, and the name in the certificate as the host "
    "in sink.url. A server without TLS needs a certificate of its own first."
)
_LOCKED = (
    "Let that session end its transaction, or end it (SHOW PROCESSLIST, information_schema.INNODB_TRX). Then start the "
    "job again."
)
_OTHER = "Correct the cause that the server names, then start the job again."


def sink_error(error: pymysql.MySQLError, doing: str) -> SinkError | SinkBusyError:
    """Returns a SinkBusyError if the same part may be written again, else a SinkError. `doing`: such as `writing shop.orders`.

    Row values that the server quotes are left out.
    """
    message = f"The target's server failed {doing}: {error_text(error)}"
    if error_code(error) == ER.LOCK_WAIT_TIMEOUT:
        return SinkBusyError(f"{message}. Another session keeps rows or a table of the target locked.", _LOCKED)
    if is_transient(error):
        return SinkBusyError(
            message, "Start the job again when the target's server is available. Nothing is lost or repeated."
        )
    if error_code(error) in _READ_ONLY:
        return ReadOnlyError(message, ACCEPTS_WRITES)
    if error_code(error) in _ABOUT_ROWS:
        return RefusedRowsError(message, _REMEDIES.get(error_code(error), _OTHER))
    return SinkError(message, _TLS if _is_tls(error) else _REMEDIES.get(error_code(error), _OTHER))


def too_long(what: str, byte_count: int) -> RefusedRowsError:
    """The error for a row that is too long for any statement that the server takes. `what`: such as `A row of shop.orders
    takes`."""
    return RefusedRowsError(
        f"{what} {byte_count} bytes as a statement, more than the target accepts.",
        "Raise max_allowed_packet on the target's server (up to 1G).",
    )


def error_code(error: pymysql.MySQLError) -> int:
    """Returns the server's error number; 0 for PyMySQL's own errors about a closed connection."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def error_text(error: pymysql.MySQLError) -> str:
    text = f"({error.args[0]}) {error.args[1]}" if len(error.args) >= 2 else str(error) or type(error).__name__
    return redact(without_mysql_values(text))


def _is_tls(error: pymysql.MySQLError) -> bool:
    cause = getattr(error, "original_exception", None)
    broken = isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    return error_code(error) == _SSL_CONNECTION_ERROR or (isinstance(cause, ssl.SSLError) and not broken)


def is_transient(error: pymysql.MySQLError) -> bool:
    if _is_tls(error):
        return False
    return error_code(error) in _TRANSIENT or is_lost(error) or _joins_a_cluster(error)


def _joins_a_cluster(error: pymysql.MySQLError) -> bool:
    """A Galera node that is not in step yet answers "unknown command"."""
    return error_code(error) == ER.UNKNOWN_COM_ERROR and "WSREP" in str(error)


def is_lost(error: pymysql.MySQLError) -> bool:
    """True if the connection is unusable. Then it is not known if the server has run the last statement."""
    return isinstance(
        error, pymysql.err.InterfaceError | pymysql.err.InternalError | pymysql.err.OperationalError
    ) and (error_code(error) in _CONNECTION_LOST)
