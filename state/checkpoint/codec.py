"""The checkpoint's facts as bytes: one line of header, one line of JSON.

    {"format":"tidemark","kind":"plan","version":1,"product":"0.1.0","crc32":…}
    {"plan":…,"state":…}

Each kind of file has a version of its own, counted from 1. `product` is the Tidemark that wrote the file. The checksum
covers the header before it and the JSON.

A file of an older version is upgraded on reading, one version after the other (state/checkpoint/upgrades.py). A file of
a newer or unknown version, of another kind, or with a changed byte is refused. It is never read in part.

state/checkpoint/upgrades.py says what to do when the fields of a kind change.
"""

import functools
import json
import zlib
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from tidemark import __version__
from tidemark.state.checkpoint.history import EpochHistory, EventHistory, RunRecord, SplitHistory
from tidemark.state.checkpoint.records import Again, Cut
from tidemark.state.checkpoint.upgrades import UPGRADES, Upgrade
from tidemark.state.errors import CheckpointError
from tidemark.state.job_state import Altered, JobState, Joined, Left
from tidemark.state.key_rereads import KeyReread
from tidemark.state.log_range import LogReport
from tidemark.state.partitions import WatchedTable
from tidemark.state.plan import PlanRecord
from tidemark.state.remedies import RESTORE_CHECKPOINT, START_OVER
from tidemark.state.seen_copy import SeenCopy
from tidemark.state.signals import Answer, FirstRows, Signal
from tidemark.state.sink_identity import SinkIdentity
from tidemark.state.split import Report
from tidemark.state.upgrade_mark import UpgradeMark

FORMAT = "tidemark"

T = TypeVar("T")


class Codec(Generic[T]):
    """Bytes ↔ one kind of fact. `version` is what `encode` writes; `upgrades` lead from older versions to it."""

    def __init__(
        self, kind: str, type_: Any, version: int, upgrades: Mapping[tuple[str, int], Upgrade] = UPGRADES
    ) -> None:
        self.kind = kind
        self.version = version
        self._upgrades = upgrades
        self._type = type_
        self._last: tuple[bytes, T] | None = None

    @functools.cached_property
    def _adapter(self) -> TypeAdapter[T]:
        """Built at its first use: a process needs few kinds, and all of them took a sixth of a start's processor time."""
        return TypeAdapter(self._type)

    def encode(self, value: T) -> bytes:
        body = self.body(value)
        fields = {"format": FORMAT, "kind": self.kind, "version": self.version, "product": __version__}
        return _header(fields, body) + b"\n" + body + b"\n"

    def body(self, value: T) -> bytes:
        """The JSON alone: the same for equal values, whichever Tidemark writes it."""
        return self._adapter.dump_json(value)

    def decode(self, data: bytes | pa.Buffer, name: str) -> T:
        """`name` is the file's, for the message. Raises CheckpointError. Facts are immutable, and the file of a job with
        hundreds of tables is read again and again, so the value of the last bytes is kept."""
        content = bytes(data)
        if self._last is None or self._last[0] != content:
            self._last = content, self._decoded(content, name)
        return self._last[1]

    def _decoded(self, data: bytes, name: str) -> T:
        header, _, rest = data.partition(b"\n")
        body = rest.removesuffix(b"\n")
        fields = _fields_of(header, name)
        version = self._readable_version(fields, name)
        if rest != body + b"\n" or header != _header(fields, body):
            raise _damaged(name, "its content does not have the checksum in its first line")
        try:
            return self._adapter.validate_json(self._upgraded(body, version), strict=True)
        except ValidationError as exc:
            problems = (
                f"{exc.error_count()} of its fields are not what version {self.version} of a {self.kind} file has"
            )
            raise _damaged(name, problems) from exc

    def json_schema(self) -> dict[str, Any]:
        """The fields of this version, as pydantic describes them."""
        return self._adapter.json_schema(mode="serialization")

    def _readable_version(self, fields: Mapping[str, Any], name: str) -> int:
        if fields.get("kind") != self.kind:
            raise _damaged(name, f"it contains {fields.get('kind')!r} where {self.kind!r} is expected")
        version: int = fields["version"]
        writer = f"Tidemark {fields['product']}" if "product" in fields else "a development version of Tidemark"
        found = f"{name} has version {version} of the format of {self.kind} files, written by {writer}"
        if "product" in fields and version > self.version:
            raise CheckpointError(
                f"{found}. This Tidemark, {__version__}, knows versions up to {self.version}.",
                f"Run the job with {writer} or a later one.",
            )
        if "product" not in fields or any((self.kind, n) not in self._upgrades for n in range(version, self.version)):
            raise CheckpointError(
                f"{found}. This Tidemark, {__version__}, can't read it.",
                f"Run the job with the Tidemark version that wrote the checkpoint, or {START_OVER}.",
            )
        return version

    def _upgraded(self, body: bytes, version: int) -> bytes:
        if version == self.version:
            return body
        value = json.loads(body)
        for step in range(version, self.version):
            value = self._upgrades[self.kind, step](value)
        return json.dumps(value).encode()


def is_torn(data: bytes | pa.Buffer) -> bool:
    """True if a power cut may have left this of a file that was being written: nothing, only its beginning, or zeros."""
    content = bytes(data)
    return not content.endswith(b"\n") or content.count(b"\n") != 2 or b"\0" in content


def _header(fields: Mapping[str, Any], body: bytes) -> bytes:
    """The first line: `fields`, then the checksum of the other fields and `body`."""
    covered = {name: value for name, value in fields.items() if name != "crc32"}
    crc32 = zlib.crc32(body, zlib.crc32(_json(covered)))
    return _json({**covered, "crc32": crc32})


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _fields_of(header: bytes, name: str) -> dict[str, Any]:
    try:
        fields = json.loads(header)
    except ValueError as exc:
        raise _damaged(name, "its first line is not JSON") from exc
    if not isinstance(fields, dict) or fields.get("format") != FORMAT or type(fields.get("version")) is not int:
        raise _damaged(name, "its first line is not a Tidemark header")
    return fields


def _damaged(name: str, reason: str) -> CheckpointError:
    return CheckpointError(f"The checkpoint file {name} is damaged: {reason}.", RESTORE_CHECKPOINT)


PLAN: Codec[PlanRecord] = Codec("plan", PlanRecord, version=1)
JOB: Codec[JobState] = Codec("job", JobState, version=1)
JOINED: Codec[Joined] = Codec("joined", Joined, version=1)
JOINED_LIST: Codec[tuple[Joined, ...]] = Codec("joined_list", tuple[Joined, ...], version=1)
CUT: Codec[Cut] = Codec("cut", Cut, version=1)
AGAIN: Codec[Again] = Codec("again", Again, version=1)
LEFT: Codec[tuple[Left, ...]] = Codec("left", tuple[Left, ...], version=1)
ALTERED: Codec[Altered] = Codec("altered", Altered, version=1)
SIGNAL: Codec[Signal] = Codec("signal", Signal, version=1)
ANSWER: Codec[Answer] = Codec("answer", Answer, version=1)
FIRST_ROWS: Codec[FirstRows] = Codec("first_rows", FirstRows, version=1)
UPGRADE_MARK: Codec[UpgradeMark] = Codec("upgrade_mark", UpgradeMark, version=1)
SINK: Codec[SinkIdentity] = Codec("sink", SinkIdentity, version=1)
SEEN_COPIES: Codec[tuple[SeenCopy, ...]] = Codec("seen_copies", tuple[SeenCopy, ...], version=1)
PARTITIONS: Codec[tuple[WatchedTable, ...]] = Codec("partitions", tuple[WatchedTable, ...], version=1)
PUBLISHED_SPLIT: Codec[Report] = Codec("published_split", Report, version=1)
LOG_REPORT: Codec[LogReport] = Codec("log_report", LogReport, version=1)
KEY_REREADS: Codec[tuple[KeyReread, ...]] = Codec("key_rereads", tuple[KeyReread, ...], version=1)
EPOCHS: Codec[EpochHistory] = Codec("epochs", EpochHistory, version=1)
SPLITS: Codec[SplitHistory] = Codec("splits", SplitHistory, version=1)
EVENTS: Codec[EventHistory] = Codec("events", EventHistory, version=1)
RUN: Codec[RunRecord] = Codec("run", RunRecord, version=1)

CODECS: tuple[Codec[Any], ...] = (
    PLAN,
    JOB,
    JOINED,
    JOINED_LIST,
    CUT,
    AGAIN,
    LEFT,
    ALTERED,
    SIGNAL,
    ANSWER,
    FIRST_ROWS,
    UPGRADE_MARK,
    SINK,
    SEEN_COPIES,
    PARTITIONS,
    PUBLISHED_SPLIT,
    LOG_REPORT,
    KEY_REREADS,
    EPOCHS,
    SPLITS,
    EVENTS,
    RUN,
)
"""Every kind. `finished/` and the rows of `published/` have formats of their own, with their own versions
(readers/log/gap_filter.py, readers/snapshot/published_file.py)."""
