"""`tidemark drop`: drops the replication slot and the publication that a job created. Nothing else in Tidemark does."""

import sys
from contextlib import closing

import typer

from tidemark.conf.model import JobFile
from tidemark.conf.redaction import redact
from tidemark.jobs.sources import acquire_lease
from tidemark.readers.postgres.connect import Connection, connect, sql_errors
from tidemark.readers.postgres.replay import is_in_recovery
from tidemark.readers.postgres.slot.kept_log import kept_slots
from tidemark.readers.postgres.slot.publication import drop_publication, drop_statement, publication_owner
from tidemark.readers.postgres.slot.slot import drop_slot, slot_exists
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import JobFileError, JobHeldError


def drop(job: JobFile, *, yes: bool) -> None:
    """Drops the slot and the publication of a PostgreSQL source. Keeps a publication that another role owns. Asks first,
    unless `yes`. Raises JobFileError if there is no terminal to ask on, JobHeldError, SourceNotUsableError."""
    if job.source.url.kind != "postgresql":
        print(f"Nothing to drop: job {job.job} creates nothing in a MySQL or MariaDB source.")
        return
    if not yes and not sys.stdin.isatty():
        raise JobFileError("drop asks before it drops, but there is no terminal to ask on.", "Add --yes.")
    try:
        lease = acquire_lease(job, wait=False)
    except JobHeldError as error:
        raise JobHeldError(error.message, "Stop it first: it needs its slot.") from error
    with lease, closing(connect(job.source.url, job.source.tls)) as connection, sql_errors(connection):
        _drop(job, connection, yes=yes)


def _drop(job: JobFile, connection: Connection, *, yes: bool) -> None:
    owner = publication_owner(connection, job.publication)
    marks = Checkpoint.at(job.checkpoint).upgrade_marks()
    kept = [kept.name for kept in kept_slots(connection, job.slot)]
    slots = [job.slot, *kept, *(mark.slot for mark in marks.values())]
    found = [f"replication slot {slot}" for slot in slots if slot_exists(connection, slot)]
    if owner is not None and owner[1] and not is_in_recovery(connection):
        found.append(f"publication {job.publication}")
    where = f"{job.source.url.host}, database {job.source.url.database}"
    question = f"Drop {' and '.join(found)} on {where}? Job {job.job} loses its position in the log."
    if found and not yes and not typer.confirm(redact(question)):
        print("Nothing was dropped.")
        return
    for slot in slots:
        if drop_slot(connection, slot):
            print(f"Dropped replication slot {slot}.")
    for number in marks:
        Checkpoint.at(job.checkpoint).forget_upgrade_mark(number)
    if owner is not None and not owner[1]:
        print(redact(f"Kept publication {job.publication}: it belongs to {owner[0]}, who can drop it."))
    elif owner is not None and is_in_recovery(connection):
        print(redact(f"Kept publication {job.publication}: drop it on the primary: {drop_statement(job.publication)}."))
    elif drop_publication(connection, job.publication):
        print(redact(f"Dropped publication {job.publication}."))
    if not found:
        print(redact(f"Nothing to drop: there is no slot {job.slot} and no publication of this role on {where}."))
