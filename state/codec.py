"""The checkpoint's facts as bytes: one line of header, one line of JSON.

    {"format":"tidemark","kind":"plan","version":1,"crc32":…}
    {"plan":…,"state":…}

A file of another version, of another kind, or with a changed byte is refused, never read as well as may be.
"""

import json
import zlib
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from state.errors import CheckpointError
from state.history import EpochHistory, EventHistory, SplitHistory
from state.job_state import JobState, Joined
from state.log_range import LogReport
from state.partitions import PartitionedTable
from state.plan import PlanRecord
from state.points import PointReading

FORMAT = "tidemark"
VERSION = 9
"""Of all kinds together. Raise it with every change of a field of any of them."""

T = TypeVar("T")


class Codec(Generic[T]):
    """Bytes ↔ one kind of fact."""

    def __init__(self, kind: str, type_: Any) -> None:
        self.kind = kind
        self._adapter: TypeAdapter[T] = TypeAdapter(type_)

    def encode(self, value: T) -> bytes:
        body = self._adapter.dump_json(value)
        return self._header(body) + b"\n" + body + b"\n"

    def decode(self, data: bytes | pa.Buffer, name: str) -> T:
        """`name` is the file's, for the message. Raises CheckpointError."""
        header, _, rest = bytes(data).partition(b"\n")
        body = rest.removesuffix(b"\n")
        self._check_header(header, name)
        if rest != body + b"\n" or header != self._header(body):
            raise _damaged(name, "its content does not have the checksum in its first line")
        try:
            return self._adapter.validate_json(body, strict=True)
        except ValidationError as exc:
            raise _damaged(name, f"{exc.error_count()} fields of it are not what version {VERSION} prescribes") from exc

    def _header(self, body: bytes) -> bytes:
        fields = {"format": FORMAT, "kind": self.kind, "version": VERSION, "crc32": zlib.crc32(body)}
        return json.dumps(fields, separators=(",", ":")).encode()

    def _check_header(self, header: bytes, name: str) -> None:
        try:
            fields = json.loads(header)
        except ValueError as exc:
            raise _damaged(name, "its first line is not JSON") from exc
        if not isinstance(fields, dict) or fields.get("format") != FORMAT or type(fields.get("version")) is not int:
            raise _damaged(name, "its first line is not a Tidemark header")
        if fields["version"] != VERSION:
            raise CheckpointError(
                f"{name} has format version {fields['version']}; this Tidemark knows version {VERSION} only.",
                "Run the job with the Tidemark version that wrote the checkpoint, or start over with an empty one.",
            )
        if fields.get("kind") != self.kind:
            raise _damaged(name, f"it holds {fields.get('kind')!r} where {self.kind!r} is expected")


def _damaged(name: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint file {name} is damaged: {reason}.",
        "Restore the checkpoint folder from a copy, or start over with an empty checkpoint and an empty target.",
    )


PLAN: Codec[PlanRecord] = Codec("plan", PlanRecord)
JOB: Codec[JobState] = Codec("job", JobState)
JOINED: Codec[Joined] = Codec("joined", Joined)
PARTITIONS: Codec[tuple[PartitionedTable, ...]] = Codec("partitions", tuple[PartitionedTable, ...])
LOG_REPORT: Codec[LogReport] = Codec("log_report", LogReport)
POINTS: Codec[tuple[PointReading, ...]] = Codec("points", tuple[PointReading, ...])
EPOCHS: Codec[EpochHistory] = Codec("epochs", EpochHistory)
SPLITS: Codec[SplitHistory] = Codec("splits", SplitHistory)
EVENTS: Codec[EventHistory] = Codec("events", EventHistory)
