"""Connections to MySQL and MariaDB with fixed session settings, independent of the server's defaults.

A global default must not change what a SELECT returns: every connection sets the time zone, SQL mode, row limits, statement
timeouts and the visibility of generated columns. The session is read only.
"""

import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, TypeAlias

import pymysql
from pymysql.constants import CR, ER

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.keep_alive import keep_alive
from tidemark.conf.reconnect import AT_START, Reconnect, Reconnecting
from tidemark.conf.redaction import redact
from tidemark.conf.row_values import without_mysql_values
from tidemark.conf.source import Tls
from tidemark.conf.tls import client_context, password_plugins, unusable_files
from tidemark.state.errors import SourceNotUsableError, SourceUnavailableError
from tidemark.state.table import TableId

Purpose = Literal["sql", "log", "lease"]
Flavour = Literal["mysql", "mariadb"]
Connection: TypeAlias = "pymysql.Connection[pymysql.cursors.Cursor]"

CONNECT_TIMEOUT_SECONDS = 10
HANDSHAKE_TIMEOUT_SECONDS = 30.0
"""A server that is frozen, or a balancer without one, accepts a connection and says nothing."""
READ_TIMEOUT_SECONDS = 1800.0
"""For a server that hangs. TCP keep-alive notices a dead server within 90 s (conf/keep_alive.py)."""

CORRECT_REFUSED = (
    "If it is about a privilege, grant it (the page Permissions of Tidemark's documentation has all grants). Otherwise "
    "correct what the server's message says."
)

_TRANSIENT = frozenset(
    {
        CR.CR_CONN_HOST_ERROR,
        CR.CR_CONNECTION_ERROR,
        CR.CR_SERVER_GONE_ERROR,
        CR.CR_SERVER_LOST,
        ER.CON_COUNT_ERROR,
        ER.BAD_HOST_ERROR,
        ER.SERVER_SHUTDOWN,
        ER.NORMAL_SHUTDOWN,
        ER.TOO_MANY_USER_CONNECTIONS,
        ER.USER_LIMIT_REACHED,
        ER.NET_READ_ERROR,
        ER.NET_READ_INTERRUPTED,
        ER.NET_ERROR_ON_WRITE,
        ER.NET_WRITE_INTERRUPTED,
        ER.ABORTING_CONNECTION,
        ER.NEW_ABORTING_CONNECTION,
        ER.QUERY_INTERRUPTED,
        1927,  # MariaDB: the connection was killed, as at a shutdown
        3168,  # ER_SERVER_ISNT_AVAILABLE
        3169,  # the session was killed
        4031,  # disconnected because of inactivity
    }
)
_GALERA_JOINS = 1047
"""Unknown command, with a text of its own: the node is not in step with its cluster yet."""
_SECURE_TRANSPORT_REQUIRED = 3159
_PASSWORD_EXPIRED = frozenset({1820, 1862})
"""Said to a query, or at the login."""

_SESSION = {
    "time_zone": "'+00:00'",
    "sql_mode": "''",  # no ANSI_QUOTES, NO_BACKSLASH_ESCAPES, PAD_CHAR_TO_FULL_LENGTH, …
    "net_read_timeout": "3600",
    "net_write_timeout": "3600",  # a slow reader must not lose its connection
    "wait_timeout": "86400",
    "lock_wait_timeout": "60",  # waiting behind a DDL's metadata lock
    "innodb_lock_wait_timeout": "10",
    "sql_select_limit": "18446744073709551615",
    "sql_big_selects": "1",
    "sql_safe_updates": "0",
    "completion_type": "'NO_CHAIN'",  # else COMMIT and ROLLBACK begin a transaction, whose snapshot becomes old
    "group_concat_max_len": "4194304",
}
_SESSION_MYSQL = {
    "max_execution_time": "0",
    "session_track_gtids": "'OFF'",
    "information_schema_stats_expiry": "0",
    "use_secondary_engine": "OFF",  # HeatWave has copies of tables that lag behind
    "show_gipk_in_create_table_and_information_schema": "ON",
}
_SESSION_MARIADB = {
    "max_statement_time": "0",
    "idle_transaction_timeout": "0",  # the session waits for the log while a transaction keeps its snapshot
    "idle_readonly_transaction_timeout": "0",
}


def connect(
    endpoint: Endpoint,
    tls: Tls | None,
    *,
    purpose: Purpose = "sql",
    database: str | None = None,
    read_timeout_seconds: float | None = READ_TIMEOUT_SECONDS,
    reconnect: Reconnect = AT_START,
    check: Callable[[Connection], str | None] | None = None,
) -> Connection:
    """Opens a connection with autocommit, UTC, utf8mb4, REPEATABLE READ, read only, and the settings of _SESSION.

    `database` overrides the endpoint's. Transient errors are retried as `reconnect` says, then raise SourceUnavailableError.
    A refusal (login, TLS, unknown database) raises SourceNotUsableError at once. With `tls` the connection is encrypted or
    fails. With `tls.verify` the server's certificate must name the host and be signed by `tls.ca`, or by an authority that the
    system trusts if `tls.ca` is None. Without `tls` nothing is encrypted, except the password of caching_sha2_password, which
    is encrypted with the server's RSA key. `check` returns why the server is to be waited for like one that is away, None for
    one that is right, or raises.
    """
    context = None if tls is None else tls_context(tls)
    default = endpoint.database if database is None else database
    retrying = Reconnecting(reconnect, f"the source {endpoint.host}:{endpoint.port}")
    while True:
        try:
            connection = _open(endpoint, tls, context, purpose, default, read_timeout_seconds)
            try:
                if flavour_of(connection) == "mariadb":
                    connection.query("DO 0")  # whose password has expired may log in there, and do nothing but SET
                prepare_session(connection)
                waits = None if check is None else check(connection)
            except BaseException:
                connection.close()
                raise
        except pymysql.MySQLError as error:
            if not is_transient(error):
                raise _refusal(endpoint, error, encrypted=context is not None) from error
            if not retrying.failed(error_text(error)):
                raise SourceUnavailableError(
                    f"No connection to {endpoint.host}:{endpoint.port} in {retrying.failures} attempts: {error_text(error)}",
                    "Check that the server runs, that host and port in source.url are right and reachable from driver "
                    "and executors, and that it has connections to spare (max_connections, max_user_connections). Then run "
                    "the job again: it continues.",
                ) from error
        else:
            if waits is None:
                retrying.succeeded()
                return connection
            connection.close()
            if not retrying.failed(waits):
                raise SourceUnavailableError(
                    f"{endpoint.host}:{endpoint.port}, asked {retrying.failures} times: {waits}.",
                    "Run the job again once the failover is over: it continues. Or name the job's server in source.url.",
                )


def server_text(connection: Connection) -> str:
    """The version in the server's greeting, without the 5.5.5- that MariaDB prepends for old replicas."""
    text: str = connection.get_server_info()  # type: ignore[no-untyped-call]  # the stub has no types here
    return text.removeprefix("5.5.5-")


def flavour_of(connection: Connection) -> Flavour:
    """The flavour, from the server's greeting."""
    return "mariadb" if "mariadb" in server_text(connection).lower() else "mysql"


def version_of(connection: Connection) -> tuple[int, int, int]:
    """(major, minor, patch)."""
    numbers = server_text(connection).split("-")[0].split(".")
    try:
        major, minor, patch = (int(n) for n in [*numbers, "0", "0"][:3])
    except ValueError:
        raise SourceNotUsableError(
            f"The server's version {server_text(connection)!r} is not a version of MySQL or MariaDB.",
            "Connect to the server itself, not through a proxy that hides its version.",
        ) from None
    return major, minor, patch


LACKS_GENERATED_SINCE = (11, 8, 0)
"""The first version of MariaDB that leaves generated columns out of the images of updated and deleted rows, also with
binlog_row_image=FULL: 11.8.9 does, 11.4.5 and 10.11.18 don't."""


def lacks_generated(flavour: Flavour, version: tuple[int, int, int]) -> bool:
    """True if the server's log lacks generated columns."""
    return flavour == "mariadb" and version >= LACKS_GENERATED_SINCE


def quote_identifier(name: str) -> str:
    """The name in backticks, valid in any SQL mode."""
    if "\x00" in name:
        raise ValueError("an identifier can't hold a NUL character")
    return "`" + name.replace("`", "``") + "`"


def quote_table(table: TableId) -> str:
    return f"{quote_identifier(table.database)}.{quote_identifier(table.name)}"


def error_text(error: BaseException) -> str:
    """An exception's text for messages, without secrets and row values: `(1045) Access denied …`."""
    if isinstance(error, pymysql.MySQLError) and len(error.args) >= 2:
        return redact(f"({error.args[0]}) {without_mysql_values(str(error.args[1]))}")
    return redact(str(error) or type(error).__name__)


def error_code(error: pymysql.MySQLError) -> int | None:
    return error.args[0] if error.args and isinstance(error.args[0], int) else None


def is_transient(error: pymysql.MySQLError) -> bool:
    """True if a new connection may help: network errors, a restart, too many connections. False for refusals."""
    cause = getattr(error, "original_exception", None)
    if isinstance(cause, ssl.SSLError):
        return isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    if isinstance(error, pymysql.err.InterfaceError) and error_code(error) == 0:
        return True  # PyMySQL's own error for a closed connection
    if isinstance(error, pymysql.err.InternalError) and error_code(error) is None:
        return True  # packets out of order: while this process was frozen, the server ended the session with an error packet
    return error_code(error) in _TRANSIENT or (error_code(error) == _GALERA_JOINS and "WSREP" in str(error))


@contextmanager
def sql_errors(connection: Connection) -> Iterator[None]:
    """Turns PyMySQL's errors inside the block into SourceUnavailableError, if the connection was lost, or SourceNotUsableError,
    if the server refused a query."""
    try:
        yield
    except pymysql.MySQLError as error:
        if is_transient(error) or not connection.open:
            raise SourceUnavailableError(
                f"The connection to the source was lost: {error_text(error)}",
                "Check the server and the network between it and the driver and executors, then run the job again.",
            ) from error
        raise SourceNotUsableError(
            f"The source refuses a query: {error_text(error)}",
            CORRECT_REFUSED,
        ) from error


def tls_context(tls: Tls) -> ssl.SSLContext:
    """The SSL context for `tls`. Raises SourceNotUsableError if one of its files can't be used."""
    try:
        return client_context(tls)
    except (OSError, ValueError) as error:
        raise SourceNotUsableError(*unusable_files("source.tls", tls, error)) from error


def prepare_session(connection: Connection) -> None:
    """Applies the session settings, of an older server those that it has.

    Raises SourceNotUsableError if the server refuses one, pymysql's error if it is lost."""
    settings = _SESSION | (_SESSION_MARIADB if flavour_of(connection) == "mariadb" else _SESSION_MYSQL)
    try:
        with connection.cursor() as cursor:
            try:
                cursor.execute(_assignments(settings))
            except pymysql.MySQLError as error:
                if error_code(error) != ER.UNKNOWN_SYSTEM_VARIABLE:
                    raise
                cursor.execute("SHOW VARIABLES WHERE Variable_name IN %s", (tuple(settings),))
                offered = {str(name).lower() for name, _ in cursor.fetchall()}
                cursor.execute(_assignments({name: value for name, value in settings.items() if name in offered}))
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    except pymysql.MySQLError as error:
        if is_transient(error):
            raise
        raise SourceNotUsableError(
            f"The server refuses the session settings that Tidemark needs: {error_text(error)}",
            "Use MySQL 8.0 or newer, or MariaDB 10.5 or newer, without a proxy that filters SET.",
        ) from error


def _assignments(settings: Mapping[str, str]) -> str:
    return f"SET {', '.join(f'SESSION {name} = {value}' for name, value in settings.items())}"


def _open(
    endpoint: Endpoint,
    tls: Tls | None,
    context: ssl.SSLContext | None,
    purpose: Purpose,
    database: str | None,
    read_timeout_seconds: float | None,
) -> Connection:
    connection = pymysql.connect(
        host=endpoint.host,
        port=endpoint.port,
        user=endpoint.user,
        password=endpoint.password.get_secret_value().encode(),  # a str would be sent as latin1
        database=database,
        charset="utf8mb4",
        autocommit=True,
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        read_timeout=HANDSHAKE_TIMEOUT_SECONDS,
        ssl=context,  # with a context: TLS or no connection
        ssl_disabled=context is None,
        auth_plugin_map=password_plugins("source.tls", tls, endpoint.host, SourceNotUsableError),
        program_name=f"tidemark {purpose}",
    )
    connection._read_timeout = read_timeout_seconds  # type: ignore[attr-defined]  # PyMySQL offers no other way
    keep_alive(connection._sock)  # type: ignore[attr-defined]  # likewise
    return connection


def _refusal(endpoint: Endpoint, error: pymysql.MySQLError, *, encrypted: bool) -> SourceNotUsableError:
    account = f"{endpoint.user}@{endpoint.host}:{endpoint.port}"
    if isinstance(getattr(error, "original_exception", None), ssl.SSLError) or error_code(error) == 2026:
        return SourceNotUsableError(
            f"No trusted TLS connection to {endpoint.host}:{endpoint.port}: {error_text(error)}",
            "Set source.tls.ca to the authority that signed the server's certificate, and use the name in the certificate as "
            "the host in source.url. If the server has no TLS, give it a certificate first.",
        )
    match error_code(error):
        case ER.ACCESS_DENIED_ERROR:
            remedy = "Check user and password in source.url, and that the account may log in from driver and executors."
            if not encrypted:  # MariaDB, and both servers for accounts with REQUIRE SSL, give no other reason
                remedy += " If the account or the server requires encryption, add source.tls."
        case ER.BAD_DB_ERROR | ER.DBACCESS_DENIED_ERROR:
            remedy = "Correct the database in source.url, or leave it out: tables are named in source.tables."
        case code if code in _PASSWORD_EXPIRED:
            remedy = (
                "Give the account another password, and write it in source.url: ALTER USER <account> IDENTIFIED BY "
                "'<password>'. Then run the job again: it continues."
            )
        case code if code == _SECURE_TRANSPORT_REQUIRED and not encrypted:
            remedy = "The server accepts only encrypted connections: add source.tls."
        case _:
            remedy = (
                "Correct what the server complains about. The page Permissions of Tidemark's documentation lists what the "
                "account needs."
            )
    return SourceNotUsableError(f"The source refuses {account}: {error_text(error)}", remedy)
