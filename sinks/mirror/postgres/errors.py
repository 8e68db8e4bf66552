"""Turns errors of a PostgreSQL target into SinkErrors: whether the work may be tried again, or what to do."""

import psycopg2

from tidemark.conf.libpq import is_about_database, is_about_tls, passes_by_itself
from tidemark.conf.redaction import redact
from tidemark.conf.row_values import without_postgres_values
from tidemark.sinks.mirror.target import ACCEPTS_WRITES, GONE, OWN_COLUMNS
from tidemark.sinks.sink import ReadOnlyError, SinkBusyError
from tidemark.state.errors import RefusedRowsError, SinkError

_NO_RIGHT = (
    "Give the role of sink.url CREATE and USAGE on the target schema, and all rights on its tables. If row-level security of "
    "a table applies to the role: ALTER ROLE … BYPASSRLS."
)
_READ_ONLY = "25006"
_NAME_OF_TYPE = "42710"
_DEPENDENT = "2BP01"
_DUPLICATE_KEY = "23505"
_DROP_DEPENDENT = "Drop these views, let the job read the table again, and create them again."
_ABOUT_ROWS = frozenset({"22", "23", "54"})
"""Data exceptions, violated constraints, program limits."""
_RAISED = "P0001"
"""RAISE EXCEPTION of a trigger of the copy."""
_REMEDIES: dict[str, str] = {
    "22": OWN_COLUMNS,
    "23502": OWN_COLUMNS,
    _DUPLICATE_KEY: "The table has rows that this job did not write, or a unique index that the copy violates until it has "
    "caught up with its first snapshot: empty the table, or drop that index until then.",
    _NAME_OF_TYPE: "A type of the target has that name. Choose another name for the copy: sink.rename or sink.table.",
    "28": "Check user and password in sink.url, pg_hba.conf, and whether the server requires TLS (sink.tls).",
    "3D000": "Create that database, or correct sink.url.",
    "42501": _NO_RIGHT,
    "42P01": GONE,
    "53200": "Raise max_locks_per_transaction on the target's server, because each table of an epoch takes some locks; or "
    "give the server more memory. Then start the job again.",
    "53": "Give the target's server more space or memory, then start the job again.",
    "54": "If a value is too long (an index entry holds 2704 bytes), drop the index, or leave the table out: "
    "source.exclude_tables. If there are too many columns, or too wide ones, exclude some (source.columns).",
}
_TLS = (
    "Give the authority that signed the server's certificate as sink.tls.ca, and the name in the certificate as the host "
    "in sink.url; a server that accepts only encrypted connections needs sink.tls, one without TLS a certificate first."
)
_LOCKED = (
    "Let that session end its transaction, or end it (pg_stat_activity, pg_locks, pg_terminate_backend). Then start the "
    "job again."
)
_OTHER = "Correct the cause that the server names, then start the job again."


def sink_error(error: psycopg2.Error, doing: str) -> SinkError | SinkBusyError:
    """Returns a SinkBusyError if the same part may be written again, else a SinkError. `doing`: such as `writing shop.orders`.

    Only the server's first line is kept, because detail and context quote row values.
    """
    message = f"The target's server failed {doing}: {error_text(error)}"
    if error.pgcode == "55P03":
        return SinkBusyError(f"{message}. Another session keeps rows or a table of the target locked.", _LOCKED)
    if is_transient(error):
        return SinkBusyError(
            message, "Start the job again when the target's server is available. Nothing is lost or repeated."
        )
    if error.pgcode == _DEPENDENT:  # its detail names views and columns, no values
        return SinkError(f"{message}: {' '.join((error.diag.message_detail or '').split())}.", _DROP_DEPENDENT)
    if error.pgcode == _READ_ONLY:
        return ReadOnlyError(message, ACCEPTS_WRITES)
    if is_about_tls(error.pgcode, str(error)):
        return SinkError(message, _TLS)
    code = error.pgcode or ("3D000" if is_about_database(str(error)) else "28")  # a refused login has none
    kind = RefusedRowsError if code[:2] in _ABOUT_ROWS or code in {_RAISED, _NAME_OF_TYPE} else SinkError
    for length in (5, 2):
        if code[:length] in _REMEDIES:
            return kind(message, _REMEDIES[code[:length]])
    return kind(message, _OTHER)


def is_duplicate_key(error: SinkError) -> bool:
    """True for a unique violation."""
    return isinstance(error.__cause__, psycopg2.Error) and error.__cause__.pgcode == _DUPLICATE_KEY


def error_text(error: psycopg2.Error) -> str:
    primary = error.diag.message_primary
    if primary:
        text = f"({error.pgcode}) {without_postgres_values(error.pgcode, primary)}"
    else:
        text = (str(error).strip() or type(error).__name__).partition("\n")[0]
    return redact(text)


def is_transient(error: psycopg2.Error) -> bool:
    may_pass = error.pgcode is not None or isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError)
    return may_pass and passes_by_itself(error.pgcode, str(error))
