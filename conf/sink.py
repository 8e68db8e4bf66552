"""The job file's section `sink`: one model for each `type`."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from tidemark.conf.endpoint import Endpoint, parse_endpoint
from tidemark.conf.problems import did_you_mean
from tidemark.conf.schema_changes import CheckedSchemaChanges, SchemaChanges
from tidemark.conf.section import ColumnNames, Section, Text, Written, not_supported_yet, refuse
from tidemark.conf.source import NameOfTable, Tls
from tidemark.conf.tables import (
    FOLDER_TEMPLATE,
    TEMPLATE_FORM,
    RenameRule,
    TableTemplate,
    check_rename,
    parse_table_template,
)

SINK_TYPES = ("mirror", "files", "delta", "console")
LATER_SINK_TYPES = {
    "iceberg": "for tables in a lake, sink.type delta has a mirror or a changelog",
    "kafka": "for every change in its order, sink.type files writes JSON Lines or Parquet, and delta has style changelog",
}
"""Sink types that are planned, with what there is instead."""

_URI_WITH_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/@]*:[^/]*@")


def check_storage_path(path: str) -> str:
    """Returns ``path``. Raises ValueError if it can't be a path."""
    if not path.strip():
        raise ValueError("must be a path, not empty")
    if path.startswith("~"):
        raise ValueError("must not start with '~', which may be another folder on executors; write ${HOME}")
    if _URI_WITH_PASSWORD.match(path):
        raise ValueError("must not contain a password; give it in spark.conf or in the environment of all nodes")
    return path


StoragePath = Annotated[
    Text, AfterValidator(check_storage_path), Written("a path, relative to the job file's folder, or a URI like s3://…")
]
SharedFolder = Annotated[
    Text,
    AfterValidator(check_storage_path),
    Written("a path, relative to the job file's folder, or a URI like file:///…"),
]
LakePath = Annotated[
    Text,
    AfterValidator(check_storage_path),
    Written("a path, relative to the job file's folder, or a URI like s3a://…"),
]


def _read_url(value: Any) -> Endpoint:
    if isinstance(value, Endpoint):
        return value
    if not isinstance(value, str):
        raise refuse("must be a database URL")
    endpoint = parse_endpoint(value)
    if endpoint.kind == "postgresql" and endpoint.database is None:
        raise refuse("names no database: write postgresql://user:password@host:5432/database")
    return endpoint


def _read_template(value: Any) -> TableTemplate:
    if isinstance(value, TableTemplate):
        return value
    if not isinstance(value, str):
        raise refuse(f"must be {TEMPLATE_FORM}; a value that starts with '{{' must be in quotes")
    return parse_table_template(value)


def _check_catalog(name: str | None) -> str | None:
    if name is not None and (not name.strip() or "." in name):
        raise ValueError("must be a catalog's name, like main; write the schema in sink.table")
    return name


BadValuePolicy = Literal["park", "stop", "null", "text", "reject"]
"""The policies for a value that the target can't hold."""
ReaderPolicy = Literal["park", "stop", "null"]
"""The policies of sinks other than mirror."""


def _only_of_mirrors(value: Any) -> Any:
    if value in ("text", "reject"):
        raise refuse(f"{value} is only for sink.type mirror. Allowed: park, stop, null")
    return _null_is_a_word(value)


def _null_is_a_word(value: Any) -> Any:
    """Reads YAML's `null` as the word null."""
    return "null" if value is None else value


class _Sink(Section):
    on_schema_change: CheckedSchemaChanges = Field(
        SchemaChanges(),
        description="What happens if a table was altered, swapped, or dropped and created again, and the job can't follow "
        "the change in the log. `evolve`: its copy is adapted, and its rows are read again, while the "
        "other tables continue. If that is not possible, the table is parked. Each later start tries it again. `stop`: "
        "`source.on_table_error` says what happens. A mapping has a policy for each kind of change, and also `ignore`: see "
        "[sink.on_schema_change](#sinkon_schema_change). In modes other than full+incremental no table is read again.",
        examples=["evolve", {"add_column": "ignore", "drop_table": "ignore"}],
    )


class _WithoutMarks(_Sink):
    """A sink that gets no values of the source that have no place in a copy."""

    on_bad_value: Annotated[ReaderPolicy, BeforeValidator(_only_of_mirrors)] = Field(
        "park",
        description="What happens to a value that a copy can't hold. PostgreSQL: an infinite date or timestamp, NaN in "
        "`numeric(p,s)`, a time after the year 294246, text that is not UTF-8. MySQL, MariaDB: text with bytes that encode "
        "no character of its column's charset. `park`: the table is parked, and the others continue. `stop`: the job stops. "
        "`null`: NULL is written; in a key the table is parked. May be changed at any time, also for a job that has stopped.",
    )
    on_bad_value_in: Annotated[
        Mapping[
            NameOfTable,
            Annotated[
                Mapping[Text, Annotated[ReaderPolicy, BeforeValidator(_only_of_mirrors)]],
                Written("a mapping from columns to park | stop | null"),
            ],
        ],
        Written("a mapping from tables to mappings from columns to park | stop | null"),
    ] = Field(
        {},
        description="The same for single columns.",
        examples=[{"shop.orders": {"valid_until": "null"}}],
    )


_Template = Annotated[
    TableTemplate,
    PlainValidator(_read_template),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string"}),
    Written(TEMPLATE_FORM),
]


class Rename(Section):
    """A rule that renames copies, as Kafka Connect's RegexRouter renames topics. The first rule that matches the name that
    `sink.table` gives is used. Two tables that would get one name are refused.
    """

    match: Text = Field(
        description="A regular expression of Python for the whole name of a copy, without its schema.",
        examples=["^shop_(.*)$"],
    )
    to: Text = Field(
        description=r"The new name, without a schema. `\1` is the first group of the match, `\g<name>` a named one.",
        examples=[r"\1"],
    )

    @model_validator(mode="after")
    def _usable(self) -> "Rename":
        if (problem := check_rename(self.rule)) is not None:
            key, reason = problem
            raise refuse(reason, key=key)
        return self

    @property
    def rule(self) -> RenameRule:
        return RenameRule(self.match, self.to)


_Renames = Annotated[tuple[Rename, ...], Written("a list of rules like {match: ^shop_(.*)$, to: \\1}")]
_RENAME = Field(
    (),
    description="Other names for copies: rules with `match`, a regular expression for the whole name that `table` gives, and "
    "`to`. The first one that matches is used.",
    examples=[[{"match": "^shop_(.*)$", "to": r"\1"}]],
)

AUDIT_FORM = "a name of letters, digits and '_', at most 63 characters"


def _audit_name(name: str | None) -> str | None:
    if name is not None and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", name) is None:
        raise refuse(f"must be {AUDIT_FORM}")
    return name


_AuditName = Annotated[Text | None, AfterValidator(_audit_name), Written(AUDIT_FORM)]


class AuditColumns(Section):
    """Columns that each copy has besides the source's. Fixed by the job's first start."""

    deleted: _AuditName = Field(
        None,
        description="Rows that the source deletes stay in the copy, with true in this column (a soft delete). All other rows "
        "have false.",
        examples=["_deleted"],
    )
    synced_at: _AuditName = Field(
        None,
        description="When the row was last written or marked as deleted: the time in UTC by the target's clock, when that "
        "transaction began. Delta: by the driver's clock, when that commit began.",
        examples=["_synced_at"],
    )

    @model_validator(mode="after")
    def _different(self) -> "AuditColumns":
        if self.deleted is not None and self.synced_at is not None and self.deleted.lower() == self.synced_at.lower():
            raise refuse("must not be the name of deleted, too", key="synced_at")
        return self


_AuditColumns = Annotated[AuditColumns, Written("a section with deleted, synced_at")]
_AUDIT_EXAMPLE = {"deleted": "_deleted", "synced_at": "_synced_at"}


class MirrorSink(_Sink):
    """Keeps an identical copy of each table in a database. Creates missing tables, upserts and deletes rows."""

    type: Literal["mirror"] = Field(description="`mirror`.")
    url: Annotated[
        Endpoint,
        PlainValidator(_read_url),
        PlainSerializer(str, return_type=str),
        WithJsonSchema({"type": "string"}),
        Written("a URL like postgresql://user:password@host:5432/database, mysql://… or mariadb://…"),
    ] = Field(
        description="Server, login and database of the copy: `mysql://`, `mariadb://` or `postgresql://`. User and password "
        "from `${NAME}` or `${file:/run/secrets/x}` need no percent-encoding.",
        examples=["postgresql://etl:${PG_PASSWORD}@wh:5432/analytics"],
    )
    table: _Template = Field(
        parse_table_template("{schema}_{table}"),
        description="Name of a table's copy: `{schema}` is the source's database, `{table}` the table's name. The part before "
        "a dot is the target's schema (PostgreSQL) or database. Without a dot, the copy is in the URL's database.",
        examples=["{schema}_{table}", "copy.{table}"],
    )
    rename: _Renames = _RENAME
    tls: Annotated[Tls | None, Written("a section with ca, cert, key, verify")] = Field(
        None, description="Encrypts connections to the target and verifies the server, as `source.tls` does."
    )
    keyless: Literal["refuse", "append"] = Field(
        "refuse",
        description="What happens to tables without a key. `refuse`: they are refused. `append`: their rows are appended, each "
        "once, and a TRUNCATE is followed. An UPDATE or a DELETE parks the table, because the row can't be found in the copy.",
    )
    audit_columns: _AuditColumns = Field(
        AuditColumns(deleted=None, synced_at=None),
        description="Columns that say which rows the source has deleted, and when a row was written.",
        examples=[_AUDIT_EXAMPLE],
    )
    on_bad_value: Annotated[BadValuePolicy, BeforeValidator(_null_is_a_word)] = Field(
        "park",
        description="What happens to a value that the target can't hold. `park`: the table is parked, and the others continue. "
        "`stop`: the job stops. `null`: NULL is written. `text`: where the column is text, the value is written in another "
        "form. `reject`: the row is kept in the table `tidemark_rejects` of the target instead. Where null, text or reject "
        "can't be done, such as NULL in a key, the table is parked. May be changed at any time, also for a job that has "
        "stopped.",
    )
    on_bad_value_in: Annotated[
        Mapping[
            NameOfTable,
            Annotated[
                Mapping[Text, Annotated[BadValuePolicy, BeforeValidator(_null_is_a_word)]],
                Written("a mapping from columns to park | stop | null | text | reject"),
            ],
        ],
        Written("a mapping from tables to mappings from columns to park | stop | null | text | reject"),
    ] = Field(
        {},
        description="The same for single columns.",
        examples=[{"shop.orders": {"note": "text"}}],
    )

    @property
    def copies(self) -> TableTemplate:
        """The names of copies."""
        return replace(self.table, renames=tuple(rename.rule for rename in self.rename))


class FilesSink(_WithoutMarks):
    """Appends rows and changes as files, in a folder for each table."""

    type: Literal["files"] = Field(description="`files`.")
    path: SharedFolder = Field(
        description="Folder of the files. The driver and the executors share it.", examples=["./out"]
    )
    format: Literal["parquet", "jsonl"] = Field("parquet", description="Parquet or JSON Lines.")
    table: _Template = Field(
        FOLDER_TEMPLATE,
        description="Name of a table's folder: `{schema}` is the source's database, `{table}` the table's name.",
        examples=["{table}"],
    )
    rename: _Renames = _RENAME
    merge_small_files: bool = Field(
        False,
        description="Merges the files of log changes, so that few remain. Without it each epoch adds one file for each changed "
        "table. While files are merged, readers see rows twice for a moment, and files disappear. May be changed at any time.",
    )

    @property
    def copies(self) -> TableTemplate:
        """The names of the folders."""
        return replace(self.table, renames=tuple(rename.rule for rename in self.rename))


class DeltaSink(_WithoutMarks):
    """Writes Delta Lake tables: in folders, or as tables of a catalog."""

    type: Literal["delta"] = Field(description="`delta`.")
    path: LakePath | None = Field(
        None,
        description="Folder of the tables, which are folders in it. The driver and the executors share it. URIs are "
        "those of Hadoop: s3a://, abfss://, gs://, hdfs://. Either this or `catalog` is required.",
        examples=["./lake"],
    )
    catalog: Annotated[Text | None, AfterValidator(_check_catalog), Written("a catalog's name, like main")] = Field(
        None,
        description="Name of the tables' catalog in Spark. `spark_catalog` is the session's own catalog "
        "(a Hive metastore).",
        examples=["main"],
    )
    table: _Template = Field(
        FOLDER_TEMPLATE,
        description="Name of a table's copy: `{schema}` is the source's database, `{table}` the table's name. With `path` it "
        "is the name of a folder, with `catalog` schema and name of a table. Missing schemas are created.",
        examples=["lake.{schema}_{table}"],
    )
    rename: _Renames = _RENAME
    style: Literal["mirror", "changelog"] = Field(
        "mirror",
        description="`mirror`: each copy is kept identical to its table. `changelog`: every change is appended, with the "
        "changelog columns.",
    )
    partition_by: Annotated[Mapping[NameOfTable, ColumnNames], Written("a mapping from tables to lists of columns")] = (
        Field(
            {},
            description="For each table: the columns by which its copy is partitioned when it is created.",
            examples=[{"shop.orders": ["country"]}],
        )
    )
    audit_columns: _AuditColumns = Field(
        AuditColumns(deleted=None, synced_at=None),
        description="Columns that say which rows the source has deleted, and when a row was written. Only with "
        "`style: mirror`.",
        examples=[_AUDIT_EXAMPLE],
    )

    @property
    def copies(self) -> TableTemplate:
        """The names of copies."""
        return replace(self.table, renames=tuple(rename.rule for rename in self.rename))


class ConsoleSink(_WithoutMarks):
    """Prints rows and changes, for a first look."""

    type: Literal["console"] = Field(description="`console`.")


def _check_type(value: Any) -> Any:
    """Refuses a missing, unknown or unsupported `type` before the models are tried: their messages are less clear."""
    if not isinstance(value, Mapping):
        return value
    allowed = ", ".join(SINK_TYPES)
    if "type" not in value:
        typo = next((key for key in value if did_you_mean("type", [str(key)])), None)
        if typo is None:
            raise refuse(f"is missing. Allowed: {allowed}", key="type")
        keys = ", ".join(keys_of_sink(value[typo]))
        raise refuse(f"unknown key. Did you mean 'type'? Allowed here: {keys}", key=str(typo))
    kind = value["type"].lower() if str(value["type"]).lower() in LATER_SINK_TYPES else value["type"]
    if kind in LATER_SINK_TYPES:
        raise refuse(
            f"{not_supported_yet(f'the sink type {kind}')}; {LATER_SINK_TYPES[kind]}. Allowed: {allowed}", key="type"
        )
    if kind not in SINK_TYPES:
        raise refuse(f"must be {' | '.join(SINK_TYPES)}", key="type", choices=SINK_TYPES)
    return value


def keys_of_sink(kind: object) -> list[str]:
    """Returns the keys of a sink type, or of all types if there is no such type; `type` first."""
    models: dict[object, type[Section]] = {
        "mirror": MirrorSink,
        "files": FilesSink,
        "delta": DeltaSink,
        "console": ConsoleSink,
    }
    chosen = [models[kind]] if kind in SINK_TYPES else list(models.values())
    keys = dict.fromkeys(key for model in chosen for key in model.model_fields)
    return sorted(keys, key=lambda key: (key != "type", key.startswith("on_"), key == "on_schema_change"))


Sink = Annotated[MirrorSink | FilesSink | DeltaSink | ConsoleSink, Field(discriminator="type")]
CheckedSink = Annotated[Sink, BeforeValidator(_check_type)]
