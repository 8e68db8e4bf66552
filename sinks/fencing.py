"""The fence: what the target's own record of a job refuses, whoever writes.

A process may freeze at any point and go on hours later, when another driver has taken the job over. And a target may be set
back: restored from a backup, failed over to a standby that lagged behind, or exchanged. So the target's record has the number
of the driver that owns it (a greater one for each driver), and how far the copy has come. A write that does not fit is
refused. docs/adr/0021 has the reasons.
"""

from tidemark.sinks.sink import JobIdentity, Written
from tidemark.state.errors import (
    CheckpointError,
    JobHeldError,
    PublishedLostError,
    SinkError,
    TargetSetBackError,
)
from tidemark.state.reached import Reached
from tidemark.state.remedies import LATE, RESTORE_CHECKPOINT, START_OVER
from tidemark.state.table import TableId

_REFUSED = "The write was refused, and nothing of it took effect."
_PUT_BACK = (
    "Put back the newest state of the target, whole and with Tidemark's own tables or files, then start the job again; or "
    f"{START_OVER}."
)


def require_owner(job: JobIdentity, found: int | None, place: object) -> None:
    """Raises unless the driver of `job` is the owner that `place` names. `found` None: it names none."""
    if found == job.owner:
        return
    if found is not None and found > job.owner:
        raise taken_over(job, found, place)
    raise TargetSetBackError(
        f"{place} names driver {found} as owner of job {job.name}, and not driver {job.owner}, which has written there: the "
        f"target was set back or exchanged. {_REFUSED}",
        _PUT_BACK,
    )


def taken_over(job: JobIdentity, found: int, place: object) -> JobHeldError:
    return JobHeldError(
        f"Another driver has taken over job {job.name}: {place} names driver {found}, and this one is driver {job.owner}. "
        f"{_REFUSED}",
        "If the other driver runs, leave the job to it. If none runs, start the job again. If that does not help, the "
        f"checkpoint was set back: put back its newest files, or {START_OVER}.",
    )


def require_order(epoch: int, after: Reached | None, written: Written, place: object) -> None:
    """Raises SinkError unless the target has what must come before this epoch of the log. `after` None: not known."""
    if written.log_epoch >= epoch:
        raise late(epoch, written.log_epoch, place)
    found = written.before(epoch)
    if after is not None and found != after:
        raise set_back(f"epoch {epoch} of the log needs", after, found, place)


def late(epoch: int, reached: int, place: object) -> SinkError:
    return SinkError(
        f"Epoch {epoch} comes too late: {place} has epoch {reached} of the log. {_REFUSED}",
        LATE,
    )


def set_back(what: str, expected: Reached, found: Reached, place: object) -> SinkError:
    return TargetSetBackError(
        f"The target was set back or exchanged: {what} log epoch {expected.log_epoch} and {expected.splits} splits after it, "
        f"but {place} has log epoch {found.log_epoch} and {found.splits} splits. {_REFUSED}",
        _PUT_BACK,
    )


def published_lost(name: str, table: TableId) -> PublishedLostError:
    """The error for a file with rows of a split that the target has."""
    return PublishedLostError(
        f"The checkpoint has lost its file {name}: rows of {table} that the target has. They can't be read again as they were.",
        RESTORE_CHECKPOINT,
        table,
    )


def require_planned(epoch: int, planned: int, target: object) -> None:
    """Raises CheckpointError if the target has an epoch that the checkpoint has no plan of. `planned`: the newest with one."""
    if epoch > planned:
        raise CheckpointError(
            f"{target} has epoch {epoch}, but the newest plan of the checkpoint is that of epoch {planned}: the checkpoint was "
            "set back, or lost files.",
            f"Put back the checkpoint's newest files, or {START_OVER}.",
        )


def require_same_time(written: Written, reached: Reached, committed: int, planned: int) -> None:
    """Raises unless target and checkpoint are of the same time.

    `reached`: what the target had when epoch `committed` was. `planned`: the newest epoch with a plan, `committed` or the one
    after it. The target may have it, whole or in part. SinkError: the target is behind. CheckpointError: the checkpoint is.
    """
    require_planned(written.last_epoch, planned, "The target")
    if planned > committed and written.log_epoch == planned:
        return  # its transaction saw all that came before
    found = written.before(committed + 1)
    if found != reached:
        raise set_back("the checkpoint says that it had", reached, found, "its own record")
