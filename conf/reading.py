"""The job file's sections `snapshot` and `log`: how the source's rows and its log are read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated, Any, Literal

import annotated_types
from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, StrictInt, WithJsonSchema

from tidemark.conf.condition import check_condition
from tidemark.conf.problems import did_you_mean
from tidemark.conf.quantities import SIZE_FORM, format_size_bytes, parse_size_bytes
from tidemark.conf.section import Count, Flag, Seconds, Section, Text, Written, refuse
from tidemark.conf.source import NameOfTable
from tidemark.conf.tables import TableName

START_FORM = "earliest | latest | {file: binlog.000001, pos: 4} | {gtid: …} | {lsn: 0/16B3740} | {timestamp: …}"
MIN_POSITION = 4
"""The offset of a binlog file's first event, after four magic bytes."""

_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})", re.ASCII)
_TIMESTAMP = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d{1,6}))?(?P<zone>Z|[+-]\d\d:\d\d)?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class StartAtEnd:
    """A start at one end of the log.

    `earliest`: the first transaction that the log still has. `latest`: the log's end at the job's first start.
    """

    end: Literal["earliest", "latest"]

    def as_written(self) -> str:
        return self.end


@dataclass(frozen=True, slots=True)
class StartAtFile:
    """A start at a binlog file and the offset of a transaction's first event in it."""

    file: str
    pos: int

    def as_written(self) -> dict[str, str | int]:
        return {"file": self.file, "pos": self.pos}


@dataclass(frozen=True, slots=True)
class StartAfterGtids:
    """A start after the transactions of a GTID set (MySQL) or GTID position (MariaDB), in the server's own spelling."""

    gtid: str

    def as_written(self) -> dict[str, str]:
        return {"gtid": self.gtid}


@dataclass(frozen=True, slots=True)
class StartAtTime:
    """A start at the first transaction that was committed at this time (UTC) or later."""

    timestamp: datetime

    def as_written(self) -> dict[str, str]:
        return {"timestamp": self.timestamp.isoformat().replace("+00:00", "Z")}


@dataclass(frozen=True, slots=True)
class StartAtLsn:
    """A start at an LSN, in bytes: the first transaction whose commit record starts there or later."""

    lsn: int

    def as_written(self) -> dict[str, str]:
        return {"lsn": f"{self.lsn >> 32:X}/{self.lsn & 0xFFFFFFFF:X}"}


LogStart = StartAtEnd | StartAtFile | StartAfterGtids | StartAtLsn | StartAtTime


def _read_start(value: Any) -> LogStart:
    match value:
        case StartAtEnd() | StartAtFile() | StartAfterGtids() | StartAtLsn() | StartAtTime():
            return value
        case "earliest" | "latest" as end:
            return StartAtEnd(end)
        case str():
            raise refuse(f"must be {START_FORM}", choices=["earliest", "latest"])
        case Mapping():
            return _start_of_keys(value)
        case _:
            raise refuse(f"must be {START_FORM}")


def _read_start_or_none(value: Any) -> LogStart | None:
    return None if value is None else _read_start(value)


def _start_of_keys(value: Mapping[str, Any]) -> LogStart:
    known = ["file", "pos", "gtid", "lsn", "timestamp"]
    for key in value:
        if key not in known:
            raise refuse(f"unknown key.{did_you_mean(str(key), known)} Allowed here: {', '.join(known)}", key=str(key))
    match sorted(value):
        case ["file", "pos"]:
            return StartAtFile(_text_of(value, "file", "binlog.000001"), _position(value["pos"]))
        case ["gtid"]:
            return StartAfterGtids(_text_of(value, "gtid", "0-1-100"))
        case ["lsn"]:
            return StartAtLsn(_lsn(value["lsn"]))
        case ["timestamp"]:
            return StartAtTime(_timestamp(value["timestamp"]))
        case ["file"] | ["pos"]:
            raise refuse(f"must have both file and pos, or be one of {START_FORM}")
        case _:
            raise refuse(f"must be one of {START_FORM}")


def _text_of(value: Mapping[str, Any], key: str, example: str) -> str:
    text = value[key]
    if not isinstance(text, str) or not text.strip():
        raise refuse(f"must be text like {example}", key=key)
    return text.strip()


def _position(value: Any) -> int:
    if type(value) is not int or value < MIN_POSITION:
        raise refuse(f"must be a whole number, at least {MIN_POSITION}", key="pos")
    return value


def _lsn(value: Any) -> int:
    match = _LSN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise refuse("must be a position in PostgreSQL's log (LSN) like 16/B374D848", key="lsn")
    return int(match[1], 16) << 32 | int(match[2], 16)


def _timestamp(value: Any) -> datetime:
    form = "a date and time with a time zone, like 2024-01-31T12:00:00Z or 2024-01-31T13:00:00+01:00"
    if isinstance(value, datetime):
        value = value.isoformat()
    match = _TIMESTAMP.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise refuse(f"must be {form}", key="timestamp")
    if match["zone"] is None:
        raise refuse(f"has no time zone; must be {form}", key="timestamp")
    day_and_time, zone = match["time"], match["zone"].replace("Z", "+00:00")
    fraction = f".{match['fraction']:0<6}" if match["fraction"] else ""  # Python 3.10 parses only 3 or 6 digits
    try:
        return datetime.fromisoformat(day_and_time + fraction + zone).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        raise refuse(f"does not exist in the calendar; must be {form}", key="timestamp") from None


def _size_or_zero(written: str | int) -> int:
    return 0 if written in (0, "0", "0B") and not isinstance(written, bool) else parse_size_bytes(written)


def _size_or_zero_or_none(written: str | int | None) -> int | None:
    return None if written is None else _size_or_zero(written)


_Condition = Annotated[Text, AfterValidator(check_condition), Written("an SQL condition as text")]


class Snapshot(Section):
    """Settings for reading the existing rows. Not used in mode `incremental`."""

    split_rows: Count = Field(
        50_000, description="Approximate number of rows of a split. A split is in memory while it is read."
    )
    parallelism: Count = Field(
        4,
        description="Number of Spark tasks that read splits. Spark runs as many of them at the same time as it has cores. Each "
        "running task has one connection to the source, in MySQL sometimes two.",
    )
    driver_rows: Annotated[StrictInt, annotated_types.Ge(0), Written("a number of rows; 0 for none")] | None = Field(
        None,
        description="If all tables together have at most about this many rows, and at most 16 splits, the driver reads them "
        "itself, and Spark is not started for them. Default on a cluster: 50000. Default in local mode: threads of the driver "
        "read splits, and Spark is started beside them if more is left than they read in 20 s. 0: Spark reads all splits.",
        examples=[50_000, 0],
    )
    interleave: Flag = Field(
        True,
        description="`true`: the log is read between epochs of splits. Changes of the rows that were copied so far are visible "
        "within seconds, and the source must keep its log for seconds only. `false`: the log is read when all splits are read.",
    )
    max_rows_per_second: Count | None = Field(
        None,
        description="How many rows are read per second on average, to reduce the load on the source. Epochs of splits become "
        "smaller, and the next one waits. The log is followed meanwhile. Tables without a key are not slowed down.",
        examples=[20_000],
    )
    max_replica_lag_seconds: Seconds | None = Field(
        None,
        description="If the source is a replica: no more splits are read while it is further behind its own source, or its "
        "replication has stopped. The log is followed meanwhile. For MySQL and MariaDB. MariaDB needs the grant SLAVE MONITOR. "
        "Tables without a key that are being read do not wait.",
        examples=[30],
    )
    where: Annotated[Mapping[NameOfTable, _Condition], Written("a mapping from tables to SQL conditions")] = Field(
        {},
        description="For each table: which rows the snapshot reads, as an SQL condition of the source. Changes from the log "
        "are copied for all rows.",
        examples=[{"shop.orders": "created_at >= '2024-01-01'"}],
    )

    def condition(self, database: str, table: str) -> str | None:
        """Returns the condition for the table, None to read all rows."""
        return self.where.get(TableName(database, table))


class Log(Section):
    """Settings for reading the log."""

    start: Annotated[
        LogStart | None,
        PlainValidator(_read_start_or_none),
        PlainSerializer(lambda start: None if start is None else start.as_written()),
        WithJsonSchema({}),
        Written(START_FORM),
    ] = Field(
        None,
        description="Position of the log from which a job of mode `incremental` starts, by default `latest`. Not allowed in "
        "other modes, which start with the snapshot. `earliest`: everything that the log still has. `latest`: the log's end "
        "when the job starts. MySQL and MariaDB: file and `pos` of a transaction's start; `gtid`: after these transactions; "
        "`timestamp`: what was committed from then on. PostgreSQL: `lsn`: what was committed at this position or later; "
        "`earliest` and `lsn` need an existing slot.",
        examples=["earliest", {"file": "binlog.000012", "pos": 157}, {"timestamp": "2024-01-31T12:00:00Z"}],
    )
    max_batch_bytes: Annotated[
        int,
        PlainValidator(parse_size_bytes),
        PlainSerializer(format_size_bytes, return_type=str),
        WithJsonSchema({"type": ["string", "integer"]}),
        Written(SIZE_FORM),
    ] = Field(
        67_108_864,
        description="Largest amount of log that an epoch reads. A larger transaction is not split. Units: B, KB, MB, GB, TB "
        "(powers of 1000), KiB, MiB, GiB, TiB (powers of 1024).",
        examples=["64MiB"],
    )
    driver_bytes: Annotated[
        int | None,
        PlainValidator(_size_or_zero_or_none),
        PlainSerializer(lambda size: None if size is None else format_size_bytes(size)),
        WithJsonSchema({"type": ["string", "integer", "null"]}),
        Written(f"{SIZE_FORM}; 0 for none"),
    ] = Field(
        None,
        description="Largest amount of log that the driver reads and writes itself in an epoch. More is read by a Spark task. "
        "By default 16MiB on a cluster, and all in local mode, where a Spark task would be a process of the same machine. A "
        "run that reads no splits and little log never starts Spark. 0: Spark does everything. The delta sink writes by Spark "
        "anyway.",
        examples=["16MiB", 0],
    )
    max_batch_seconds: Seconds = Field(
        10.0,
        description="Longest time that an epoch should take. After an epoch that took longer, the next one reads less log, "
        "but at least 4 MiB.",
    )
    apply_parallelism: Count = Field(
        1,
        description="Sink mirror: how many connections to the target may write an epoch of the log at the same time. Each "
        "writes other tables in its own transaction, and a large table may be divided among them in PostgreSQL, if its key "
        "is made of integers (see sinks.md). With more than 1, if an epoch has 1 MiB of changes or more, its tables, and parts "
        "of such a table, are committed one after the other. Then a reader may see a transaction of the source in one table "
        "and not yet in another one. May be changed at any time.",
        examples=[2],
    )
    ignore_statements_on: Annotated[tuple[NameOfTable, ...], Written("a list of tables, like [ops.heartbeat]")] = Field(
        (),
        description="MySQL and MariaDB: tables that are not copied and that tools write in statement format, such as a "
        "heartbeat table. INSERT, REPLACE, UPDATE and DELETE statements that write only such tables are ignored. Without this "
        "setting they stop the job, unless the server shows that they change no captured table. Make sure that no trigger, "
        "foreign key or function makes such a statement change a captured table.",
        examples=[["ops.heartbeat"]],
    )
