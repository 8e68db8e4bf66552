"""`tidemark drop`: removes what a job made in its source. Nothing else ever does."""

import sys
from contextlib import closing

import typer

from conf.model import JobFile
from conf.redaction import redact
from jobs.sources import acquire_lease
from readers.postgres.connect import Connection, connect
from readers.postgres.publication import drop_publication, publication_owner
from readers.postgres.slot import drop_slot, slot_exists
from state.errors import JobFileError, JobHeldError


def drop(job: JobFile, *, yes: bool) -> None:
    """The replication slot and the publication of a PostgreSQL source; a publication that another role owns is left.
    Asks first, unless `yes`. Raises JobFileError where there is nobody to ask, JobHeldError, SourceNotUsableError."""
    if job.source.url.kind != "postgresql":
        print(f"Nothing to drop: job {job.job} makes nothing in a MySQL or MariaDB source.")
        return
    if not yes and not sys.stdin.isatty():
        raise JobFileError("drop asks before it drops, and there is no terminal to ask on.", "Give --yes.")
    try:
        lease = acquire_lease(job, wait=False)
    except JobHeldError as error:
        raise JobHeldError(error.message, "Stop it first: without its slot it can't go on.") from error
    with lease, closing(connect(job.source.url, job.source.tls)) as connection:
        _drop(job, connection, yes=yes)


def _drop(job: JobFile, connection: Connection, *, yes: bool) -> None:
    owner = publication_owner(connection, job.publication)
    found = [f"replication slot {job.slot}"] if slot_exists(connection, job.slot) else []
    if owner is not None and owner[1]:
        found.append(f"publication {job.publication}")
    where = f"{job.source.url.host}, database {job.source.url.database}"
    question = f"Drop {' and '.join(found)} on {where}? Job {job.job} can't go on afterwards."
    if found and not yes and not typer.confirm(redact(question)):
        print("Nothing was dropped.")
        return
    if drop_slot(connection, job.slot):
        print(f"Dropped replication slot {job.slot}.")
    if owner is not None and not owner[1]:
        print(redact(f"Left publication {job.publication}: it belongs to {owner[0]}, who may drop it."))
    elif drop_publication(connection, job.publication):
        print(redact(f"Dropped publication {job.publication}."))
    if not found:
        print(redact(f"Nothing to drop: there is no slot {job.slot} and no publication of this role on {where}."))
