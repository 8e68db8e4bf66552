"""The job file as a typed, validated, frozen value. Its fields describe keys and defaults. `tidemark.conf.load` loads it.

A JobFile pickles with its secrets, because executors need them. No repr, str, JSON dump or traceback of it shows them.
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

from tidemark.conf.checkpoints import Checkpoints
from tidemark.conf.contradictions import contradictions
from tidemark.conf.notify import Notify
from tidemark.conf.problems import dotted
from tidemark.conf.quantities import TRIGGER_FORM, Every, Once, Trigger, parse_trigger
from tidemark.conf.reading import Log, LogStart, Snapshot, StartAtEnd
from tidemark.conf.reconnect import Reconnect
from tidemark.conf.redaction import Secret
from tidemark.conf.section import Section, Text, Written, refuse
from tidemark.conf.signals import Signals
from tidemark.conf.sink import CheckedSink, StoragePath
from tidemark.conf.source import NameOfTable, ServerIdRange, Source
from tidemark.conf.substitution import is_secret_setting
from tidemark.conf.table_options import OptionsByTable
from tidemark.conf.tables import TableName
from tidemark.conf.tls import warning_of_clear_text
from tidemark.conf.transform import parse_transform
from tidemark.conf.yaml_tree import Path

MAX_JOB_NAME_LENGTH = 50
"""PostgreSQL's names of slots and publications, `tidemark_<job>`, have at most 63 characters."""

DERIVED_SERVER_ID_COUNT = 1000
FIRST_DERIVED_SERVER_ID = 2**31

Mode = Literal["full", "incremental", "full+incremental"]


def _job_name(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9-]+", name) or len(name) > MAX_JOB_NAME_LENGTH:
        raise refuse(f"must be a name of a-z, 0-9 and '-', at most {MAX_JOB_NAME_LENGTH} characters")
    return name


def _read_trigger(value: Any) -> Trigger:
    return value if isinstance(value, Once | Every) else parse_trigger(value)


def _settings(value: Any) -> Any:
    """Converts Spark settings: numbers and truth values to text as Spark writes them, secrets (by their names) to Secret."""
    if not isinstance(value, Mapping):
        return value
    read: dict[str, str | Secret] = {}
    for name, setting in value.items():
        if not isinstance(name, str) or not name.startswith("spark."):
            raise refuse(
                "must start with 'spark.' (Hadoop's settings with 'spark.hadoop.'); Spark ignores others", key=str(name)
            )
        if name == "spark.master":
            raise refuse("is not allowed here; use spark.master", key=name)
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
    """Settings of the Spark session. With spark-submit, the master is that of its command line, and `conf` takes precedence
    over its `--conf`.
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
        description="Settings by name. A setting whose name says that it is a secret (secret, password, token, access key, "
        "…) is masked in all output, and its value may be `file:/run/secrets/x`.",
        examples=[{"spark.executor.memory": "4g"}],
    )

    def conf_with_secrets(self) -> dict[str, str]:
        """Returns the settings for Spark, with secrets. Never print them."""
        return {
            name: setting.get_secret_value() if isinstance(setting, Secret) else setting
            for name, setting in self.conf.items()
        }


class Metrics(Section):
    """Metrics for Prometheus. The driver serves them over HTTP under `/metrics` while the job runs. Without this section
    nothing is served. There is no password: open the port only to machines that may see the names of tables.
    """

    port: Annotated[
        StrictInt, annotated_types.Ge(0), annotated_types.Le(65535), Written("a port number, 0 to 65535")
    ] = Field(
        description="TCP port. 0: any free port, named by the event `metrics`. If the port is in use, the run ends at its "
        "start with exit code 2.",
        examples=[9108],
    )
    host: Text = Field("127.0.0.1", description="Address to listen on. `0.0.0.0`: all addresses of the machine.")


class JobFile(Section):
    """A whole job file."""

    job: Annotated[Text, AfterValidator(_job_name), Written("a name of a-z, 0-9 and '-'")] = Field(
        description=f"The job's name, of `a-z`, `0-9` and `-`, at most {MAX_JOB_NAME_LENGTH} characters. It must be unique "
        "in the source. Only one driver can run a job: it holds the lease. These are locks in the source, named after a text "
        "in the checkpoint, and on PostgreSQL also after the slot.",
        examples=["shop-mirror"],
    )
    mode: Mode = Field(
        "full+incremental",
        description="`full`: copies the existing rows of all tables as of one position of the log, then exits. "
        "`incremental`: copies only changes, from `log.start` on. `full+incremental`: copies the existing rows, then every "
        "change.",
    )
    trigger: Annotated[
        Trigger,
        PlainValidator(_read_trigger),
        PlainSerializer(str, return_type=str),
        WithJsonSchema({"type": "string"}),
        Written(TRIGGER_FORM),
    ] = Field(
        Once(),
        description="`once`: reads up to the end that the log has at the start of the run, then exits with code 0. An "
        "interval (units ms, s, m, h): runs until it is stopped, with an epoch at each interval. Not allowed in mode `full`, "
        "which ends by itself.",
        examples=["once", "30s"],
    )
    checkpoint: StoragePath = Field(
        description="Folder of the job's state, on storage that the driver and the executors share. If it is lost, the job "
        "must start over.",
        examples=["./checkpoints/shop-mirror"],
    )
    checkpoints: Checkpoints = Field(Checkpoints(), description="How far back the job can go.")
    source: Source = Field(description="The database that is copied.")
    snapshot: Snapshot = Field(Snapshot(), description="How the existing rows are read.")
    log: Log = Field(Log(), description="How the log is read.")
    reconnect: Reconnect = Field(
        Reconnect(), description="How long connections that break while the job runs are tried again."
    )
    transforms: Annotated[
        Mapping[NameOfTable, Annotated[Text, AfterValidator(_transform), Written('SQL like "SELECT * FROM input"')]],
        Written('a mapping from tables to SQL, like {shop.orders: "SELECT * FROM input"}'),
    ] = Field(
        {},
        description="For each table: one `SELECT … FROM input` in DuckDB's SQL. It is applied to each row after "
        "`source.columns`. See [Columns](columns.md).",
        examples=[{"shop.orders": "SELECT *, amount * 1.2 AS gross FROM input"}],
    )
    tables: OptionsByTable = Field(
        {},
        exclude=True,
        description="The options of single tables, each table's in one place: another way to write `source.columns`, "
        "`source.keys`, `snapshot.where`, `transforms`, `sink.on_bad_value_in` and `sink.partition_by`.",
        examples=[{"shop.orders": {"key": ["id"], "where": "created_at >= '2024-01-01'"}}],
    )
    sink: Annotated[CheckedSink, Written("a section with type: mirror | files | delta | console")] = Field(
        description="Where the copy is written."
    )
    metrics: Annotated[Metrics | None, Written("a section with port, host")] = Field(
        None, description="Metrics for Prometheus."
    )
    notify: Annotated[Notify | None, Written("a section with webhook, on")] = Field(
        None, description="A service that gets a message when the job fails."
    )
    signals: Annotated[Signals | None, Written("a section with table, conditions")] = Field(
        None, description="A table of the source that gives signals to the job."
    )
    spark: Spark = Field(Spark(), description="Settings of the Spark session.")

    _places: Mapping[Path, str] = PrivateAttr(default_factory=dict)

    @field_validator("checkpoints", "snapshot", "log", "reconnect", "spark", mode="before")
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
        """True if the existing rows are read."""
        return self.mode != "incremental"

    @property
    def log_start(self) -> LogStart:
        """The start of the log at the first start in mode `incremental`. Raises ValueError in other modes, which start with
        the snapshot.
        """
        if self.has_snapshot:
            raise ValueError(f"mode {self.mode} has no log.start")
        return StartAtEnd("latest") if self.log.start is None else self.log.start

    def transform(self, database: str, table: str) -> str | None:
        """Returns the SQL of the table's transform, None without one."""
        return self.transforms.get(TableName(database, table))

    def keep_places(self, places: Mapping[Path, str]) -> None:
        """Sets what `place` returns for keys that the file has."""
        self._places = places

    def place(self, *path: str) -> str:
        """Returns a key's path after its line in the file, if it has one: `shop.yaml:14: transforms."shop.orders"`."""
        return self._places.get(path, dotted(path))

    @property
    def server_ids(self) -> ServerIdRange:
        """The server ids for log connections: those of the file, otherwise 1000 derived from the job's name."""
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
        """Returns the job file with all defaults and masked secrets, for printing and fingerprints.

        It does not change if only a secret changes.
        """
        return self.model_dump(mode="json")

    def warnings(self) -> list[str]:
        """Returns warnings about settings that are allowed but may surprise the user."""
        found = []
        if not self.has_snapshot and "snapshot" in self.model_fields_set:
            found.append("snapshot: is not used in mode incremental")
        if self.source.mask_key is None:
            hashed = [str(t) for t, columns in self.source.columns.items() if "sha256" in columns.mask.values()]
            if hashed:
                found.append(
                    f"source.columns: {', '.join(hashed)} has plain SHA-256 masks, which can be undone by trying likely "
                    "values; source.mask_key prevents this"
                )
        return found + self.clear_text_warnings()

    def clear_text_warnings(self) -> list[str]:
        """Returns a warning for each connection in which others in the network can read or change what is sent."""
        found = []
        if self.notify is not None and self.notify.is_clear_text:
            found.append("notify.webhook: without https, others in the network can read what is sent, and the URL")
        for name, endpoint, tls in (
            ("source", self.source.url, self.source.tls),
            *([("sink", self.sink.url, self.sink.tls)] if self.sink.type == "mirror" else []),
        ):
            if (warning := warning_of_clear_text(name, endpoint, tls)) is not None:
                found.append(warning)
        return found
