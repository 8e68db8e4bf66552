"""Connections to PostgreSQL whose session settings are known, whatever server, database and role have as defaults.

No default may change the text or the number of the rows that a SELECT or the log gives, and the session can't write
unless a transaction says so (`SET TRANSACTION READ WRITE`).
"""

import random
import time
from typing import TypeAlias

import psycopg2
import psycopg2.extensions

from conf.endpoint import Endpoint
from conf.libpq import connection_settings, is_about_tls, passes_by_itself
from conf.redaction import redact
from conf.source import Tls
from state.errors import SourceNotUsableError, SourceUnavailableError
from state.table import TableId

Connection: TypeAlias = psycopg2.extensions.connection

APPLICATION_NAME = "tidemark"
CONNECT_ATTEMPTS = 5
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 8.0

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
    "row_security": "off",  # a policy that hides rows makes an error instead of a smaller copy
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
    "tcp_keepalives_idle": "30",  # so that the server, too, notices a driver that is gone, and frees its locks
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "6",
    "client_min_messages": "warning",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "default_transaction_read_only": "on",
}


def connect(endpoint: Endpoint, tls: Tls | None, *, autocommit: bool = True) -> Connection:
    """A connection with the settings of SESSION. Statements are read only and each sees what is committed when it
    starts; a transaction of its own says `BEGIN ISOLATION LEVEL REPEATABLE READ`.

    Errors that pass by themselves are retried CONNECT_ATTEMPTS times with back-off, then SourceUnavailableError; a
    refusal (login, TLS, unknown database) is SourceNotUsableError at once. With `tls` a connection is encrypted or not
    made at all; with `verify` the server's certificate must be signed by `tls.ca` (else by an authority the system
    knows) and name the host. Without `tls` nothing is encrypted, the password travels as SCRAM or MD5 if the server
    asks so.
    """
    delay_seconds = FIRST_DELAY_SECONDS
    for attempt in range(1, CONNECT_ATTEMPTS + 1):
        try:
            connection: Connection = psycopg2.connect(**connection_settings(endpoint, tls, APPLICATION_NAME))
        except psycopg2.Error as error:
            if not is_transient(error):
                raise _refusal(endpoint, error) from error
            if attempt == CONNECT_ATTEMPTS:
                raise SourceUnavailableError(
                    f"No connection to {endpoint.host}:{endpoint.port} in {attempt} attempts: {error_text(error)}",
                    "Check that the server runs, that host and port in source.url are right and reachable from driver "
                    "and executors, and that it has connections to spare (max_connections, the role's and the "
                    "database's CONNECTION LIMIT).",
                ) from error
        else:
            try:
                connection.autocommit = True
                prepare_session(connection)
                connection.autocommit = autocommit
            except BaseException:
                connection.close()
                raise
            return connection
        time.sleep(delay_seconds * random.uniform(0.5, 1.0))
        delay_seconds = min(2 * delay_seconds, LONGEST_DELAY_SECONDS)
    raise AssertionError("unreachable")


def prepare_session(connection: Connection) -> None:
    """Sets what SESSION names and this version has. Raises SourceNotUsableError where the server refuses one."""
    names = list(SESSION)
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_catalog.set_config(s.name, s.value, false) "
                "FROM ROWS FROM (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[])) AS s(name, value) "
                "WHERE pg_catalog.current_setting(s.name, true) IS NOT NULL",
                (names, [SESSION[name] for name in names]),
            )
    except psycopg2.Error as error:
        raise SourceNotUsableError(
            f"The server refuses the session settings that Tidemark needs: {error_text(error)}",
            "Use PostgreSQL 14 or newer, directly, not through a proxy or pooler that filters settings.",
        ) from error


def version_of(connection: Connection) -> tuple[int, int]:
    """(major, minor)."""
    return divmod(connection.server_version, 10_000)


def quote_identifier(name: str) -> str:
    """The name in double quotes, as SQL takes it whatever its letters are."""
    if "\x00" in name:
        raise ValueError("an identifier can't hold a NUL character")
    return '"' + name.replace('"', '""') + '"'


def quote_table(table: TableId) -> str:
    return f"{quote_identifier(table.database)}.{quote_identifier(table.name)}"


def quote_literal(text: str) -> str:
    """The text as an SQL literal that no session setting reads otherwise."""
    if "\x00" in text:
        raise ValueError("a literal can't hold a NUL character")
    doubled = text.replace("'", "''")
    return f"'{doubled}'" if "\\" not in text else " E'" + doubled.replace("\\", "\\\\") + "'"


def error_text(error: BaseException) -> str:
    """An exception's first line for messages, without secrets: `(42501) permission denied …`. Detail and context are
    left out: they quote rows."""
    primary = error.diag.message_primary if isinstance(error, psycopg2.Error) else None
    if primary and isinstance(error, psycopg2.Error):
        return redact(f"({error.pgcode}) {primary}")
    return redact((str(error).strip() or type(error).__name__).partition("\n")[0])


def error_code(error: psycopg2.Error) -> str | None:
    """The SQLSTATE; None where the client itself gave up."""
    return error.pgcode


def is_transient(error: psycopg2.Error) -> bool:
    """True if connecting again may help: network, restart, too many connections. Refusals are not."""
    may_pass = error.pgcode is not None or isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError)
    return may_pass and passes_by_itself(error.pgcode, str(error))


def _refusal(endpoint: Endpoint, error: psycopg2.Error) -> SourceNotUsableError:
    text = str(error)
    if "pg_hba.conf" not in text and is_about_tls(error.pgcode, text):
        return SourceNotUsableError(
            f"No trusted TLS connection to {endpoint.host}:{endpoint.port}: {error_text(error)}",
            "Give the authority that signed the server's certificate as source.tls.ca, and the name in the certificate "
            "as the host in source.url. A server without TLS needs a certificate of its own first.",
        )
    if "pg_hba.conf" in text:
        remedy = "Let pg_hba.conf admit the role from driver and executors; if it demands encryption, add source.tls."
    elif "database" in text and "does not exist" in text:
        remedy = "Correct the database in source.url: postgresql://user:password@host:5432/database."
    else:
        remedy = "Check user and password in source.url, and that the role may log in (LOGIN) and CONNECT."
    place = f"{endpoint.user}@{endpoint.host}:{endpoint.port}"
    return SourceNotUsableError(f"The source refuses {place}: {error_text(error)}", remedy)
