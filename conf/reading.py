"""The job file's `snapshot` and `log` sections: how the source's rows and its log are read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated, Any, Literal

import annotated_types
from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, StrictInt, WithJsonSchema

from conf.condition import check_condition
from conf.problems import did_you_mean
from conf.quantities import SIZE_FORM, format_size_bytes, parse_size_bytes
from conf.section import Count, Flag, Seconds, Section, Text, Written, not_supported_yet, refuse
from conf.source import NameOfTable
from conf.tables import TableName

START_FORM = "earliest | latest | {file: binlog.000001, pos: 4} | {gtid: …} | {lsn: 0/16B3740} | {timestamp: …}"
SMALLEST_POSITION = 4
"""A binlog file's first event starts behind its four magic bytes."""

_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})", re.ASCII)
_TIMESTAMP = re.compile(
    r"(?P<moment>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d{1,6}))?(?P<zone>Z|[+-]\d\d:\d\d)?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class StartAtEnd:
    """`earliest`: the first transaction that the log still has. `latest`: the log end when the job starts first."""

    end: Literal["earliest", "latest"]

    def as_written(self) -> str:
        return self.end


@dataclass(frozen=True, slots=True)
class StartAtFile:
    """A binlog file and the offset of a transaction's first event in it."""

    file: str
    pos: int

    def as_written(self) -> dict[str, str | int]:
        return {"file": self.file, "pos": self.pos}


@dataclass(frozen=True, slots=True)
class StartAfterGtids:
    """After the transactions of this GTID set (MySQL) or GTID position (MariaDB), in the server's own spelling."""

    gtid: str

    def as_written(self) -> dict[str, str]:
        return {"gtid": self.gtid}


@dataclass(frozen=True, slots=True)
class StartAtTime:
    """The first transaction committed at this moment (UTC) or later."""

    timestamp: datetime

    def as_written(self) -> dict[str, str]:
        return {"timestamp": self.timestamp.isoformat().replace("+00:00", "Z")}


@dataclass(frozen=True, slots=True)
class StartAtLsn:
    """A place in PostgreSQL's log, as a number of bytes: transactions whose commit record starts there or later."""

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
            return StartAtTime(_moment(value["timestamp"]))
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
    if type(value) is not int or value < SMALLEST_POSITION:
        raise refuse(f"must be a whole number, at least {SMALLEST_POSITION}", key="pos")
    return value


def _lsn(value: Any) -> int:
    match = _LSN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise refuse("must be a place in PostgreSQL's log like 16/B374D848", key="lsn")
    return int(match[1], 16) << 32 | int(match[2], 16)


def _moment(value: Any) -> datetime:
    form = "a moment with its zone, like 2024-01-31T12:00:00Z or 2024-01-31T13:00:00+01:00"
    if isinstance(value, datetime):
        value = value.isoformat()
    match = _TIMESTAMP.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise refuse(f"must be {form}", key="timestamp")
    if match["zone"] is None:
        raise refuse(f"has no zone; must be {form}", key="timestamp")
    day_and_time, zone = match["moment"], match["zone"].replace("Z", "+00:00")
    fraction = f".{match['fraction']:0<6}" if match["fraction"] else ""  # Python 3.10 reads 3 or 6 digits only
    try:
        return datetime.fromisoformat(day_and_time + fraction + zone).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        raise refuse(f"is no moment of the calendar; must be {form}", key="timestamp") from None


def _only_false(value: bool) -> bool:
    if value:
        raise refuse(not_supported_yet("following the log while splits are still being read (interleave: true)"))
    return value


_Condition = Annotated[Text, AfterValidator(check_condition), Written("an SQL condition as text")]


class Snapshot(Section):
    """How the rows that exist are read. Not used in mode `incremental`."""

    split_rows: Count = Field(50_000, description="Rows per split, about. A split is held in memory while it is read.")
    parallelism: Count = Field(
        4,
        description="Splits read at the same time; each has one connection to the source, whatever the executors' "
        "cores.",
    )
    interleave: Annotated[Flag, AfterValidator(_only_false)] = Field(
        False, description="Follow the log while splits are still being read. Only `false` for now."
    )
    where: Annotated[Mapping[NameOfTable, _Condition], Written("a mapping from tables to SQL conditions")] = Field(
        {},
        description="Per table: which rows the snapshot reads, as an SQL condition of the source. Changes from the "
        "log are "
        "copied for all rows.",
        examples=[{"shop.orders": "created_at >= '2024-01-01'"}],
    )

    def condition(self, database: str, table: str) -> str | None:
        """The condition for the table, None to read all its rows."""
        return self.where.get(TableName(database, table))


class Reconnect(Section):
    """What happens when the log connection breaks."""

    attempts: Annotated[StrictInt, annotated_types.Ge(0)] = Field(
        10,
        description="Attempts in a row, with growing delays, before the job stops; 0: none. Each is counted in the "
        "metrics.",
    )
    max_delay_seconds: Seconds = Field(30.0, description="The longest delay between two attempts.")


class Log(Section):
    """How the log is followed."""

    start: Annotated[
        LogStart | None,
        PlainValidator(_read_start_or_none),
        PlainSerializer(lambda start: None if start is None else start.as_written()),
        WithJsonSchema({}),
        Written(START_FORM),
    ] = Field(
        None,
        description="Where a first start in mode `incremental` begins (there: `latest` unless given); not allowed in "
        "other "
        "modes, as these begin with the snapshot. `earliest`: all that the log still has. `latest`: its end when the "
        "job "
        "starts. MySQL and MariaDB: a file and position must be a transaction's start; `gtid`: after these transactions; "
        "`timestamp`: what was committed from then on. PostgreSQL: `lsn`: what was committed at this place or later; "
        "`earliest` and `lsn` need a slot that is there already.",
        examples=["earliest", {"file": "binlog.000012", "pos": 157}, {"timestamp": "2024-01-31T12:00:00Z"}],
    )
    max_batch_bytes: Annotated[
        int,
        PlainValidator(parse_size_bytes),
        PlainSerializer(format_size_bytes, return_type=str),
        WithJsonSchema({"type": "string"}),
        Written(SIZE_FORM),
    ] = Field(
        67_108_864,
        description="Log that one epoch reads, at most; a larger transaction is still one. Units: B, KB, MB, GB, TB "
        "(1000), "
        "KiB, MiB, GiB, TiB (1024).",
        examples=["64MiB"],
    )
    max_batch_seconds: Seconds = Field(
        10.0,
        description="Time that an epoch should take, at most: after one that took longer the next reads less of the log, "
        "though not less than 4 MiB.",
    )
    reconnect: Reconnect = Field(Reconnect(), description="What happens when the log connection breaks.")
