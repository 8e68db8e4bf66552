"""Connections to PostgreSQL with fixed session settings, whatever the defaults of server, database and role are.

No default may change the text or the number of rows that a SELECT or the log returns. The session can't write unless a
transaction asks for it (`SET TRANSACTION READ WRITE`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import psycopg2
import psycopg2.extensions

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.libpq import connection_settings, is_about_database, is_about_tls, passes_by_itself
from tidemark.conf.reconnect import AT_START, Reconnect, Reconnecting
from tidemark.conf.redaction import redact
from tidemark.conf.row_values import without_postgres_values
from tidemark.conf.source import Tls
from tidemark.state.errors import LogPositionLostError, SourceNotUsableError, SourceUnavailableError, TidemarkError
from tidemark.state.remedies import START_OVER_NOW
from tidemark.state.table import TableId

Connection: TypeAlias = psycopg2.extensions.connection

APPLICATION_NAME = "tidemark"
LOCK_SECONDS = 60
"""How long a query about a table waits for a session that has locked it, such as one that alters it."""
LOCK_TIMEOUT = "55P03"

SESSION = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "lc_monetary": "C",
    "xmloption": "content",
    "xmlbinary": "base64",
    "client_encoding": "UTF8",
    "search_path": "pg_catalog",
    "row_security": "off",  # a policy that hides rows is an error, not a smaller copy
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "array_nulls": "on",
    "jit": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",  # since 17
    "tcp_keepalives_idle": "30",  # so that the server notices a dead driver and frees its locks
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "6",
    "client_min_messages": "warning",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "default_transaction_read_only": "on",
}


def connect(
    endpoint: Endpoint,
    tls: Tls | None,
    *,
    autocommit: bool = True,
    reconnect: Reconnect = AT_START,
    primary: bool = False,
    check: Callable[[Connection], None] | None = None,
) -> Connection:
    """Opens a connection with the settings of SESSION. Statements are read only, and each sees what is committed when it
    starts. For a snapshot, use `BEGIN ISOLATION LEVEL REPEATABLE READ`.

    Transient errors are retried as `reconnect` says, then raise SourceUnavailableError. A refusal (login, TLS, unknown
    database) raises SourceNotUsableError at once. With `tls` the connection is encrypted or not made at all. With `verify`
    the server's certificate must name the host and be signed by `tls.ca`, or by an authority that the system trusts. Without
    `tls` nothing is encrypted; the password is sent as SCRAM or MD5 if the server asks for that. With `primary` a standby
    that answers is waited for like a server that is away: a failover is under way. `check` is called with the connection. If it
    raises SourceUnavailableError, that counts as a connection that could not be opened.
    """
    retrying = Reconnecting(reconnect, f"the source {endpoint.host}:{endpoint.port}")
    while True:
        try:
            connection = _open(endpoint, tls, autocommit=autocommit, primary=primary, check=check)
        except SourceUnavailableError as error:
            if not retrying.failed(error.message):
                raise
        except _StandbyError as error:
            if not retrying.failed(str(error)):
                raise SourceUnavailableError(
                    f"{endpoint.host}:{endpoint.port} answered as a standby in {retrying.failures} attempts.",
                    STANDBY_REMEDY,
                ) from error
        except psycopg2.Error as error:
            if not is_transient(error):
                raise _refusal(endpoint, error) from error
            if not retrying.failed(error_text(error)):
                raise SourceUnavailableError(
                    f"No connection to {endpoint.host}:{endpoint.port} in {retrying.failures} attempts: {error_text(error)}",
                    "Check that the server runs, that host and port in source.url are right and reachable from driver "
                    "and executors, and that it has connections to spare (max_connections, the role's and the "
                    "database's CONNECTION LIMIT). Then run the job again: it continues.",
                ) from error
        else:
            retrying.succeeded()
            return connection


CORRECT = "Correct what the server's message says, then run the job again."
STANDBY_REMEDY = "Run the job again once the failover is over: it continues. Or name the primary in source.url."


class _StandbyError(Exception):
    """The server only accepts reads. It may lack rows that the primary has."""


def _open(
    endpoint: Endpoint, tls: Tls | None, *, autocommit: bool, primary: bool, check: Callable[[Connection], None] | None
) -> Connection:
    connection: Connection = psycopg2.connect(**connection_settings(endpoint, tls, APPLICATION_NAME))
    try:
        connection.autocommit = True
        prepare_session(connection)
        if primary:
            _require_primary(connection)
        if check is not None:
            check(connection)
        connection.autocommit = autocommit
    except BaseException:
        connection.close()
        raise
    return connection


def _require_primary(connection: Connection) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_catalog.pg_is_in_recovery()")
        if cursor.fetchone() == (True,):
            raise _StandbyError("it is a standby: a failover may be under way")


def prepare_session(connection: Connection) -> None:
    """Applies the settings of SESSION that this server version has. Raises SourceNotUsableError if the server refuses one,
    psycopg2's error if the connection is lost."""
    names = list(SESSION)
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_catalog.set_config(s.name, s.value, false) "
                "FROM ROWS FROM (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[])) AS s(name, value) "
                "WHERE pg_catalog.current_setting(s.name, true) IS NOT NULL",
                (names, [SESSION[name] for name in names]),
            )
            cursor.execute("SELECT pg_catalog.pg_backend_pid()")
            ((process,),) = cursor.fetchall()
    except psycopg2.Error as error:
        if is_transient(error):
            raise
        raise SourceNotUsableError(
            f"The server refuses the session settings that Tidemark needs: {error_text(error)}",
            "Use PostgreSQL 14 or newer, and connect directly, not through a proxy or pooler that filters settings.",
        ) from error
    if process != connection.info.backend_pid:
        raise SourceNotUsableError(
            f"A connection pooler (such as pgbouncer) answers at {connection.info.host}:{connection.info.port}: it may give "
            "each query another session of the server, while a job's lease, snapshots and settings belong to one session.",
            "Connect directly: write the server's own host and port in source.url.",
        )


def limit_lock_waits(connection: Connection, seconds: int | None = None) -> None:
    """Lets a query fail that waits for another session's lock for `seconds` (LOCK_SECONDS)."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = '{LOCK_SECONDS if seconds is None else seconds}s'")


def end_limit_of_lock_waits(connection: Connection) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = 0")


@contextmanager
def sql_errors(connection: Connection) -> Iterator[None]:
    """Turns the connection's own errors inside the block into SourceUnavailableError, if it was lost, or SourceNotUsableError,
    if the server refused a query. Errors of other connections pass."""
    try:
        yield
    except psycopg2.Error as error:
        if error.cursor is not None and error.cursor.connection is not connection:
            raise
        raise _query_error(connection, error) from error


def _query_error(connection: Connection, error: psycopg2.Error) -> TidemarkError:
    if is_removed_log(error):
        return removed_log(error)
    if error.pgcode == CONFLICT:
        return conflict(f"The standby ended a query of the job: {error_text(error)}.")
    if is_transient(error) or connection.closed:
        return SourceUnavailableError(
            f"The connection to the source was lost: {error_text(error)}",
            "Check the server and the network between it and the driver and executors, then run the job again.",
        )
    if error.pgcode == _DENIED:
        remedy = (
            "GRANT the role of source.url what is missing. The page Permissions of the documentation has all grants."
        )
    else:
        remedy = CORRECT
    return SourceNotUsableError(f"The source refuses a query: {error_text(error)}.", remedy)


KEEP_MORE_LOG = (
    f"Drop it (tidemark drop JOB.yaml). {START_OVER_NOW} Then let slots keep more log: max_slot_wal_keep_size, "
    "idle_replication_slot_timeout."
)
"""The remedy for a slot whose log the server has not kept."""


def is_removed_log(error: psycopg2.Error) -> bool:
    """True if a file of the log that a query decodes is gone, though no slot need be marked as lost. It may pass: while a
    standby is promoted, the log goes on in files with other names. Its message may be in any language."""
    return error.pgcode == "58P01" and error.diag.source_file == "xlogutils.c"


def removed_log(error: psycopg2.Error) -> LogPositionLostError:
    """Returns the error for a log of which files are gone."""
    return LogPositionLostError(
        f"The source no longer has the log that the job needs: {error_text(error)}.", KEEP_MORE_LOG
    )


_DENIED = "42501"
CONFLICT = "40001"
"""A query that only reads one snapshot conflicts with nothing but a standby's recovery."""


def conflict(message: str) -> SourceUnavailableError:
    """Returns the error for queries that a standby ends."""
    return SourceUnavailableError(
        message,
        "Its primary removed rows that the query needed: on the standby set hot_standby_feedback = on, or a greater "
        "max_standby_streaming_delay. Then run the job again.",
    )


def version_of(connection: Connection) -> tuple[int, int]:
    """Returns (major, minor)."""
    return divmod(connection.server_version, 10_000)


def quote_identifier(name: str) -> str:
    """Returns the name as a quoted SQL identifier."""
    if "\x00" in name:
        raise ValueError("an identifier can't hold a NUL character")
    return '"' + name.replace('"', '""') + '"'


def quote_table(table: TableId) -> str:
    return f"{quote_identifier(table.database)}.{quote_identifier(table.name)}"


def quote_literal(text: str) -> str:
    """Returns the text as an SQL literal that does not depend on session settings."""
    if "\x00" in text:
        raise ValueError("a literal can't hold a NUL character")
    doubled = text.replace("'", "''")
    return f"'{doubled}'" if "\\" not in text else " E'" + doubled.replace("\\", "\\\\") + "'"


def error_text(error: BaseException) -> str:
    """Returns an exception's first line for messages, without secrets: `(42501) permission denied …`. Detail and context are
    left out because they quote rows."""
    primary = error.diag.message_primary if isinstance(error, psycopg2.Error) else None
    if primary and isinstance(error, psycopg2.Error):
        return redact(f"({error.pgcode}) {without_postgres_values(error.pgcode, primary)}")
    return redact((str(error).strip() or type(error).__name__).partition("\n")[0])


def error_code(error: psycopg2.Error) -> str | None:
    """Returns the SQLSTATE; None if the client raised the error."""
    return error.pgcode


def is_too_large(error: psycopg2.Error) -> bool:
    """True if the server can't show a value because its text would have more than 1 GiB. Its message may be in any language."""
    return error.pgcode == "XX000" and error.diag.source_file == "mcxt.c"


def is_transient(error: psycopg2.Error) -> bool:
    """True if a new connection may help: network, restart, too many connections. False for refusals."""
    may_pass = error.pgcode is not None or isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError)
    return may_pass and passes_by_itself(error.pgcode, str(error))


def _refusal(endpoint: Endpoint, error: psycopg2.Error) -> SourceNotUsableError:
    text = str(error)
    if "pg_hba.conf" not in text and is_about_tls(error.pgcode, text):
        return SourceNotUsableError(
            f"No trusted TLS connection to {endpoint.host}:{endpoint.port}: {error_text(error)}",
            "Give the authority that signed the server's certificate as source.tls.ca, and the name in the certificate "
            "as the host in source.url. A server without TLS must first get a certificate.",
        )
    if "pg_hba.conf" in text:
        remedy = "Let pg_hba.conf admit the role from driver and executors. If it requires encryption, add source.tls."
    elif is_about_database(text):
        remedy = "Correct the database in source.url: postgresql://user:password@host:5432/database."
    else:
        remedy = "Check user and password in source.url, and that the role may log in (LOGIN) and CONNECT."
    login = f"{endpoint.user}@{endpoint.host}:{endpoint.port}"
    return SourceNotUsableError(f"The source refuses {login}: {error_text(error)}", remedy)
