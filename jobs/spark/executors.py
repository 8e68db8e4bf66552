"""Checks that the executors of a cluster share the job's checkpoint with the driver."""

import socket
import uuid
from dataclasses import dataclass
from functools import partial

from pyspark import SparkContext, SparkFiles

from tidemark.state.checkpoint.layout import NOT_SHARED_REMEDY, Checkpoint
from tidemark.state.errors import CheckpointError

MAX_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class _Look:
    """The finding of one task. `executor`: its working folder, which identifies the executor. `mark`: the file that the task
    wrote. `problem`: "" if there is none."""

    executor: str
    host: str
    mark: str
    problem: str


def require_shared_checkpoint(context: SparkContext, checkpoint: Checkpoint, job_uuid: str) -> None:
    """Lets every executor read the job's checkpoint and write a file there that the driver must find. Raises CheckpointError
    with the hosts that can't. Does nothing in local mode, where driver and executor share all files."""
    if str(context.master).partition("[")[0] == "local":
        return
    seen: dict[str, _Look] = {}
    for _ in range(MAX_ROUNDS):  # executors register while the first round runs
        for look in _ask(context, checkpoint, job_uuid):
            if not look.problem and checkpoint.store.read(look.mark) is None:
                raise _not_shared(
                    checkpoint, f"The driver does not find the file that an executor on {look.host} wrote."
                )
            checkpoint.store.delete(look.mark)
            seen[look.executor] = look
        if len(seen) >= _executor_count(context):
            break
    problems = {f"{look.host}: {look.problem}" for look in seen.values() if look.problem}
    if problems:
        raise _not_shared(checkpoint, " ".join(sorted(problems)))


def _ask(context: SparkContext, checkpoint: Checkpoint, job_uuid: str) -> list[_Look]:
    count = 2 * context.defaultParallelism  # enough tasks for every slot
    looks: list[_Look] = (
        context.parallelize(range(count), count).map(partial(_look, checkpoint.url, job_uuid)).collect()
    )
    return looks


def _look(url: str, job_uuid: str, _number: int) -> _Look:
    checkpoint = Checkpoint.at(url)
    mark, problem = f"seen-{uuid.uuid4()}", ""
    try:
        checkpoint.require_job(job_uuid)
        checkpoint.store.create(mark, b"seen")
    except (CheckpointError, OSError) as error:
        problem = error.message if isinstance(error, CheckpointError) else f"{error}."
    return _Look(SparkFiles.getRootDirectory(), socket.gethostname(), mark, problem)


def _executor_count(context: SparkContext) -> int:
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # with the driver


def _not_shared(checkpoint: Checkpoint, text: str) -> CheckpointError:
    return CheckpointError(f"Executors don't share the checkpoint {checkpoint.url}. {text}", NOT_SHARED_REMEDY)
