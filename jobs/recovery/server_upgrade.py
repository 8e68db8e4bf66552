"""A PostgreSQL source before and after pg_upgrade, and a server that a person says is the job's (docs/adr/0070).

tidemark run JOB.yaml --before-upgrade → the log is read to its end, a mark is left → pg_upgrade
→ another server answers, exit 4 → tidemark signal accept-server N → the job goes on there (another_server.py)
"""

import time
import uuid
from dataclasses import dataclass

from tidemark.conf.model import JobFile
from tidemark.jobs.monitoring.events import Events
from tidemark.jobs.recovered_state import recover_state
from tidemark.jobs.sources import find_source
from tidemark.jobs.tables.parking import to_be_found
from tidemark.jobs.tables.partition_watch import partitions_of_plan
from tidemark.readers.source import FoundSource, OutlivesUpgrade
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import CheckpointError, JobFileError, LogPositionLostError, SourceNotUsableError
from tidemark.state.failpoints import failpoint
from tidemark.state.job_state import JobState
from tidemark.state.phase import Phase
from tidemark.state.position import Position
from tidemark.state.remedies import START_OVER_NOW
from tidemark.state.upgrade_mark import Upgraded, UpgradeMark

ATTEMPTS = 5
"""How often the log is read to its end until no transaction was written meanwhile."""
_STOP_WRITES = (
    "Stop all that writes to any database of the server, and autovacuum (ALTER SYSTEM SET autovacuum = off; SELECT "
    "pg_reload_conf()), and run it again."
)


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of the source's log before a run. `next_xid`: the server's next transaction, None while one was open."""

    next_xid: int | None
    position: Position


def require_outlives_upgrade(job: JobFile) -> None:
    """Raises JobFileError if the job has no log that an upgrade could keep."""
    if job.source.url.kind != "postgresql" or job.mode == "full":
        what = f"in mode {job.mode}" if job.source.url.kind == "postgresql" else f"of {job.source.url.kind}"
        raise JobFileError(
            f"--before-upgrade is for jobs that follow the log of PostgreSQL, not for one {what}.", "Leave it out."
        )


def log_end_of(job: JobFile, state: JobState) -> LogEnd:
    """Raises SourceNotUsableError if no upgrade of the server keeps its log."""
    with find_source(to_be_found(job, state), state) as found:
        source = _outliving(found)
        next_xid = source.next_transaction()
        return LogEnd(next_xid, source.log_end())


def leave_mark(job: JobFile, state: JobState, before: LogEnd, events: Events) -> bool:
    """Leaves the mark with which the job goes on after an upgrade, durably. Returns False if a transaction was written since
    `before`: then the log must be read to its end again. Only the lease's holder may, after the run that has read up to
    `before`."""
    checkpoint = Checkpoint.at(job.checkpoint)
    now = recover_state(checkpoint, job, state)
    if now.phase is not Phase.STREAM or now.position.order < before.position.order:
        raise CheckpointError(
            f"The job is in phase {now.phase.value} at {now.position}, and has not read the log to its end.",
            "Let the job run until its first load is complete, and run it again with --before-upgrade.",
        )
    if before.next_xid is None:
        return False
    with find_source(to_be_found(job, state), state) as found:
        source = _outliving(found)
        _remove_marks(checkpoint, source)
        mark = UpgradeMark(
            found.identity(),
            now.position,
            before.next_xid,
            now.totals.transactions,
            f"{job.slot[:40]}_{uuid.uuid4().hex[:16]}",
            time.time_ns() // 1000,
        )
        checkpoint.create_upgrade_mark(mark)  # before the slot: its name must not be lost, because it keeps the log
        failpoint("upgrade.marked")
        source.set_mark(mark)
        failpoint("upgrade.slot")
        if source.next_transaction() != before.next_xid:
            _remove_marks(checkpoint, source)
            return False
    text = (
        f"The log is read up to {now.position}, and the replication slot {job.slot} has consumed it. Shut the server down now, "
        "before anything else is written, and upgrade it."
    )
    events.note("marked", position=str(now.position), text=text)
    return True


def still_written() -> SourceNotUsableError:
    return SourceNotUsableError(
        "Transactions are still written or open on the server: after each look at the log there were new ones.",
        _STOP_WRITES,
    )


def tidy_marks(job: JobFile, found: FoundSource, state: JobState) -> None:
    """Removes the marks and their slots, which keep the server's log, unless nothing was written since: the server may be
    upgraded yet. Only the lease's holder may."""
    checkpoint = Checkpoint.at(job.checkpoint)
    marks = checkpoint.upgrade_marks()
    if not marks or not isinstance(found, OutlivesUpgrade):
        return
    newest = marks[max(marks)]
    if newest.server_identity == found.identity() and newest.next_xid == found.next_transaction():
        return
    _remove_marks(checkpoint, found)


def _remove_marks(checkpoint: Checkpoint, source: OutlivesUpgrade) -> None:
    for number, mark in checkpoint.upgrade_marks().items():
        source.remove_mark(mark)
        failpoint("upgrade.slot_removed")
        checkpoint.forget_upgrade_mark(number)


def was_accepted(checkpoint: Checkpoint, state: JobState, system: str) -> bool:
    """True if a person has said, since the job has moved last, that it may go on at the server with this identifier."""
    return any(
        signal.kind == "accept-server"
        and signal.value == system
        and signal.at_us > state.moved_at_us
        and (answer is None or answer.accepted)
        for signal, answer in checkpoint.signals().values()
    )


def after_upgrade(job: JobFile, checkpoint: Checkpoint, state: JobState, source: OutlivesUpgrade) -> Upgraded:
    """Returns what is proven of the server. Raises LogPositionLostError, with the reason, if nothing is."""
    marks = checkpoint.upgrade_marks()
    now = recover_state(checkpoint, job, state)
    before = partitions_of_plan(checkpoint, state, checkpoint.committed_epoch())
    if not marks or before is None:
        raise LogPositionLostError(
            "It is not proven that its log has all changes: the last run at the old server was not tidemark run JOB.yaml "
            "--before-upgrade.",
            START_OVER_NOW,
        )
    mark = marks[max(marks)]
    if mark.server_identity != state.server_identity or now.position.order < mark.position.order:
        raise LogPositionLostError(
            f"It is not proven that its log has all changes: the job was at {mark.position} of {mark.server_identity} after "
            "tidemark run JOB.yaml --before-upgrade.",
            START_OVER_NOW,
        )
    if now.totals.transactions != mark.transactions:
        raise LogPositionLostError(
            "It may lack changes: the job has read some at the old server after tidemark run JOB.yaml --before-upgrade.",
            START_OVER_NOW,
        )
    return source.after_upgrade(state, mark, before)


def accept_command(system: str) -> str:
    return f"tidemark signal JOB.yaml accept-server {system}"


def _outliving(found: FoundSource) -> OutlivesUpgrade:
    assert isinstance(found, OutlivesUpgrade)  # require_outlives_upgrade
    return found
