"""The job file as a typed, validated, frozen value. The loader is `conf.load`; keys and defaults are described by the
fields.

A JobFile pickles (with its secrets: executors need them), but no repr, str, JSON dump or traceback of it shows them.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import annotated_types
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    StrictInt,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from conf.contradictions import contradictions
from conf.problems import dotted
from conf.quantities import TRIGGER_FORM, Every, Once, Trigger, parse_trigger
from conf.reading import Log, LogStart, Snapshot, StartAtEnd
from conf.redaction import Secret
from conf.section import Section, Text, Written, refuse
from conf.sink import CheckedSink, StoragePath
from conf.source import NameOfTable, ServerIdRange, Source
from conf.substitution import is_secret_setting
from conf.tables import TableName
from conf.transform import parse_transform
from conf.yaml_tree import Path

LONGEST_JOB_NAME = 50
"""The lock that keeps a second driver out is named after the job, and MySQL's lock names end at 64 characters."""

DERIVED_SERVER_ID_COUNT = 1000
FIRST_DERIVED_SERVER_ID = 2**31

Mode = Literal["full", "incremental", "full+incremental"]


def _job_name(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9-]+", name) or len(name) > LONGEST_JOB_NAME:
        raise refuse(f"must be a name of a-z, 0-9 and '-', at most {LONGEST_JOB_NAME} characters")
    return name


def _read_trigger(value: Any) -> Trigger:
    return value if isinstance(value, Once | Every) else parse_trigger(value)


def _settings(value: Any) -> Any:
    """Texts as they are, numbers and truth values as Spark writes them, secrets by their names as Secret."""
    if not isinstance(value, Mapping):
        return value
    read: dict[str, str | Secret] = {}
    for name, setting in value.items():
        if not isinstance(name, str) or not name.startswith("spark."):
            raise refuse(
                "must start with 'spark.' (Hadoop's settings with 'spark.hadoop.'), or Spark ignores it", key=str(name)
            )
        if name == "spark.master":
            raise refuse("stands in spark.master, not here", key=name)
        if isinstance(setting, bool):
            setting = str(setting).lower()
        if isinstance(setting, int | float):
            setting = str(setting)
        if not isinstance(setting, str | Secret):
            raise refuse("must be text or a number", key=name)
        read[name] = Secret(setting) if isinstance(setting, str) and is_secret_setting(name, setting) else setting
    return read


def _transform(sql: str) -> str:
    parse_transform(sql)
    return sql.strip()


class Spark(Section):
    """Settings of the Spark session, used where Tidemark starts it; under spark-submit those of the command line
    win.
    """

    master: Text = Field("local[*]", description="Spark's master URL.", examples=["local[*]", "spark://master:7077"])
    conf: Annotated[
        Mapping[str, str | Secret],
        BeforeValidator(_settings),
        PlainSerializer(lambda conf: {name: str(setting) for name, setting in conf.items()}),
        WithJsonSchema({"type": "object"}),
        Written("a mapping from Spark's settings to texts or numbers"),
    ] = Field(
        {},
        description="Settings by name. Those named like a secret (secret, password, token, access key, …) are masked "
        "everywhere, and there `file:/run/secrets/x` reads a file.",
        examples=[{"spark.executor.memory": "4g"}],
    )

    def conf_with_secrets(self) -> dict[str, str]:
        """The settings as Spark takes them, secrets included. Never print it."""
        return {
            name: setting.get_secret_value() if isinstance(setting, Secret) else setting
            for name, setting in self.conf.items()
        }


class Metrics(Section):
    """Metrics for Prometheus, served by the driver over HTTP while the job runs, under `/metrics`. Without the section
    nothing is served. Nobody is asked for a password: keep the port to machines that may see tables' names.
    """

    port: Annotated[
        StrictInt, annotated_types.Ge(0), annotated_types.Le(65535), Written("a port number, 0 to 65535")
    ] = Field(
        description="TCP port. 0: any free one; the event `metrics` tells which. A port that is taken ends the run at "
        "its start with exit code 2.",
        examples=[9108],
    )
    host: Text = Field("127.0.0.1", description="Address to listen on. `0.0.0.0`: all that the machine has.")


class JobFile(Section):
    """A whole job file."""

    job: Annotated[Text, AfterValidator(_job_name), Written("a name of a-z, 0-9 and '-'")] = Field(
        description=f"The job's name, of `a-z`, `0-9` and `-`, at most {LONGEST_JOB_NAME} characters. Unique per "
        f"checkpoint "
        "folder and per source: a second driver of the same name is kept out.",
        examples=["shop-mirror"],
    )
    mode: Mode = Field(
        "full+incremental",
        description="`full`: the rows that exist, exact at one moment over all tables, then exit. `incremental`: "
        "only changes, "
        "from `log.start` on. `full+incremental`: the rows, then every change.",
    )
    trigger: Annotated[
        Trigger,
        PlainValidator(_read_trigger),
        PlainSerializer(str, return_type=str),
        WithJsonSchema({"type": "string"}),
        Written(TRIGGER_FORM),
    ] = Field(
        Once(),
        description="`once`: catch up to the log end seen at start, exit 0. An interval (units ms, s, m, h): run "
        "until stopped, "
        "an epoch each interval.",
        examples=["once", "30s"],
    )
    checkpoint: StoragePath = Field(
        description="Folder of the job's state, on storage that driver and executors share. Losing it means starting "
        "anew.",
        examples=["./checkpoints/shop-mirror"],
    )
    source: Source = Field(description="Where the data comes from.")
    snapshot: Snapshot = Field(Snapshot(), description="How the rows that exist are read.")
    log: Log = Field(Log(), description="How the log is followed.")
    transforms: Annotated[
        Mapping[NameOfTable, Annotated[Text, AfterValidator(_transform), Written('SQL like "SELECT * FROM input"')]],
        Written('a mapping from tables to SQL, like {shop.orders: "SELECT * FROM input"}'),
    ] = Field(
        {},
        description="Per table: one `SELECT … FROM input` in DuckDB's SQL, computed row by row, after `source.columns`. "
        "See [Columns](columns.md).",
        examples=[{"shop.orders": "SELECT *, amount * 1.2 AS gross FROM input"}],
    )
    sink: Annotated[CheckedSink, Written("a section with type: mirror | files | delta | console")] = Field(
        description="Where the data goes."
    )
    metrics: Annotated[Metrics | None, Written("a section with port, host")] = Field(
        None, description="Serves metrics for Prometheus."
    )
    spark: Spark = Field(Spark(), description="Settings of the Spark session.")

    _places: Mapping[Path, str] = PrivateAttr(default_factory=dict)

    @field_validator("snapshot", "log", "spark", mode="before")
    @classmethod
    def _empty_section_means_defaults(cls, value: Any) -> Any:
        return {} if value is None else value

    @model_validator(mode="after")
    def _without_contradictions(self) -> "JobFile":
        found = contradictions(self)
        if found:
            text = "; ".join(f"{dotted(path)} {text}" for path, text in found)
            raise PydanticCustomError("contradictions", "{text}", {"text": text, "found": found})
        return self

    @property
    def has_snapshot(self) -> bool:
        """The rows that exist are read."""
        return self.mode != "incremental"

    @property
    def follows_log(self) -> bool:
        """The log is followed beyond what makes the snapshot exact."""
        return self.mode != "full"

    @property
    def log_start(self) -> LogStart:
        """Where a first start in mode `incremental` begins. Raises ValueError in other modes, which begin with the
        snapshot.
        """
        if self.has_snapshot:
            raise ValueError(f"mode {self.mode} has no log.start")
        return StartAtEnd("latest") if self.log.start is None else self.log.start

    def transform(self, database: str, table: str) -> str | None:
        """The SQL of the table's transform."""
        return self.transforms.get(TableName(database, table))

    def keep_places(self, places: Mapping[Path, str]) -> None:
        """Where keys stand in the file, for `place`."""
        self._places = places

    def place(self, *path: str) -> str:
        """A key's path after its place in the file, where it has one: `shop.yaml:14: transforms."shop.orders"`."""
        text, place = dotted(path), self._places.get(path, "")
        return text if not place else place if place.endswith(text) else f"{place}: {text}"

    @property
    def server_ids(self) -> ServerIdRange:
        """The server ids for log connections: those of the file, else 1000 that follow from the job's name."""
        if self.source.server_ids is not None:
            return self.source.server_ids
        slots = (2**32 - FIRST_DERIVED_SERVER_ID) // DERIVED_SERVER_ID_COUNT
        slot = int.from_bytes(hashlib.sha256(self.job.encode()).digest()[:8], "big") % slots
        first = FIRST_DERIVED_SERVER_ID + slot * DERIVED_SERVER_ID_COUNT
        return ServerIdRange(first, first + DERIVED_SERVER_ID_COUNT - 1)

    @property
    def slot(self) -> str:
        """PostgreSQL: the name of the job's replication slot."""
        return self._postgres_name if self.source.slot is None else self.source.slot

    @property
    def publication(self) -> str:
        """PostgreSQL: the name of the publication of the job's tables."""
        return self._postgres_name if self.source.publication is None else self.source.publication

    @property
    def _postgres_name(self) -> str:
        return "tidemark_" + self.job.replace("-", "_")

    def redacted(self) -> dict[str, Any]:
        """The job file with all defaults, as YAML or JSON could write it, secrets masked: for printing and
        fingerprints.

        It does not change when only a secret does.
        """
        return self.model_dump(mode="json")

    def warnings(self) -> list[str]:
        """What is allowed but may surprise, to be shown to the user."""
        found = []
        if not self.has_snapshot and "snapshot" in self.model_fields_set:
            found.append("snapshot: not used in mode incremental")
        if self.source.mask_key is None:
            hashed = [str(t) for t, columns in self.source.columns.items() if "sha256" in columns.mask.values()]
            if hashed:
                found.append(
                    f"source.columns: {', '.join(hashed)} has plain SHA-256 masks, which can be undone by trying what is "
                    "likely; source.mask_key prevents it"
                )
        for name, endpoint, tls in (
            ("source", self.source.url, self.source.tls),
            *([("sink", self.sink.url, self.sink.tls)] if self.sink.type == "mirror" else []),
        ):
            if tls is not None and not tls.verify:
                found.append(f"{name}.tls.verify: false lets anyone on the way pretend to be {endpoint.host}")
        return found
