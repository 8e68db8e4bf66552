"""The layout of a job's checkpoint, and the ways to read and write its parts.

    job                     what the job is (JobState), written once, before the first read
    joined/0000000001       tables that a later start found (Joined), written before anything of them is read
    plans/e0000000042       an epoch's plan and the enumerator's state after it (PlanRecord)
    partitions/9f2c…        PostgreSQL: what partitioned tables consist of, as the newest plan knows it
    published/e…            an epoch's split rows with their reports, until the epoch is committed
    collected/g…            splits by pages with their reports, until all of their generation are emitted
    logs/e0000000042        what an epoch's log range was found to hold (LogReport)
    routes/e0000000042      the splits that an epoch finished, as the gap filter reads them, until the log has passed them
    copies/shop.orders      which table of the target is the copy, where the sink keeps that here
    points/e0000000042      keys whose rows an epoch read again (PointReading), until the log has passed them
    history/epochs-…        what the job did, for people: also splits-… and events-… (jobs/history.py); may be missing
    spark/                  Spark's own checkpoint of the streaming query

Every part is written once and never changed. What is missing or damaged is an error, never read as "nothing there yet".
"""

import hashlib
import json
import socket
from dataclasses import dataclass

from state.codec import JOB, JOINED, LOG_REPORT, PARTITIONS, PLAN, POINTS
from state.errors import CheckpointError
from state.job_state import JobState, Joined
from state.log_range import LogReport
from state.partitions import KeptPartitions, Partitions
from state.plan import PlanRecord
from state.points import PointReading
from state.store import CheckpointStore, open_store, require_create_if_absent

KEPT_PLANS = 100
"""Plans of committed epochs that stay, for `tidemark checkpoints list`."""


NOT_SHARED_REMEDY = (
    "Put `checkpoint` on storage that the driver and all executors have under the same path, and may write to."
)


def epoch_name(epoch: int) -> str:
    return f"e{epoch:010d}"


def _joined_name(number: int) -> str:
    return f"joined/{number:010d}"


def _another_driver(name: str, url: str) -> CheckpointError:
    return CheckpointError(
        f"Another driver wrote {name} of {url}.", "Stop all drivers of this job and start one again."
    )


def _other_reading(epoch: int) -> CheckpointError:
    return CheckpointError(
        f"Two readings of the log range of epoch {epoch} found different things.",
        "The source's log changed while it was read: check that the server was not restored or reset, then start over "
        "with an empty checkpoint and an empty target.",
    )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`url` is the job file's `checkpoint`."""

    url: str
    store: CheckpointStore

    @classmethod
    def at(cls, url: str) -> "Checkpoint":
        return cls(url, open_store(url))

    def spark_folder(self) -> str:
        return f"{self.url.rstrip('/')}/spark"

    def job_state(self) -> JobState | None:
        """With the tables that joined; None where the job was never started. Raises CheckpointError where `job` is gone but
        other parts are there."""
        data = self.store.read("job")
        if data is None:
            if any(self.store.list(folder) for folder in ("joined", "plans", "published", "logs", "routes", "spark")):
                raise CheckpointError(
                    f"The checkpoint {self.url} has lost its file `job`.",
                    "Restore the folder from a copy, or start over with an empty checkpoint and an empty target.",
                )
            return None
        state = JOB.decode(data, "job")
        for number in range(1, len(self.store.list("joined")) + 1):
            state = state.with_joined(JOINED.decode(self._read(_joined_name(number)), _joined_name(number)))
        return state

    def create_joined(self, state: JobState, joined: Joined) -> JobState:
        """Lets tables join. Raises CheckpointError where somebody else drives this job."""
        name = _joined_name(len(state.joined) + 1)
        if not self.store.create(name, JOINED.encode(joined)):
            raise _another_driver(name, self.url)
        return state.with_joined(joined)

    def require_job(self, job_uuid: str) -> None:
        """Raises CheckpointError where this process does not find the job there: an executor without that storage."""
        state = self.job_state()
        if state is None or state.job_uuid != job_uuid:
            holds = "is empty" if state is None else f"holds job {state.job_uuid}, not {job_uuid}"
            raise CheckpointError(f"On {socket.gethostname()} the checkpoint {self.url} {holds}.", NOT_SHARED_REMEDY)

    def create_job_state(self, state: JobState) -> JobState:
        """Writes it, and returns what is there: another driver may have been first. Raises CheckpointError where the
        storage can't decide who was."""
        require_create_if_absent(self.store)
        self.store.create("job", JOB.encode(state))
        written = self.job_state()
        if written is None:
            raise CheckpointError(f"The checkpoint {self.url} does not keep its files.", "Check the folder's storage.")
        return written

    def plan_epochs(self) -> list[int]:
        """The epochs whose plans are there, ascending."""
        return sorted(int(name.rpartition("/e")[2]) for name in self.store.list("plans"))

    def plan(self, epoch: int) -> PlanRecord:
        return PLAN.decode(self._read(f"plans/{epoch_name(epoch)}"), f"plans/{epoch_name(epoch)}")

    def create_plan(self, record: PlanRecord) -> None:
        """Raises CheckpointError where the epoch has a plan already: somebody else drives this job."""
        name = f"plans/{epoch_name(record.plan.epoch)}"
        if not self.store.create(name, PLAN.encode(record)):
            raise _another_driver(name, self.url)

    def keep_partitions(self, partitions: Partitions) -> KeptPartitions:
        """Under a name that follows from the content: what is there already is not written again."""
        data = PARTITIONS.encode(partitions.tables)
        name = hashlib.sha256(data).hexdigest()[:32]
        self.store.create(f"partitions/{name}", data)
        return KeptPartitions(name, partitions.ended_xid)

    def partitions(self, kept: KeptPartitions) -> Partitions:
        name = f"partitions/{kept.name}"
        return Partitions(kept.ended_xid, PARTITIONS.decode(self._read(name), name))

    def forget_partitions(self, but: KeptPartitions) -> None:
        """Once a plan with `but` is durable: no restart needs what older ones had."""
        for known in self.store.list("partitions"):
            if known != f"partitions/{but.name}":
                self.store.delete(known)

    def committed_epoch(self) -> int:
        """The last epoch that Spark's query has committed, 0 before the first; read from Spark's own log."""
        batches = [int(name.rpartition("/")[2]) for name in self.store.list("spark/commits")]
        if not batches:
            return 0
        offsets = self._read(f"spark/offsets/{max(batches)}").decode()
        return int(json.loads(offsets.splitlines()[-1])["epoch"])

    def has_log_report(self, epoch: int) -> bool:
        return self.store.read(f"logs/{epoch_name(epoch)}") is not None

    def log_report(self, epoch: int) -> LogReport:
        return LOG_REPORT.decode(self._read(f"logs/{epoch_name(epoch)}"), f"logs/{epoch_name(epoch)}")

    def create_log_report(self, epoch: int, report: LogReport) -> None:
        """The range is read alike by every attempt, so a report that differs from the one there is an error."""
        name = f"logs/{epoch_name(epoch)}"
        if not self.store.create(name, LOG_REPORT.encode(report)) and self.log_report(epoch) != report:
            raise _other_reading(epoch)

    def points_before(self, epoch: int) -> tuple[PointReading, ...]:
        """What earlier epochs read again, in the order of epochs."""
        names = [name for name in self.store.list("points") if name < f"points/{epoch_name(epoch)}"]
        return tuple(reading for name in names for reading in POINTS.decode(self._read(name), name))

    def create_points(self, epoch: int, readings: tuple[PointReading, ...]) -> None:
        """What an epoch read again, before its log report. Every attempt takes the same rows, so others are an error."""
        name, data = f"points/{epoch_name(epoch)}", POINTS.encode(readings)
        if not self.store.create(name, data) and self._read(name) != data:
            raise _other_reading(epoch)

    def forget_before(self, epoch: int) -> None:
        """Removes plans and log reports that no restart can need, once all epochs before `epoch` are committed."""
        for known in self.plan_epochs():
            if known < epoch - KEPT_PLANS:
                self.store.delete(f"plans/{epoch_name(known)}")
                self.store.delete(f"logs/{epoch_name(known)}")

    def _read(self, name: str) -> bytes:
        data = self.store.read(name)
        if data is None:
            raise CheckpointError(
                f"The checkpoint {self.url} has lost its file {name}.",
                "Restore the folder from a copy, or start over with an empty checkpoint and an empty target.",
            )
        return bytes(data)
