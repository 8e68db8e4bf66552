"""What a PostgreSQL server's error means for the job: pass by itself, or a person must act, and how."""

import psycopg2

from conf.libpq import is_about_tls, passes_by_itself
from conf.redaction import redact
from sinks.sink import SinkBusyError
from state.errors import SinkError

_NO_RIGHT = "Give the role of sink.url CREATE and USAGE on the target schema, and all rights on its tables."
_NO_FIT = "Make that column of the target as wide as the source's, or drop the table and let the job create it anew."
_GONE = (
    "Tables of the copy or Tidemark's own were dropped: begin anew with a new checkpoint, empty copies and without this "
    "job's rows in tidemark_tables."
)
_REMEDIES: dict[str, str] = {
    "22": _NO_FIT,
    "23502": "Let that column of the target be NULL.",
    "23503": "Drop foreign keys on mirrored tables: a mirror's tables are written one after the other.",
    "23505": "The table holds rows that this job did not write, or a unique index that the copy can't keep while its first "
    "snapshot is being caught up: empty the table or drop that index until then.",
    "25006": "Name a server in sink.url that takes writes, not a standby.",
    "28": "Check user and password in sink.url, pg_hba.conf, and whether the server wants TLS (sink.tls).",
    "3D000": "Create that database, or correct sink.url.",
    "42501": _NO_RIGHT,
    "42P01": _GONE,
    "53": "Give the target's server more space or memory, then start the job again.",
    "54": "A value is too long for PostgreSQL (an index entry holds 2704 bytes): exclude the column, or choose another key.",
}
_TLS = (
    "Give the authority that signed the server's certificate as sink.tls.ca, and the name in the certificate as the host "
    "in sink.url; a server that takes encrypted connections only needs sink.tls, one without TLS a certificate first."
)
_OTHER = "Correct what the server complains about and start the job again."


def fault(error: psycopg2.Error, doing: str) -> SinkError:
    """SinkBusyError if the same part may be written again, else a SinkError. `doing`: `writing shop.orders`.

    Only the server's first line is kept: detail and context quote values of rows.
    """
    message = f"The target's server failed {doing}: {error_text(error)}"
    if is_transient(error):
        return SinkBusyError(
            message, "Start the job again when the target's server is well; nothing is lost or repeated."
        )
    if is_about_tls(error.pgcode, str(error)):
        return SinkError(message, _TLS)
    code = error.pgcode or "28"  # a refused login has none
    for length in (5, 2):
        if code[:length] in _REMEDIES:
            return SinkError(message, _REMEDIES[code[:length]])
    return SinkError(message, _OTHER)


def error_text(error: psycopg2.Error) -> str:
    primary = error.diag.message_primary
    text = f"({error.pgcode}) {primary}" if primary else (str(error).strip() or type(error).__name__).partition("\n")[0]
    return redact(text)


def is_transient(error: psycopg2.Error) -> bool:
    may_pass = error.pgcode is not None or isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError)
    return may_pass and passes_by_itself(error.pgcode, str(error))
